"""What was measured: parts with their settings, their environment and raw rows. All tables and plots are made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from gossamer.record import RecordError, write_atomically
from gossamer.record.files import read_json

__all__ = ["Part", "Results", "Row", "Settings"]

FORMAT = 1

Settings = dict[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """What came of one set of settings, where, and how long it took."""

    settings: Settings
    environment: Mapping[str, Any]
    seconds: float
    rows: list[Row]


@dataclass
class Results:
    """The parts of one table or figure.

    Example:
        >>> results = Results("em-mcmc-table4")
        >>> results.add(Part({"example": 1}, {}, 2.5, [{"mse": 1.1}]))
        >>> results.find({"example": 1}).rows, results.find({"example": 2})
        ([{'mse': 1.1}], None)
    """

    name: str
    parts: list[Part] = field(default_factory=list)

    def find(self, settings: Settings) -> Part | None:
        """The part with exactly these settings, if it was measured."""
        return next((part for part in self.parts if part.settings == settings), None)

    def add(self, part: Part) -> None:
        """Take in a part, in the place of one with the same settings."""
        self.parts = [old for old in self.parts if old.settings != part.settings] + [part]

    def to_json(self) -> str:
        """JSON with a line a row, so that a difference between two files can be read."""
        parts = ",\n ".join(_part_lines(part) for part in self.parts)
        return f'{{"format": {FORMAT}, "name": {json.dumps(self.name)}, "parts": [\n {parts}\n]}}\n'

    def write(self, path: Path) -> None:
        """Write the JSON file, in one move."""
        write_atomically(path, self.to_json())

    @classmethod
    def read(cls, path: Path, name: str | None = None) -> Self:
        """Read a file of :meth:`write`; where ``name`` is given it must be that one's, and may not be there yet."""
        content = read_json(path, "delete it, or give another --out")
        if content is None:
            if name is None:
                raise RecordError(f"{path} does not exist: python -m reproductions NAME makes it")
            return cls(name)
        try:
            found = cls.from_dict(content)
        except (TypeError, ValueError, KeyError) as error:
            raise RecordError(f"{path} is no result of python -m reproductions: {error}") from error
        if name is not None and found.name != name:
            raise RecordError(f"{path} holds {found.name}, not {name}: give another --out")
        return found

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """From the object in the file."""
        if content.get("format") != FORMAT:
            raise ValueError(f"its format is {content.get('format')!r}, this version of gossamer reads {FORMAT}")
        wanted = {item.name for item in fields(Part)}
        for part in content["parts"]:
            if set(part) != wanted:
                raise ValueError(f"a part has {', '.join(sorted(wanted))}; got {', '.join(sorted(part))}")
        return cls(content["name"], [Part(**part) for part in content["parts"]])


def _part_lines(part: Part) -> str:
    head = {key: value for key, value in asdict(part).items() if key != "rows"}
    rows = ",\n  ".join(json.dumps(row) for row in part.rows)
    return f'{json.dumps(head)[:-1]}, "rows": [\n  {rows}]}}'
