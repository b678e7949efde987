"""A search for good options by Optuna: any number of processes take trials from one study, and each trial is a run.

The run folder is what is continued after a kill, and its lock is the sign of life: the system releases it when the
process ends, however that happens. Optuna has no trial that goes on after a kill, so one that was cut short is followed
by another *try* with its values, in its folder. A trial keeps its place, and is neither lost nor counted twice.
"""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from gossamer import data
from gossamer._text.formats import number, plain
from gossamer._text.names import file_name, needs, own_code, trusting, unknown
from gossamer.data import fingerprint
from gossamer.files.atomic import one_line
from gossamer.lab.record import Lock, RecordError, Run, TakenError
from gossamer.lab.runs.folders import refuse_other_settings
from gossamer.lab.runs.progress import Interrupted, SeenEnough
from gossamer.lab.runs.settings import CHECKPOINT_SECONDS, Settings, prepared
from gossamer.metrics import METRICS
from gossamer.train.divergence import DivergenceError
from gossamer.types import Task
from gossamer_sweep.record import State, SweepRecord, TrialRecord
from gossamer_sweep.space import Space, command_of, with_values

if TYPE_CHECKING:
    import optuna

Pruner = Literal["none", "median", "hyperband"]
TRIALS = 30
EVERY_EPOCH = ("nll", "accuracy", "rmse")  # what the record of a run has of each epoch
STUDY = "study.journal"
WAY_ON = "give the same command again: trials that were begun are continued"


