"""An Optuna study in its storage: opened by any number of processes at once, with its sampler and its pruner."""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from gossamer.files.atomic import one_line
from gossamer.lab.record import Lock, RecordError, TakenError
from gossamer.metrics import METRICS

if TYPE_CHECKING:
    import optuna

Pruner = Literal["none", "median", "hyperband"]
HEARTBEAT, GRACE = 60, 180  # seconds; only for trials in folders that this machine does not see
WAY_ON = "give the same command again: trials that were begun are continued"


@contextlib.contextmanager
def opened_study(
    folder: Path, name: str, url: str | None, metric: str, pruner: str, epochs: int
) -> Iterator[optuna.Study]:
    """The study in its storage, made if there is none."""
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    is_higher_better = METRICS[metric].better == "higher"
    shown = _without_password(url or "")
    try:
        with waited(folder):  # two processes that make the tables at once would fail
            storage = _storage(url or f"sqlite:///{(folder / 'study.db').absolute()}")
            study = optuna.create_study(
                storage=storage,
                sampler=sampler(0),
                pruner=_pruner(pruner, epochs),
                study_name=name,
                direction="maximize" if is_higher_better else "minimize",
                load_if_exists=True,
            )
    except (SQLAlchemyError, ImportError) as error:
        raise RecordError(f"the storage {shown or folder / 'study.db'} cannot be opened: {one_line(error)}") from error
    try:
        yield study
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise RecordError(f"the storage has failed: {one_line(error)}; {WAY_ON}") from error
    finally:
        storage.engine.dispose()


def _storage(url: str) -> optuna.storages.RDBStorage:
    import optuna
    from sqlalchemy.exc import SQLAlchemyError

    is_file = url.startswith("sqlite")
    way: dict[str, Any] = {"connect_args": {"timeout": 60}} if is_file else {"pool_pre_ping": True}
    for attempt in range(5):  # processes on other machines may make the tables just now
        try:
            with _unwarned():
                return optuna.storages.RDBStorage(url, way, heartbeat_interval=HEARTBEAT, grace_period=GRACE)
        except SQLAlchemyError:
            if attempt == 4:
                raise
            time.sleep(0.2 * (attempt + 1) * (1 + secrets.randbelow(100) / 100))
    raise AssertionError("unreachable")


@contextlib.contextmanager
def _unwarned() -> Iterator[None]:
    """Without the warnings that a part of Optuna is experimental, or meant for its own loop: we send the heartbeats."""
    from optuna.exceptions import ExperimentalWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        warnings.filterwarnings("ignore", "Heartbeat of storage is supposed to be used with Study.optimize")
        yield


def ask(study: optuna.Study) -> optuna.Trial:
    """A new trial."""
    with _unwarned():
        return study.ask()


def _without_password(url: str) -> str:
    from sqlalchemy.engine import make_url

    return make_url(url).render_as_string(hide_password=True) if url else ""


def sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Tree-structured Parzen estimators; trials that are being trained count as bad, so that others look elsewhere."""
    import optuna

    with _unwarned():
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if name == "median":  # worse than the median of five trials or more at the same epoch, after a tenth of the epochs
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 10)
    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=max(1, epochs // 27), max_resource=epochs, reduction_factor=3)
    return pruners.NopPruner()


def importances(study: optuna.Study) -> dict[str, float]:
    """Shares of the variance of the objective (fANOVA); none if there are too few trials or all are alike."""
    import optuna

    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(finished) < 4 or len({one.value for one in finished}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    found = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in found.items()}


@contextlib.contextmanager
def beating(trial: optuna.Trial) -> Iterator[None]:
    """Tell the study from time to time that the trial has a process."""
    ended = threading.Event()

    def go_on() -> None:
        with contextlib.suppress(Exception):  # a storage that is gone is reported by the training itself
            beat(trial)
            while not ended.wait(HEARTBEAT):
                beat(trial)

    thread = threading.Thread(target=go_on, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def beat(trial: optuna.Trial) -> None:
    """Tell the study that the trial has a process."""
    trial.study._storage.record_heartbeat(trial._trial_id)  # type: ignore[attr-defined]


@contextlib.contextmanager
def waited(folder: Path) -> Iterator[None]:
    """The lock on the folder of the sweep, as soon as it is free: it is held for moments."""
    for _ in range(600):
        with contextlib.suppress(TakenError), Lock(folder):
            yield
            return
        time.sleep(0.1)
    raise RecordError(f"{folder / '.lock'} has been held for a minute: is a process of the sweep stopped?")
