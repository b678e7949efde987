"""What a sweep found, in one file beside its runs: ``sweep.json``."""

import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from gossamer.files import schema
from gossamer.files.atomic import RecordError, json_by_rows, read_file, write_atomically
from gossamer.files.schema import Count, Finite, Within
from gossamer.metrics import METRICS

SWEEP = "sweep.json"
FORMAT = 1
FIX = "delete it, and gossamer sweep writes it again"
NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?"
RANGE = re.compile(rf"(log:)?({NUMBER})\.\.({NUMBER})")

State = Literal["finished", "pruned", "failed", "running"]
Value = bool | int | Finite | str | list[Any] | None


@dataclass(frozen=True)
class TrialRecord:
    """A trial: the values it tried, and what the held-out examples say of them."""

    number: Count
    state: State
    folder: str  # of its run, in that of the sweep
    values: dict[str, Value]
    objective: Finite | None  # of a pruned trial, its last one
    epochs: list[list[Finite]]  # pairs of an epoch and the objective of the mean network after it
    seed: Count
    seconds: Annotated[float, Within(0, 1e12)] | None
    failure: str = ""
    sampler_seed: int | None = None  # of earlier versions


@dataclass(frozen=True)
class SweepRecord:
    """A sweep and its trials.

    Example:
        >>> trials = [TrialRecord(i, "finished", f"trial-{i}", {"lr": 0.1}, 0.5 - i / 9, [], 0, 2.0) for i in (0, 1)]
        >>> SweepRecord("first", "ssvi", "digits", "nll", "lower", "median", 2, {"lr": "0..1"}, {}, trials).best.number
        1
    """

    study: str
    method: str
    data: str
    metric: str
    better: Literal["lower", "higher"]
    pruner: str
    asked: Count  # trials in all
    space: dict[str, str]
    importances: dict[str, Annotated[float, Within(0, 1.001)]]  # by searched option; none while too few have finished
    trials: list[TrialRecord]
    command: str = ""  # that trains the best on all training data

    @property
    def best(self) -> TrialRecord | None:
        """The best of the finished trials, the first of equal ones."""
        sign = 1 if self.better == "lower" else -1
        finished = [trial for trial in self.trials if trial.state == "finished" and trial.objective is not None]
        return min(finished, key=lambda trial: (sign * (trial.objective or 0.0), trial.number), default=None)

    def count(self, state: str) -> int:
        """How many trials are in a state."""
        return sum(trial.state == state for trial in self.trials)

    def write(self, folder: Path) -> None:
        """Write ``sweep.json``."""
        write_atomically(folder / SWEEP, json_by_rows({"format": FORMAT, "kind": "sweep"} | asdict(self)))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``sweep.json``; anything else in its place is an error that says what is wrong."""
        path = folder / SWEEP
        content = read_file(path, FIX)
        if content is None:
            raise RecordError(f"{path} does not exist: give the folder of a sweep")
        if (content.pop("kind", None), content.pop("format", None)) != ("sweep", FORMAT):
            raise RecordError(f"{path} is no sweep of format {FORMAT}: upgrade gossamer, or sweep again")
        return cls.made(content, path, FIX)

    @classmethod
    def made(cls, content: dict[str, Any], where: object, fix: str) -> Self:
        """The record of a tree as ``asdict`` gives it, whose fields fit each other."""
        try:
            record = schema.made(cls, content, where, fix)
        except ValueError as error:
            raise RecordError(str(error)) from error
        if problem := next((text for text in _problems(record)), None):
            raise RecordError(f"{where} is broken: {problem}; {fix}")
        return record


def _problems(record: SweepRecord) -> list[str]:
    """Fields that do not fit each other, in words."""
    found = [] if record.metric in METRICS else [f"metric {record.metric:.40} is unknown"]
    found += [f"importances/{name} is not searched" for name in record.importances.keys() - record.space.keys()]
    allowed = {name: _allowed(text) for name, text in record.space.items()}
    for trial in record.trials:
        place = f"trials/{trial.number}"
        found += [] if re.fullmatch(r"\w[\w.-]{0,99}", trial.folder) else [f"{place}/folder is no name of a folder"]
        found += [f"{place}/epochs must be pairs" for pair in trial.epochs if len(pair) != 2]
        found += [
            f"{place}/values/{name} is not in {record.space.get(name, 'the space')}"
            for name, value in trial.values.items()
            if name not in allowed or not allowed[name](value)
        ]
        if trial.state in ("finished", "pruned"):
            found += [f"{place}/values/{name} is missing" for name in record.space.keys() - trial.values.keys()]
    return found


def _allowed(text: str) -> Callable[[Any], bool]:
    """Whether a value is one of those searched: numbers of a range, or any of a list."""
    parts = RANGE.fullmatch(text)
    if parts is None:
        return lambda value: not isinstance(value, str) or value in text.split(",")
    low, high = float(parts[2]), float(parts[3])
    return lambda value: type(value) in (int, float) and low <= value <= high and not (parts[1] and low <= 0)