def sweep(
    settings: Settings,
    space: Space,
    study: str,
    out: Path | str | None = None,
    *,
    trials: int = TRIALS,
    metric: str = "nll",
    pruner: Pruner = "median",
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> SweepRecord:
    """Take trials from a study until there are as many as were asked for, and train each as a run.

    Any number of processes may do this at once with the same arguments and folder. First they continue trials that a
    killed process has left, from the checkpoint of the run. The objective is a metric of the held-out examples.

    Args:
        settings: Method, data and everything else that all trials share.
        space: What differs between them, from :func:`gossamer_sweep.space.read_space`.
        study: Name of the study, the same for all processes; a folder holds one.
        out: Folder of the sweep, where each trial has a run folder; ``runs/<study>`` if not given.
        trials: How many trials in all, not per process.
        metric: What to optimise: a metric of the held-out examples.
        pruner: How trials that look bad are stopped early, by the metric after each epoch.
        checkpoint_seconds: Seconds between checkpoints of a run, which a killed process may lose.
        quiet: Show no progress.
        say: Called with what is being trained, as text.

    Example:
        >>> import tempfile
        >>> from gossamer_sweep.space import read_space
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
    if (folder / "config.toml").exists():
        raise RecordError(f"{folder} is the folder of a run: a sweep needs one of its own, give another --out")
    with trusting(*own_code(settings.to_config()), *own_code([str(values) for values in space.values()])):
        settings = replace(settings, calibrate=False)  # held-out examples judge a trial, and fit nothing
        settings, task = prepared(settings)
        _check(settings, task, metric, pruner)
        opened = opened_study(folder, study, metric, pruner, settings.epochs or 1)
        way = {"quiet": quiet, "checkpoint_seconds": checkpoint_seconds}
        part = _Part(opened, folder, settings, space, trials, metric, pruner, way, say)
        part.agree(fingerprint(task))
        try:
            while part.train_next():
                part.write()
        except KeyboardInterrupt:
            raise Interrupted(folder, WAY_ON) from None
        return part.write(with_importances=True)


@dataclass(frozen=True)
class _Part:
    """The part of one process in a sweep."""

    study: optuna.Study
    folder: Path
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
        asked = {key: value for key, value in config.items() if key not in free} | config["options"]
        asked |= {f"search {name}": str(values) for name, values in self.space.items()} | {"metric": self.metric}
        asked |= {"data": self.settings.data_name} | {f"data ({name})": print_ for name, print_ in prints.items()}
        if "plan" not in self.study.user_attrs:
            self.study.set_user_attr("plan", asked)
        known = self.study.user_attrs["plan"]
        if not isinstance(known, dict):
            raise RecordError(f"the study {self.study.study_name} was not made by gossamer: give another --study")
        for key in known | asked:
            if known.get(key) != asked.get(key):
                raise RecordError(
                    f"the study {self.study.study_name} has {key} {known.get(key)!s:.40}, not {asked.get(key)}: give "
                    "all its processes the same command, or another --study"
                )

    def train_next(self) -> bool:
        """Train the next trial, or go on with one that has no process; false where there is none."""
        with contextlib.ExitStack() as held:  # the lock on its folder, until the study knows the end
            taken = self._take(held)
            if taken is not None:
                self._train(*taken)
        return taken is not None

    def _take(self, held: contextlib.ExitStack) -> tuple[int, optuna.Trial, Lock] | None:
        """A trial with its place and its lock; one process after the other looks for one."""
        with waited(self.folder):
            self._queue_again()
            tries = self._tries()
            queued = (place for place, some in tries.items() if some[-1].state.name == "WAITING")
            place = next(queued, len(tries))
            if place >= max(self.trials, len(tries)):
                return None
            # What a trial tries depends on the seed, its place and the trials before.
            self.study.sampler = _sampler(int(np.random.SeedSequence([self.settings.seed, place]).generate_state(1)[0]))
            trial = self.study.ask({name: one.distribution for name, one in self.space.items()})
            return place, trial, held.enter_context(Lock(self.folder / _name(place)))

    def _queue_again(self) -> None:
        """Queue another try of each trial that has neither an end nor a process."""
        from optuna.trial import TrialState

        for place, tries in self._tries().items():
            last = tries[-1]
            if last.state not in (TrialState.RUNNING, TrialState.FAIL) or "failure" in last.user_attrs:
                continue
            with contextlib.suppress(TakenError), Lock(self.folder / _name(place)):
                if last.state == TrialState.RUNNING:
                    self.study.tell(last.number, state=TrialState.FAIL)
                params = next((one.params for one in reversed(tries) if one.params), {})
                self.study.enqueue_trial(params, user_attrs={"continues": tries[0].number})

    def _tries(self) -> dict[int, list[optuna.trial.FrozenTrial]]:
        """The tries of each trial, by its place among all trials."""
        tries: dict[int, list[optuna.trial.FrozenTrial]] = {}
        for one in self.study.get_trials(deepcopy=False):
            tries.setdefault(one.user_attrs.get("continues", one.number), []).append(one)
        return dict(enumerate(tries.values()))

    def _train(self, place: int, trial: optuna.Trial, lock: Lock) -> None:
        """Train the run of a trial, or continue it, and tell the study how that ended."""
        import optuna
        from optuna.trial import TrialState

        objective, state = None, TrialState.COMPLETE
        try:
            objective = self._objective(trial, lock)
        except SeenEnough:
            state = TrialState.PRUNED
        except Interrupted:
            raise Interrupted(self.folder, WAY_ON) from None
        except (RecordError, OSError, optuna.exceptions.OptunaError):  # no fault of the values
            raise
        except Exception as error:
            kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
            trial.set_user_attr("failure", kind + one_line(error))
            # The sampler learns from pruned trials, but not from failed ones.
            state = TrialState.PRUNED if isinstance(error, DivergenceError) else TrialState.FAIL
        rows = Run.open(lock.folder).metrics() if (lock.folder / "config.toml").exists() else []
        trial.set_user_attr("seconds", rows[-1]["seconds"] if rows else 0.0)
        self.study.tell(trial, objective, state)
        self._say_end(place)

    def _objective(self, trial: optuna.Trial, lock: Lock) -> float:
        from gossamer.lab.runs.evaluation import evaluate_run
        from gossamer.lab.runs.job import resume, train

        values = {name: self.space[name].value(kept) for name, kept in trial.params.items()}
        folder, settings = lock.folder, with_values(self.settings, values)
        trial.set_user_attr("seed", settings.seed)
        self.say(f"{folder.name}: {_values(trial.params)}")
        has_begun, seen = (folder / "config.toml").exists(), set[int]()

        def watch(row: Mapping[str, Any]) -> bool:
            if row["epoch"] not in seen:  # epochs after the last checkpoint come again
                trial.report(row[f"val_{self.metric}"], row["epoch"])
                seen.add(row["epoch"])
            return not trial.should_prune()

        watching: dict[str, Any] = {} if self.pruner == "none" else {"watch": watch}
        if has_begun:
            run = Run.open(folder)
            refuse_other_settings(folder, replace(settings, data=run.config["data"]))
            goes_on = [watch(row) for row in run.metrics()] if watching else []
            if goes_on and not goes_on[-1]:  # its process had found that, and could not say it
                raise SeenEnough(folder)
            # The data may have another path on another machine.
            resume(folder, data=settings.data, lock=lock, **self.way, **watching)
        else:
            train(settings, folder, lock=lock, **self.way, **watching)
        objective = evaluate_run(folder, split="val", quiet=self.way["quiet"])[self.metric]
        if not np.isfinite(objective):
            raise DivergenceError(f"{self.metric} of the held-out examples is {objective}")
        return objective

    def _say_end(self, place: int) -> None:
        """Say what a trial has reached, and which is the best so far."""
        record = self.record()
        trial, best = next(one for one in record.trials if one.number == place), record.best
        reached = "" if trial.objective is None else f"{self.metric} {plain(number(trial.objective))}"
        said = {"finished": reached, "pruned": f"pruned at {reached}", "failed": f"failed: {trial.failure}"}
        if trial.state not in said:
            return
        text = said[trial.state]
        if best is not None:
            other = f"best: {plain(number(best.objective or 0.0))}, {best.folder}"
            text += "; the best so far" if best.number == place else f"; {other}"
        self.say(f"{trial.folder}: {text}")

    def record(self) -> SweepRecord:
        """All trials of the study as they are now."""
        record = SweepRecord(
            self.study.study_name,
            self.settings.method,
            self.settings.data_name,
            self.metric,
            "higher" if METRICS[self.metric].better == "higher" else "lower",
            self.pruner,
            self.trials,
            {name: str(values) for name, values in self.space.items()},
            {},
            [_record(place, tries[-1], self.space) for place, tries in self._tries().items()],
        )
        return SweepRecord.made(asdict(record), f"the study {record.study}", "give another --study")

    def write(self, with_importances: bool = False) -> SweepRecord:
        """Write ``sweep.json``: one process after the other, so that the last one writes the newest state."""
        importances = _importances(self.study) if with_importances else {}
        with waited(self.folder):
            record = replace(self.record(), importances=importances)
            if record.best is not None:
                record = replace(record, command=_command(self.settings, record.best.values))
            record.write(self.folder)
        return record


def _record(place: int, last: optuna.trial.FrozenTrial, space: Space) -> TrialRecord:
    from optuna.trial import TrialState

    states: dict[TrialState, State] = {TrialState.COMPLETE: "finished", TrialState.PRUNED: "pruned"}
    failure = str(last.user_attrs.get("failure", ""))
    try:
        values = {name: space[name].value(kept) for name, kept in last.params.items() if name in space}
        epochs = [[epoch, value] for epoch, value in sorted(last.intermediate_values.items()) if np.isfinite(value)]
    except (ValueError, TypeError, ArithmeticError) as error:
        raise RecordError(f"the study has values that were not searched: {one_line(error)}") from error
    return TrialRecord(
        place,
        "failed" if failure else states.get(last.state, "running"),
        _name(place),
        values,
        None if failure or last.state not in states else last.value,
        epochs,
        last.user_attrs.get("seed", 0),
        last.user_attrs.get("seconds"),
        failure,
    )


def _name(place: int) -> str:
    return f"trial-{place:04d}"


def _values(values: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in values.items()
    )


def _command(settings: Settings, values: Mapping[str, Any]) -> str:
    """The command that trains these values on all data, where the data set has no fixed split."""
    n_val = 0 if "n_val" in data.options_of(settings.data) else None
    settings = replace(with_values(settings, values), n_train=None, n_val=n_val, calibrate=True)
    return command_of(settings, always=values.keys())


def _check(settings: Settings, task: Task, metric: str, pruner: str) -> None:
    """Reject what no trial could do, before the first of them."""
    from gossamer.lab.runs.job import start
    from gossamer.lab.runs.progress import launch

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


@contextlib.contextmanager
def waited(folder: Path) -> Iterator[None]:
    """The lock on the folder of the sweep, as soon as it is free: it is held for moments."""
    for _ in range(600):
        with contextlib.suppress(TakenError), Lock(folder):
            yield
            return
        time.sleep(0.1)
    raise RecordError(f"{folder / '.lock'} has been held for a minute: is a process of the sweep stopped?")


def opened_study(folder: Path, name: str, metric: str, pruner: str, epochs: int) -> optuna.Study:
    """The study in its file, which grows by lines and may lie on a network; made if there is none."""
    import optuna
    from optuna.storages import JournalStorage, journal

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    path = folder / STUDY
    with waited(folder):  # two processes that make it at once would make two
        if path.exists() and not path.is_file():
            raise RecordError(f"{path} is not a file: remove it, or give another --out")
        try:
            storage = JournalStorage(journal.JournalFileBackend(str(path)))
            others = set(optuna.get_all_study_names(storage)) - {name}
            study = optuna.create_study(
                storage=storage,
                sampler=_sampler(0),
                pruner=_pruner(pruner, epochs),
                study_name=name,
                direction="maximize" if METRICS[metric].better == "higher" else "minimize",
                load_if_exists=True,
            )
        except Exception as error:  # lines that are no records of Optuna may raise anything
            reason = f"{type(error).__name__}: {one_line(error)[:200]}"
            raise RecordError(f"{path} is broken ({reason}): restore it, or give another --out") from error
    if others:
        raise RecordError(f"{folder} holds the study {min(others)}, not {name}: give another --out")
    return study


def _sampler(seed: int) -> optuna.samplers.BaseSampler:
    """Tree-structured Parzen estimators; trials that are being trained count as bad, so that others look elsewhere."""
    import optuna

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return optuna.samplers.TPESampler(seed=seed, constant_liar=True)


def _pruner(name: str, epochs: int) -> optuna.pruners.BasePruner:
    from optuna import pruners

    if name == "median":  # worse than the median of five trials or more at the same epoch, after a tenth of the epochs
        return pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=epochs // 10)
    if name == "hyperband":
        return pruners.HyperbandPruner(min_resource=max(1, epochs // 27), max_resource=epochs, reduction_factor=3)
    return pruners.NopPruner()


def _importances(study: optuna.Study) -> dict[str, float]:
    """Shares of the variance of the objective (fANOVA); none if there are too few trials or all are alike."""
    import optuna

    finished = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
    if len(finished) < 4 or len({one.value for one in finished}) < 2:
        return {}
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return {name: float(share) for name, share in shares.items()}
