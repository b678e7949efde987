"""Results side by side: one table, for the terminal and as Markdown, CSV and JSON."""

from __future__ import annotations

import csv
import io
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gossamer.record import write_atomically
from gossamer.tables import Table

__all__ = ["Comparison", "Entry"]

COLUMNS = {
    "metrics": ("accuracy", "rmse", "nll", "ece", "crps", "brier", "mutual_information", "coverage90"),
    "cost": ("active_parameters", "seconds"),
}


@dataclass(frozen=True)
class Entry:
    """What became of a method: a result a seed, and what went wrong, if anything did."""

    label: str
    results: Sequence[Mapping[str, Any]]
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """Methods side by side, and the folders of their runs.

    Example:
        >>> results = [{"metrics": {"accuracy": 0.90}, "cost": {}}, {"metrics": {"accuracy": 0.94}, "cost": {}}]
        >>> print(Comparison([Entry("ssvi", results), Entry("vi", [], "out of memory")], []).to_text())
        method  seeds  accuracy         failed
        ssvi    2      0.9200 ± 0.0200
        vi      0      -                out of memory
    """

    entries: Sequence[Entry]
    folders: Sequence[Path]

    @property
    def has_failures(self) -> bool:
        """Whether anything went wrong."""
        return any(entry.failure for entry in self.entries)

    def table(self) -> list[dict[str, Any]]:
        """A row an entry: mean and standard error of every metric over the seeds; one seed has no standard error."""
        return [_row(entry) for entry in self.entries]

    def to_text(self) -> str:
        """For the terminal."""
        return self._as_table().to_text()

    def to_markdown(self) -> str:
        """As a Markdown table."""
        return self._as_table().to_markdown()

    def to_csv(self) -> str:
        """As CSV, with the standard errors as columns of their own."""
        rows = self.table()
        file = io.StringIO()
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return file.getvalue()

    def to_json(self) -> str:
        """As JSON; a number that is not finite is null."""
        return (
            json.dumps([{key: _finite(value) for key, value in row.items()} for row in self.table()], indent=1) + "\n"
        )

    def write(self, folder: Path) -> None:
        """``comparison.md``, ``.csv`` and ``.json`` in the folder."""
        for suffix, text in (("md", self.to_markdown()), ("csv", self.to_csv()), ("json", self.to_json())):
            write_atomically(folder / f"comparison.{suffix}", text)

    def _as_table(self) -> Table:
        rows = self.table()
        names = [name for group in COLUMNS.values() for name in group if any(name in row for row in rows)]
        last = ["failed"] if self.has_failures else []
        head = ["method", "seeds", *(name.replace("_", " ") for name in names), *last]
        body = [
            [
                row["method"],
                str(row["seeds"]),
                *(_cell(name, row) for name in names),
                *(row.get(key, "") for key in last),
            ]
            for row in rows
        ]
        return Table("", "", head, body, n_labels=len(head))


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"method": entry.label, "seeds": len(entry.results)}
    for group, names in COLUMNS.items():
        for name in names:
            values = [result[group][name] for result in entry.results if name in result[group]]
            if values:
                row[name] = statistics.fmean(values)
                row[f"{name}_se"] = statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else None
    return row | ({"failed": entry.failure} if entry.failure else {})


def _cell(name: str, row: Mapping[str, Any]) -> str:
    if name not in row:
        return "-"
    mean, error = row[name], row[f"{name}_se"]
    if name == "active_parameters":
        return f"{mean:,.0f}"
    digits = 1 if name == "seconds" else 4
    return f"{mean:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
