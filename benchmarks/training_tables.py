"""Tables of ways to train a network on a GPU: time, memory, updates of the subspace."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from benchmarks import cells
from benchmarks.results import EXAMPLES, PLAIN, RELEASED, VI, Results, TrainingCost
from benchmarks.timing import speedup, spread
from gossamer.tables import Table

__all__ = ["TRAINING_TABLES"]

MISSING = "–"


def _steps(results: Results) -> Table:
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


def _state(results: Results) -> Table:
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


def _moves(results: Results) -> Table:
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


TRAINING_TABLES: dict[str, Callable[[Results], Table]] = {"steps": _steps, "state": _state, "moves": _moves}


def _beside(results: Results, row: TrainingCost, way: str) -> TrainingCost | None:
    """The same work in another way."""
    return next((r for r in results.training if (r.subject, r.batch, r.way) == (row.subject, row.batch, way)), None)


def _subjects(results: Results) -> str:
    return ", ".join(dict.fromkeys(row.subject for row in results.training))
