"""A comparison in one small file to keep, the source of tables in documents: what each method reached with each seed.

It holds no curves, no examples, and of the environment only what numbers depend on: no machine, folder or user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from gossamer.record import RecordError, Run, write_atomically
from gossamer.record.files import json_by_rows, read_json, rows_of
from gossamer.runs.comparison import Comparison

FORMAT = 1
KIND = "trials"
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
        if (content.get("kind"), content.get("format")) != (KIND, FORMAT):
            found = f"{content.get('kind')!r}, format {content.get('format')!r}"
            raise ValueError(f"its kind is {found}; this version of gossamer reads {KIND!r}, format {FORMAT}")
        return cls(rows_of(Trial, content["trials"]), content["environment"], content["failures"])

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file that ``gossamer compare --json`` wrote."""
        content = read_json(path, "give a file that gossamer compare --json wrote")
        if content is None:
            raise RecordError(f"{path} does not exist: gossamer compare … --json {path} makes it")
        try:
            return cls.from_dict(content)
        except (ValueError, KeyError) as error:
            raise RecordError(f"{path} is no comparison: {error}") from error


def _trial(label: str, run: Run) -> Trial:
    result = run.result()
    if result is None:
        raise RecordError(f"{run.folder} is not finished: gossamer train --resume {run.folder} continues it")
    told = {"model": result["model"]} | run.config  # the settings may leave the choice of the network to the data
    settings = {key: told.get(key) for key in FROM_CONFIG}
    cost = {key: result["cost"][key] for key in FROM_COST if key in result["cost"]}  # fewer in an earlier version
    return Trial(label, run.config["seed"], settings, result["metrics"], cost)


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
