"""A search for good options by Optuna: any number of processes take trials from one study, and each trial is a run.

The run folder is what is continued after a kill, and its lock is the sign of life: the system releases it when the
process ends, however that happens. So a trial keeps its number, and is neither lost nor counted twice.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from gossamer import data
from gossamer._text.formats import number, plain
from gossamer._text.names import file_name, needs, own_code, trusting, unknown
from gossamer.data import fingerprint
from gossamer.files.atomic import one_line
from gossamer.lab.record import Lock, RecordError, Run, TakenError, write_atomically
from gossamer.lab.record.sweep import SweepRecord, TrialRecord
from gossamer.lab.runs.folders import refuse_other_settings
from gossamer.lab.runs.interrupt import Interrupted, SeenEnough
from gossamer.lab.runs.search import Space, with_values
from gossamer.lab.runs.settings import CHECKPOINT_SECONDS, Settings, command_of
from gossamer.lab.runs.study import (
    GRACE,
    WAY_ON,
    Pruner,
    ask,
    beat,
    beating,
    importances,
    opened_study,
    sampler,
    waited,
)
from gossamer.metrics import METRICS
from gossamer.train.divergence import DivergenceError
from gossamer.types import Task

if TYPE_CHECKING:
    import optuna

TRIALS = 30
EVERY_EPOCH = ("nll", "accuracy", "rmse")  # what the record of a run has of each epoch
SETTLE = 2.0  # seconds between taking such a trial and looking who was the last to take it
HOME = ".home"


def sweep(
    settings: Settings,
    space: Space,
    study: str,
    out: Path | str | None = None,
    *,
    storage: str | None = None,
    trials: int = TRIALS,
    metric: str = "nll",
    pruner: Pruner = "median",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> SweepRecord:
    """Take trials from a study until there are as many as were asked for, and train each as a run.

    Any number of processes may do this at once with the same arguments. First they continue trials that a killed
    process has left, from the checkpoint of the run. The objective is a metric of the held-out examples.

    Args:
        settings: Method, data and everything else that all trials share.
        space: What differs between them, from :func:`gossamer.lab.runs.search.read_space`.
        study: Name of the study, the same for all processes.
        out: Folder of the sweep, where each trial has a run folder; ``runs/<study>`` if not given.
        storage: URL of the database of the study, as SQLAlchemy has it; a SQLite file in the folder if not given.
        trials: How many trials in all, not per process.
        metric: What to optimise: a metric of the held-out examples.
        pruner: How trials that look bad are stopped early, by the metric after each epoch.
        checkpoint_seconds: Seconds between checkpoints of a run, which a killed process may lose.
        quiet: Show no progress.
        say: Called with what is being trained, as text.

    Example:
        >>> import tempfile
        >>> from gossamer.lab.runs.search import read_space
        >>> settings, space = Settings("sgd", "two_moons", epochs=1, n_draws=1), read_space("sgd", ["lr=0.01,0.1"])
        >>> found = sweep(settings, space, "moons", tempfile.mkdtemp(), trials=2, quiet=True)
        >>> found.count("finished")
        2
    """
    needs("optuna", extra="sweep")
    if trials < 1:
        raise ValueError(f"trials must be at least 1; got {trials}")
    if settings.ranks > 1:
        raise ValueError("each trial of a sweep trains in one process: set ranks to 1, and start more processes")
    folder = Path(out or f"runs/{file_name(study)}")
    _refuse_run(folder)
    with trusting(*own_code(settings.to_config()), *own_code([str(one) for one in space.values()])):
        settings = replace(settings, calibrate=False)  # held-out examples judge a trial, and fit nothing
        task = settings.load_task()
        _check(settings, task, metric, pruner)
        with opened_study(folder, study, storage, metric, pruner, settings.epochs) as opened:
            way = {"quiet": quiet, "checkpoint_seconds": checkpoint_seconds}
            part = _Part(opened, folder, _home(folder, study), settings, space, trials, metric, pruner, way, say)
            part.agree(fingerprint(task))
            try:
                while part.train_one():
                    part.write()
            except KeyboardInterrupt:
                raise Interrupted(folder, WAY_ON) from None
            return part.write(with_importances=True)


@dataclass(frozen=True)
class _Part:
    """The part of one process in a sweep."""

    study: optuna.Study
    folder: Path
    home: str  # identifies the folder, on whatever machine it is seen
    settings: Settings
    space: Space
    trials: int
    metric: str
    pruner: str
    way: Mapping[str, Any]  # of running: options of train
    say: Callable[[str], None]

    def agree(self, prints: Mapping[str, str]) -> None:
        """Raise unless all processes of the study search the same."""
        free = ("data_dir", "device", "ranks", "options")
        config = self.settings.to_config()
        told = {key: value for key, value in config.items() if key not in free} | config["options"]
        told |= {f"search {name}": str(one) for name, one in self.space.items()} | {"metric": self.metric}
        told |= {"data": self.settings.data_name} | {f"data ({name})": one for name, one in prints.items()}
        if "plan" not in self.study.user_attrs:
            self.study.set_user_attr("plan", told)
        known = self.study.user_attrs["plan"]
        for key in known | told:
            if known.get(key) != told.get(key):
                raise RecordError(
                    f"the study {self.study.study_name} has {key} {known.get(key)}, not {told.get(key)}: give all its "
                    "processes the same command, or another --study"
                )

    def train_one(self) -> bool:
        """Train a trial that was left behind, or else a new one; returns whether there was one."""
        for trial in self._candidates():
            with self._held(trial.number) as lock:
                if lock is not None and self._is_ours(trial):
                    with beating(trial):
                        self._train(trial, lock)
                    return True
        return False

    def _candidates(self) -> Iterator[optuna.Trial]:
        """Trials that may be without a process, then new ones as long as there are too few."""
        from optuna import Trial
        from optuna.trial import TrialState

        storage = self.study._storage
        stale = storage._get_stale_trial_ids(self.study._study_id)  # type: ignore[attr-defined]
        for one in self.study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            home, started = one.user_attrs.get("home"), one.datetime_start or datetime.min
            is_old = abs(datetime.now() - started) > timedelta(seconds=GRACE)  # clocks may be set back
            # Of a trial in our folder the lock tells. One without a folder has only just begun, or its process has
            # ended right then.
            if home == self.home or one._trial_id in stale or (home is None and is_old):
                yield Trial(self.study, one._trial_id)
        while len(self._counted()) < self.trials:
            trial = ask(self.study)
            # Two processes may ask for the last trial at once.
            if sum(one.number < trial.number for one in self._counted()) >= self.trials:
                trial.set_user_attr("surplus", True)
                self.study.tell(trial, state=TrialState.FAIL)
            else:
                yield trial

    def _counted(self) -> list[optuna.trial.FrozenTrial]:
        return [one for one in self.study.get_trials(deepcopy=False) if "surplus" not in one.user_attrs]

    @contextlib.contextmanager
    def _held(self, number: int) -> Iterator[Lock | None]:
        """The lock on the run folder of a trial, or ``None`` if another process trains it."""
        with contextlib.ExitStack() as stack:
            try:
                lock: Lock | None = stack.enter_context(Lock(self.folder / _name(number)))
            except TakenError:
                lock = None
            yield lock

    def _is_ours(self, trial: optuna.Trial) -> bool:
        """Whether the trial still runs, and is ours to train now that its folder here is locked."""
        found = self.study._storage.get_trial(trial._trial_id)
        before = found.user_attrs.get("home")
        if found.state.is_finished() or before == self.home:
            return not found.state.is_finished()
        trial.set_user_attr("home", self.home)
        if before is not None:  # its own machine is gone; another one may have seen that, too
            beat(trial)
            time.sleep(SETTLE)
            return bool(self.study._storage.get_trial(trial._trial_id).user_attrs["home"] == self.home)
        return True

    def _train(self, trial: optuna.Trial, lock: Lock) -> None:
        """Train the run of a trial, or continue it, and tell the study what came of it."""
        from optuna.exceptions import OptunaError
        from optuna.trial import TrialState
        from sqlalchemy.exc import SQLAlchemyError

        try:
            objective = self._objective(trial, lock)
        except SeenEnough:
            self._tell(trial, lock, TrialState.PRUNED)
        except Interrupted:
            raise Interrupted(self.folder, WAY_ON) from None
        except (
            RecordError,
            OSError,
            OptunaError,
            SQLAlchemyError,
        ):  # no fault of the values: whoever comes next goes on
            raise
        except Exception as error:  # the next values may do better
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            trial.set_user_attr("failure", kind + one_line(error))
            # The sampler learns from pruned trials, but not from failed ones.
            self._tell(trial, lock, TrialState.PRUNED if isinstance(error, DivergenceError) else TrialState.FAIL)
        else:
            self._tell(trial, lock, TrialState.COMPLETE, objective)

    def _objective(self, trial: optuna.Trial, lock: Lock) -> float:
        from gossamer.lab.runs.evaluation import evaluate_run
        from gossamer.lab.runs.job import resume, train

        folder, settings = lock.folder, self._settings(trial)
        self.say(f"{_name(trial.number)}: {_values(trial.params)}")
        seen = dict(self.study._storage.get_trial(trial._trial_id).intermediate_values)

        def watch(row: Mapping[str, Any]) -> bool:
            if row["epoch"] not in seen:  # epochs after the last checkpoint come again
                trial.report(row[f"val_{self.metric}"], row["epoch"])
            return not trial.should_prune()

        if seen and trial.should_prune():  # its process had found that, and could not say it
            raise SeenEnough(folder)
        told = {**self.way, "lock": lock} | ({} if self.pruner == "none" else {"watch": watch})
        if (folder / "config.toml").exists():
            refuse_other_settings(folder, replace(settings, data=Run.open(folder).config["data"]))
            resume(folder, data=settings.data, **told)  # the data may have another path on another machine
        else:
            train(settings, folder, **told)
        objective = evaluate_run(folder, split="val", quiet=self.way["quiet"])[self.metric]
        if not np.isfinite(objective):
            raise DivergenceError(f"{self.metric} of the held-out examples is {objective}")
        return objective

    def _settings(self, trial: optuna.Trial) -> Settings:
        """The settings of a trial; what it tries depends on the seed, its number and the trials before."""
        seed = int(np.random.SeedSequence([self.settings.seed, trial.number]).generate_state(1)[0])
        self.study.sampler = sampler(seed)
        settings = with_values(self.settings, {name: one.suggest(trial) for name, one in self.space.items()})
        for name, value in {"seed": settings.seed, "sampler_seed": seed}.items():
            trial.set_user_attr(name, value)
        return settings

    def _tell(
        self, trial: optuna.Trial, lock: Lock, state: optuna.trial.TrialState, objective: float | None = None
    ) -> None:
        """Finish a trial, and say what it reached."""
        rows = Run.open(lock.folder).metrics() if (lock.folder / "config.toml").exists() else []
        trial.set_user_attr("seconds", rows[-1]["seconds"] if rows else 0.0)
        self.study.tell(trial, objective, state, skip_if_finished=True)
        record = self.record()
        one, best = next(one for one in record.trials if one.number == trial.number), record.best
        reached = "" if one.objective is None else f"{self.metric} {plain(number(one.objective))}"
        said = {"finished": reached, "pruned": f"pruned at {reached}", "failed": f"failed: {one.failure}"}[one.state]
        if best is not None:
            told = f"best: {plain(number(best.objective or 0.0))}, {best.folder}"
            said += "; the best so far" if best.number == one.number else f"; {told}"
        self.say(f"{one.folder}: {said}")

    def record(self) -> SweepRecord:
        """All trials of the study as they are now."""
        return SweepRecord(
            self.study.study_name,
            self.settings.method,
            self.settings.data_name,
            self.metric,
            str(METRICS[self.metric].better),
            self.pruner,
            self.trials,
            {name: str(one) for name, one in self.space.items()},
            {},
            [_record(one, self.space) for one in self._counted()],
        )

    def write(self, with_importances: bool = False) -> SweepRecord:
        """Write ``sweep.json``, again if the study has moved on: whoever writes last writes what is true."""
        while True:
            record = self.record()
            if with_importances:
                record = replace(record, importances=importances(self.study))
            if record.best is not None:
                record = replace(record, command=_command(self.settings, record.best.values))
            record.write(self.folder)
            if [one.state for one in self.record().trials] == [one.state for one in record.trials]:
                return record


def _command(settings: Settings, values: Mapping[str, Any]) -> str:
    """What trains these values without held-out examples, where the data set lets one choose."""
    n_val = 0 if "n_val" in data.options_of(settings.data) else None
    return command_of(
        replace(with_values(settings, values), n_train=None, n_val=n_val, calibrate=True), always=values.keys()
    )


def _check(settings: Settings, task: Task, metric: str, pruner: str) -> None:
    """Reject what no trial could do, before the first of them."""
    from gossamer.lab.runs.job import start
    from gossamer.lab.runs.processes import launch

    known = [one.name for one in METRICS.values() if one.compute is not None and task.kind in one.tasks]
    known = [name for name in known if METRICS[name].better in ("higher", "lower")]
    if metric not in known:
        raise ValueError(unknown("metric to search by", metric, known))
    if pruner not in get_args(Pruner):
        raise ValueError(unknown("pruner", pruner, get_args(Pruner)))
    if pruner != "none" and metric not in EVERY_EPOCH:
        raise ValueError(f"epochs are judged by {', '.join(EVERY_EPOCH)}: with {metric} set the pruner to none")
    if not len(task.val[1]):
        raise ValueError(f"a sweep is judged by held-out examples, and {task.name} has none: give n_val, such as 500")
    start(settings, task, launch(settings))


def _refuse_run(folder: Path) -> None:
    if (folder / "config.toml").exists():
        raise RecordError(f"{folder} is the folder of a run: a sweep needs one of its own, give another --out")


def _home(folder: Path, study: str) -> str:
    """What identifies the folder of a sweep, also where another machine has it under another path."""
    path = folder / HOME
    with waited(folder):
        if not path.exists():
            write_atomically(path, f"{secrets.token_hex(8)} {study}")
        home = path.read_text()
    if home.partition(" ")[2] != study:
        raise RecordError(f"{folder} holds the study {home.partition(' ')[2]}, not {study}: give another --out")
    return home


def _record(one: optuna.trial.FrozenTrial, space: Space) -> TrialRecord:
    from optuna.trial import TrialState

    failure = str(one.user_attrs.get("failure", ""))
    states = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}
    values = {name: space[name].value(kept) for name, kept in one.params.items() if name in space}
    return TrialRecord(
        one.number,
        "failed" if failure else states.get(one.state, "running"),
        _name(one.number),
        values,
        None if failure else one.value,
        [[epoch, value] for epoch, value in sorted(one.intermediate_values.items()) if np.isfinite(value)],
        one.user_attrs.get("seed", 0),
        one.user_attrs.get("sampler_seed"),
        one.user_attrs.get("seconds"),
        failure,
    )


def _name(number: int) -> str:
    return f"trial-{number:04d}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )
