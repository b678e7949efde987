"""Tables of the page on reliability: attacks, changed files and a sweep with kills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer._text.formats import integer
from gossamer._text.terminal import Table

__all__ = ["KINDS", "reliability_tables"]

ATTACKS, MUTATIONS, SWEEP = "attacks", "mutations", "sweep-kills"  # files that ``make endurance`` writes
KINDS = (ATTACKS, MUTATIONS, SWEEP)


def reliability_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of one stored file, by its kind."""
    kind = content["kind"]
    if kind == ATTACKS:
        return {kind: _counts("attack", ("tries", "lost", "wrong"), content["rows"])}
    if kind == MUTATIONS:
        named = [{"file": row["kind"], **row} for row in content["rows"]]
        return {kind: _counts("file", ("tried", "loaded", "refused", "other"), named)}
    return {kind: _sweep(content)}


def _counts(label: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Counts by row, and their sums."""
    cells = [[str(row[label]), *(integer(row[name]) for name in columns)] for row in rows]
    return Table("", "", (label, *columns), [*cells, ["all", *(integer(sum(row[c] for row in rows)) for c in columns)]])


def _sweep(content: Mapping[str, Any]) -> Table:
    columns = ("asked", "finished", "pruned", "failed", "killed", "lost", "duplicated", "compared", "differing")
    cells = [str(content["processes"]), str(len(content["kills"])), *(integer(content[name]) for name in columns)]
    return Table("", "", ("processes", "kills", *columns), [cells], n_labels=0)
