"""A comparison in one small file to keep, the source of tables in documents: what each method reached with each seed.

It holds no curves, no examples, and of the environment only what numbers depend on: no machine, folder or user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from gossamer.files import schema
from gossamer.files.atomic import checked, json_by_rows, read_file
from gossamer.lab.record import RecordError, Run, write_atomically
from gossamer.lab.record.contents import CONFIG
from gossamer.lab.runs.comparison import Comparison
from gossamer.lab.runs.stored import stored_result

FORMAT = 1
KIND = "trials"
FIX = "give a file that gossamer compare --json of this version wrote"
FROM_CONFIG = ("method", "data", "model", "epochs", "batch_size", "n_train", "n_draws", "options")
FROM_COST = (
    "active_parameters",
    "total_parameters",
    "checkpoint_bytes",
    "parameter_bytes",
    "training_macs",
    "seconds",
    "peak_memory_bytes",
    "prediction_seconds",
)
FROM_ENVIRONMENT = ("python", "versions", "cpu", "cpu_count", "gpu")


@dataclass(frozen=True)
class Trial:
    """One method with one seed: its settings and what it reached."""

    label: str
    seed: int
    settings: Mapping[str, Any]
    metrics: Mapping[str, float]
    cost: Mapping[str, float]


class _Content(TypedDict):
    """Of the file."""

    format: Literal[1]
    kind: Literal["trials"]
    environment: dict[str, Any]
    failures: dict[str, str]
    trials: list[Trial]


@dataclass(frozen=True)
class Trials:
    """The trials of a comparison in its order; ``failures`` has the reason for each method that failed.

    Example:
        >>> trials = Trials([Trial("ssvi", 0, {"epochs": 2}, {"accuracy": 0.9}, {})], {"python": "3.11.7"})
        >>> import json
        >>> Trials.from_dict(json.loads(trials.to_json())) == trials
        True
    """

    trials: Sequence[Trial]
    environment: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, comparison: Comparison) -> Self:
        """From the comparison and the folders of its runs."""
        labels = [entry.label for entry in comparison.entries for _ in entry.results]
        runs = [Run.open(folder) for folder in comparison.folders]
        trials = [_trial(label, run) for label, run in zip(labels, runs, strict=True)]
        failures = {entry.label: entry.failure for entry in comparison.entries if entry.failure}
        return cls(trials, _common_environment(runs), failures)

    def by_label(self) -> dict[str, list[Trial]]:
        """The trials of each method, in the order of the comparison; none for a method whose runs all failed."""
        labels = dict.fromkeys([*(trial.label for trial in self.trials), *self.failures])
        return {label: [trial for trial in self.trials if trial.label == label] for label in labels}

    def to_json(self) -> str:
        """JSON with one line per trial, so that a diff of two files can be read."""
        head = {"format": FORMAT, "kind": KIND, "environment": self.environment, "failures": self.failures}
        return json_by_rows(head | {"trials": [asdict(trial) for trial in self.trials]})

    def write(self, path: Path) -> None:
        """Write the JSON file, in one move."""
        write_atomically(path, self.to_json())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """From the object that :meth:`to_json` writes; anything else is a ``ValueError`` that says what is wrong."""
        schema.check(content, _Content, "this comparison", FIX)
        return cls([Trial(**row) for row in content["trials"]], content["environment"], content["failures"])

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that ``gossamer compare --json`` wrote."""
        content = read_file(path, FIX, _Content)
        if content is None:
            raise RecordError(f"{path} does not exist: gossamer compare … --json {path} makes it")
        return cls.from_dict(content)


def _trial(label: str, run: Run) -> Trial:
    result = stored_result(run)
    if result is None:
        raise RecordError(f"{run.folder} is not finished: gossamer train --resume {run.folder} continues it")
    told = {"model": result["model"]} | run.config  # the settings may leave the choice of the network to the data
    settings = {key: told.get(key) for key in FROM_CONFIG}
    cost = {key: result["cost"].get(key) for key in FROM_COST}  # fewer in an earlier version
    seed = checked(run.config.get("seed"), int, f"{run.folder / CONFIG}: seed", "restore the file")
    return Trial(label, seed, settings, _measured(result["metrics"]), _measured(cost))


def _measured(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _common_environment(runs: Sequence[Run]) -> dict[str, Any]:
    """The environment shared by all runs, dated by the latest; values that differ become a list."""
    if not runs:
        return {}
    common = {key: _agreed([run.environment.get(key) for run in runs]) for key in FROM_ENVIRONMENT}
    days = [run.environment.get("time", "")[:10] for run in runs]
    return {"date": max(days)} | {key: value for key, value in common.items() if value is not None}


def _agreed(values: Sequence[Any]) -> Any:
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    return distinct[0] if len(distinct) == 1 else distinct
