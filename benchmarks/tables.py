"""Measurements as tables, for a terminal and for Markdown. All cells are made here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from benchmarks import cells
from benchmarks.bars import judge
from benchmarks.layers import FORWARD, TRAINING
from benchmarks.measurements import (
    DENSE,
    EXAMPLES,
    GRADIENT,
    MASKED,
    PLAIN,
    RELEASED,
    VI,
    Footprint,
    Measurements,
    Timing,
    TrainingCost,
    density_of,
    sparse,
)
from benchmarks.rivals import CSR, SPARSEPROP
from benchmarks.timing import speedup, spread
from gossamer._text.terminal import Table

__all__ = ["TABLES", "TRAINING_TABLES", "all_tables"]


def _steps(results: Measurements) -> Table:
    head = ["training", "batch", "step", "epoch", "images/s", f"over {RELEASED}", f"times {PLAIN}", "set-up"]

    def line(row: TrainingCost) -> list[str]:
        slow, plain = _beside(results, row, RELEASED), _beside(results, row, PLAIN)
        return [
            row.way,
            str(row.batch),
            cells.figure(spread(row.ms), "ms"),
            f"{row.epoch_seconds:.2f} s",
            f"{row.images_per_second:,.0f}",
            MISSING if slow is None else cells.spread_of(speedup(slow.ms, row.ms)),
            MISSING if plain is None else cells.figure(speedup(row.ms, plain.ms), "cost"),
            f"{row.setup_seconds:.1f} s",
        ]

    note = (
        f"A step: median [quartiles] over rounds; an epoch of {EXAMPLES:,} images with its updates of the subspace, "
        f"but not the few milliseconds of its shuffling and augmenting; how many times faster than the {RELEASED}, and "
        f"how many times as long as the {PLAIN} network, round by round."
    )
    return Table(f"Training steps, {_subjects(results)}", note, head, [line(row) for row in results.training])


def _state(results: Measurements) -> Table:
    columns: dict[str, Callable[[TrainingCost], float]] = {
        "parameters, gradients, momentum": lambda row: row.training_bytes,
        "checkpoint": lambda row: row.checkpoint_bytes,
        "working copy or masks": lambda row: row.working_bytes,
        "peak, set-up included": lambda row: row.peak_bytes,
        "held in training": lambda row: row.held_bytes,
    }

    def line(row: TrainingCost) -> list[str]:
        dense = _beside(results, row, VI)
        return [row.way, *(cells.megabytes(of(row), of(dense) if dense else None) for of in columns.values())]

    note = (
        f"MB (a million bytes), in brackets the share of {VI}. The peak is of tensors (max_memory_allocated), from "
        "before there was a network to the end of the first updates; held is what training then takes from the device "
        "(max_memory_reserved), captured graphs and an epoch of augmented images included. Both are above what the "
        "process held before, which is the data and the other ways to train."
    )
    return Table("Memory on the GPU", note, ["training", *columns], [line(row) for row in results.training])


def _moves(results: Measurements) -> Table:
    body = [
        [
            row.way,
            cells.milliseconds(median(row.ms)),
            cells.figure(spread(row.update_ms), "ms"),
            cells.figure(row.update_share, "%"),
        ]
        for row in results.training
        if row.update_ms
    ]
    note = "An update beyond an ordinary step, and its share of a training with one every 100 steps for 75 % of it."
    return Table("Updates of the subspace on the GPU", note, ["training", "step", "update", "share of training"], body)


TRAINING_TABLES: dict[str, Callable[[Measurements], Table]] = {"steps": _steps, "state": _state, "moves": _moves}


def _beside(results: Measurements, row: TrainingCost, way: str) -> TrainingCost | None:
    """The same work in another way."""
    return next((r for r in results.training if (r.subject, r.batch, r.way) == (row.subject, row.batch, way)), None)


def _subjects(results: Measurements) -> str:
    return ", ".join(dict.fromkeys(row.subject for row in results.training))


MISSING = "–"


def all_tables(results: Measurements) -> dict[str, Table]:
    """Every table that the results have rows for, by name.

    Example:
        >>> row = Timing("MLP", "network", "training step", 8, {DENSE: [9.0], PLAIN: [4.0], "sparse 0.05": [2.0]})
        >>> print(all_tables(Measurements("cpu", 1, {}, networks=[row]))["networks"].to_markdown(), end="")
        | network | work | batch | dense LRT | deterministic | 5 % |
        | --- | --- | ---: | ---: | ---: | ---: |
        | MLP | training step | 8 | 9.00 ms | 2.2x | 4.5x [4.5–4.5] (2.0x) |
    """
    made = {name: make(results) for name, make in (TRAINING_TABLES | TABLES).items()}
    return {name: table for name, table in made.items() if table.rows}


GAINS = "Times faster than dense LRT: median [quartiles] over rounds; (median over the deterministic one)."


def _layers(work: str) -> Callable[[Measurements], Table]:
    def table(results: Measurements) -> Table:
        rows = [row for row in results.layers if row.work == work]
        return _timings(f"Layers, {work}", ["layer", "batch"], rows, lambda row: [row.subject, str(row.batch)])

    return table


def _networks(results: Measurements) -> Table:
    names = ["network", "work", "batch"]
    return _timings("Networks", names, results.networks, lambda row: [row.subject, row.work, str(row.batch)])


def _timings(title: str, names: list[str], rows: Sequence[Timing], label: Callable[[Timing], list[str]]) -> Table:
    """One row per timing: milliseconds of dense LRT, and the speed-ups of the other ways."""
    others = [way for way in (MASKED, PLAIN) if any(way in row.ms for row in rows)]
    ways = _ways(rows, "sparse")
    head = [*names, DENSE, *others, *(cells.percent(density_of(way)) for way in ways)]

    def line(row: Timing) -> list[str]:
        beside = [cells.times(row.speedup(way).median) if way in row.ms else MISSING for way in others]
        return [*label(row), cells.milliseconds(row.median(DENSE)), *beside, *(_gain(row, way) for way in ways)]

    body = [line(row) for row in rows]
    return Table(title, GAINS, head, body, len(names) - 1)


def _rivals(results: Measurements) -> Table:
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


def _memory(results: Measurements) -> Table:
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


def _updates(results: Measurements) -> Table:
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


def _bars(results: Measurements) -> Table:
    """The bars for which something was measured."""
    verdicts = [verdict for verdict in judge(results) if verdict.met is not None]
    body = [[v.bar.what, cells.must(v.bar), cells.found(v), "pass" if v.met else "FAIL"] for v in verdicts]
    n_met, n_rest = sum(verdict.met is True for verdict in verdicts), len(judge(results)) - len(verdicts)
    rest = f", {n_rest} were not measured here" if n_rest else ""
    note = f"{n_met} of {len(verdicts)} bars are met{rest}; a bar is judged by its median."
    return Table("Bars", note, ["bar", "must be", "measured", ""], body)


TABLES: dict[str, Callable[[Measurements], Table]] = {
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
    """Speed-up over dense LRT and, in brackets, over another way."""
    if way not in row.ms:
        return MISSING
    text = cells.spread_of(row.speedup(way))
    return f"{text} ({cells.times(row.speedup(way, over).median)})" if over is not None and over in row.ms else text


def _way(way: str) -> str:
    if way.startswith(("sparse", GRADIENT)):
        return f"sparse {cells.percent(density_of(way))}" + (", std by gradient" if way.startswith(GRADIENT) else "")
    return way
