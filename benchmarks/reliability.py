"""Tables of the page on reliability: attacks, changed files, bytes between ranks, scaling and a sweep with kills."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import ranks
from gossamer._text.formats import integer, percent
from gossamer._text.tables import Table

__all__ = ["KINDS", "reliability_tables"]

ATTACKS, MUTATIONS, SWEEP = "attacks", "mutations", "sweep-kills"  # files that ``make endurance`` writes
KINDS = (ATTACKS, MUTATIONS, SWEEP, ranks.KIND)


def reliability_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """The tables of one stored file, by its kind."""
    kind = content["kind"]
    if kind == ATTACKS:
        return {kind: _counts("attack", ("tries", "lost", "wrong"), content["rows"])}
    if kind == MUTATIONS:
        named = [{"file": row["kind"], **row} for row in content["rows"]]
        return {kind: _counts("file", ("tried", "loaded", "refused", "other"), named)}
    if kind == SWEEP:
        return {kind: _sweep(content)}
    return {"ranks-traffic": _traffic(content["traffic"]), "ranks-scaling": _scaling(content["scaling"])}


def _counts(label: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Table:
    """Counts by row, and their sums.

    Example:
        >>> _counts("attack", ("tries",), [{"attack": "a", "tries": 2}, {"attack": "b", "tries": 3}]).rows[-1]
        ['all', '5']
    """
    cells = [[str(row[label]), *(integer(row[name]) for name in columns)] for row in rows]
    return Table("", "", (label, *columns), [*cells, ["all", *(integer(sum(row[c] for row in rows)) for c in columns)]])


def _traffic(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("network", "processes", "bytes per step", "bytes per update", "updates", "all bytes, of dense VI's")
    cells = [
        [
            row["case"],
            integer(row["ranks"]),
            integer(row["bytes_per_step"]),
            "–" if row["bytes_per_update"] is None else integer(round(row["bytes_per_update"])),
            integer(row["updates"]),
            percent(row["share_of_dense_vi"]),
        ]
        for row in rows
    ]
    return Table("", "", head, cells)


def _scaling(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("network", "processes", "examples per second", "least … most", "rounds", "efficiency", "CPU ms per step")
    cells = [
        [
            row["case"],
            integer(row["processes"]),
            integer(round(row["examples_per_second"])),
            f"{integer(round(row['least']))} … {integer(round(row['most']))}",
            integer(row["rounds"]),
            percent(row["efficiency"]),
            f"{1e3 * row['cpu_seconds_per_step']:.1f}",
        ]
        for row in rows
    ]
    return Table("", "", head, cells)


def _sweep(content: Mapping[str, Any]) -> Table:
    columns = ("asked", "finished", "pruned", "failed", "killed", "lost", "duplicated", "compared", "differing")
    cells = [str(content["processes"]), str(len(content["kills"])), *(integer(content[name]) for name in columns)]
    return Table("", "", ("processes", "kills", *columns), [cells], n_labels=0)
