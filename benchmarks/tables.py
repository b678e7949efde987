"""Results as tables, for a terminal and for Markdown. No cell is made anywhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks import cells
from benchmarks.bars import judge
from benchmarks.layers import FORWARD, TRAINING
from benchmarks.results import DENSE, MASKED, PLAIN, Footprint, Results, Timing, density_of, sparse
from benchmarks.rivals import CSR, SPARSEPROP
from benchmarks.training_tables import TRAINING_TABLES
from gossamer.tables import Table

__all__ = ["TABLES", "all_tables"]

MISSING = "–"


def all_tables(results: Results) -> dict[str, Table]:
    """Every table that the results have rows for, by name.

    Example:
        >>> row = Timing("MLP", "network", "training step", 8, {DENSE: [9.0], PLAIN: [4.0], "sparse 0.05": [2.0]})
        >>> print(all_tables(Results("cpu", 1, {}, networks=[row]))["networks"].to_markdown(), end="")
        | network | work | batch | dense LRT | deterministic | 5 % |
        | --- | --- | ---: | ---: | ---: | ---: |
        | MLP | training step | 8 | 9.00 ms | 2.2x | 4.5x [4.5–4.5] (2.0x) |
    """
    made = {name: make(results) for name, make in (TRAINING_TABLES | TABLES).items()}
    return {name: table for name, table in made.items() if table.rows}


GAINS = "Times faster than dense LRT: median [quartiles] over rounds; (median over the deterministic one)."


def _layers(work: str) -> Callable[[Results], Table]:
    def table(results: Results) -> Table:
        rows = [row for row in results.layers if row.work == work]
        return _timings(f"Layers, {work}", ["layer", "batch"], rows, lambda row: [row.subject, str(row.batch)])

    return table


def _networks(results: Results) -> Table:
    names = ["network", "work", "batch"]
    return _timings("Networks", names, results.networks, lambda row: [row.subject, row.work, str(row.batch)])


def _timings(title: str, names: list[str], rows: Sequence[Timing], label: Callable[[Timing], list[str]]) -> Table:
    """A row each: milliseconds of dense LRT, and how many times faster the other ways are."""
    others = [way for way in (MASKED, PLAIN) if any(way in row.ms for row in rows)]
    ways = _ways(rows, "sparse")
    head = [*names, DENSE, *others, *(cells.percent(density_of(way)) for way in ways)]

    def line(row: Timing) -> list[str]:
        beside = [cells.times(row.speedup(way).median) if way in row.ms else MISSING for way in others]
        return [*label(row), cells.milliseconds(row.median(DENSE)), *beside, *(_gain(row, way) for way in ways)]

    body = [line(row) for row in rows]
    return Table(title, GAINS, head, body, len(names) - 1)


def _rivals(results: Results) -> Table:
    """Ours beside the rivals, at the densities at which they were timed."""
    kinds = (CSR, SPARSEPROP)
    rows = [row for row in results.layers if any(way.startswith(kinds) for way in row.ms)]
    densities = sorted({density_of(way) for kind in kinds for way in _ways(rows, kind)}, reverse=True)
    names = {sparse(d, kind): f"{kind} {cells.percent(d)}" for d in densities for kind in ("sparse", *kinds)}
    columns = {way: name.replace("sparse", "ours") for way, name in names.items() if any(way in row.ms for row in rows)}
    body = [[row.subject, row.work, str(row.batch), *(_gain(row, way, None) for way in columns)] for row in rows]
    note = (
        "Times faster than dense LRT. Ours and torch CSR compute two products and noise, SparseProp one product; "
        "a rival that gives a wrong answer or none is left out."
    )
    return Table("Rivals", note, ["layer", "work", "batch", *columns.values()], body, 2)


def _memory(results: Results) -> Table:
    columns: dict[str, Callable[[Footprint], float]] = {
        "parameters, gradients, momentum": lambda row: row.training_bytes,
        "indices or mask": lambda row: row.index_bytes,
        "checkpoint": lambda row: row.checkpoint_bytes,
        "model file": lambda row: row.model_bytes,
        "peak of training": lambda row: row.peak,
    }
    dense = {row.subject: row for row in results.memory if row.way == DENSE}

    def line(row: Footprint) -> list[str]:
        other = dense.get(row.subject)
        return [
            row.subject,
            _way(row.way),
            *(cells.megabytes(of(row), None if other is None else of(other)) for of in columns.values()),
        ]

    note = "MB (a million bytes), in brackets the share of dense LRT. The peak is above the process after its imports."
    return Table("Memory", note, ["network", "way", *columns], [line(row) for row in results.memory], 2)


def _updates(results: Results) -> Table:
    head = ["network", "batch", "density", "step", "update", "share of training"]
    body = [
        [
            row.subject,
            str(row.batch),
            cells.percent(row.density),
            cells.milliseconds(median(row.ordinary_ms)),
            cells.milliseconds(median(row.extra_ms)),
            cells.figure(row.share, "%"),
        ]
        for row in results.updates
    ]
    note = "An update beyond an ordinary step, indices rebuilt; its share where there is one every 100 steps."
    return Table("Updates of the subspace", note, head, body)


def _bars(results: Results) -> Table:
    """The bars of which something was measured."""
    verdicts = [verdict for verdict in judge(results) if verdict.met is not None]
    body = [[v.bar.what, cells.must(v.bar), cells.found(v), "pass" if v.met else "FAIL"] for v in verdicts]
    n_met, n_rest = sum(verdict.met is True for verdict in verdicts), len(judge(results)) - len(verdicts)
    rest = f", {n_rest} were not measured here" if n_rest else ""
    note = f"{n_met} of {len(verdicts)} bars are met{rest}; a bar is judged by its median."
    return Table("Bars", note, ["bar", "must be", "measured", ""], body)


TABLES: dict[str, Callable[[Results], Table]] = {
    "layers-forward": _layers(FORWARD),
    "layers-training": _layers(TRAINING),
    "rivals": _rivals,
    "networks": _networks,
    "memory": _memory,
    "updates": _updates,
    "bars": _bars,
}


def _ways(rows: Sequence[Timing], kind: str) -> list[str]:
    """The ways of a kind that any row has, the densest first."""
    found = {way for row in rows for way in row.ms if way.startswith(kind)}
    return sorted(found, key=lambda way: -density_of(way))


def _gain(row: Timing, way: str, over: str | None = PLAIN) -> str:
    """Over dense LRT and, in brackets, over another way."""
    if way not in row.ms:
        return MISSING
    text = cells.spread_of(row.speedup(way))
    return f"{text} ({cells.times(row.speedup(way, over).median)})" if over is not None and over in row.ms else text


def _way(way: str) -> str:
    return f"sparse {cells.percent(density_of(way))}" if way.startswith("sparse") else way
