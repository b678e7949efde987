"""What a sweep found, in one file beside its runs: ``sweep.json``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from gossamer.files import schema
from gossamer.files.atomic import RecordError, json_by_rows, read_file, write_atomically

SWEEP = "sweep.json"
FORMAT = 1
FIX = "delete it, and gossamer sweep writes it again"


@dataclass(frozen=True)
class TrialRecord:
    """A trial: the values it tried, and what the held-out examples say of them."""

    number: int
    state: str  # "finished", "pruned", "failed" or "running"
    folder: str  # of its run, in that of the sweep
    values: Mapping[str, Any]
    objective: float | None  # of a pruned trial, its last one
    epochs: Sequence[Sequence[float]]  # pairs of an epoch and the objective of the mean network after it
    seed: int
    sampler_seed: int | None
    seconds: float | None
    failure: str = ""


@dataclass(frozen=True)
class SweepRecord:
    """A sweep and its trials.

    Example:
        >>> trials = [TrialRecord(i, "finished", f"trial-{i}", {"lr": 0.1}, 0.5 - i / 9, [], 0, 1, 2.0) for i in (0, 1)]
        >>> SweepRecord("first", "ssvi", "digits", "nll", "lower", "median", 2, {"lr": "0..1"}, {}, trials).best.number
        1
    """

    study: str
    method: str
    data: str
    metric: str
    better: str  # "lower" or "higher"
    pruner: str
    asked: int  # trials in all
    space: Mapping[str, str]
    importances: Mapping[str, float]  # shares by searched option; none while too few trials have finished
    trials: list[TrialRecord]
    command: str = ""  # that trains the best on all training data

    @property
    def best(self) -> TrialRecord | None:
        """The best of the finished trials, the first of equal ones."""
        sign = 1 if self.better == "lower" else -1
        found = [trial for trial in self.trials if trial.state == "finished" and trial.objective is not None]
        return min(found, key=lambda trial: (sign * (trial.objective or 0.0), trial.number), default=None)

    def count(self, state: str) -> int:
        """How many trials are in a state."""
        return sum(trial.state == state for trial in self.trials)

    def write(self, folder: Path) -> None:
        """Write ``sweep.json``."""
        content = {"format": FORMAT, "kind": "sweep"} | {**vars(self), "trials": [asdict(one) for one in self.trials]}
        write_atomically(folder / SWEEP, json_by_rows(content))

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Read ``sweep.json``; anything else in its place is an error that says what is wrong."""
        path = folder / SWEEP
        content = read_file(path, FIX)
        if content is None:
            raise RecordError(f"{path} does not exist: give the folder of a sweep")
        if (content.pop("kind", None), content.pop("format", None)) != ("sweep", FORMAT):
            raise RecordError(f"{path} is no sweep of format {FORMAT}: upgrade gossamer, or sweep again")
        try:
            return schema.made(cls, content, path, FIX)
        except ValueError as error:
            raise RecordError(str(error)) from error
