"""``comparison.json`` of ``gossamer compare``, the source of tables in documents: what each method and seed reached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self, TypedDict

from gossamer.files import schema
from gossamer.files.atomic import json_by_rows, read_file
from gossamer.lab.record import RecordError, write_atomically

FORMAT = 1
KIND = "trials"
FIX = "give a comparison.json that gossamer compare of this version wrote"


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
    """The trials of a comparison in its order; ``failures`` has the reason for each method that failed."""

    trials: Sequence[Trial]
    environment: Mapping[str, Any]
    failures: Mapping[str, str] = field(default_factory=dict)

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
        """Read a file that ``gossamer compare`` wrote."""
        content = read_file(path, FIX, _Content)
        if content is None:
            raise RecordError(f"{path} does not exist: gossamer compare … makes it, as comparison.json")
        return cls.from_dict(content)
