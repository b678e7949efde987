"""What sparsity costs and saves on a CPU: layers, networks, memory and updates, in one process and one thread.

Everything that is compared takes turns (``timing.py``). With one thread the clock is that thread's CPU time, which
other work on the machine disturbs least; with more it is wall time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from benchmarks import cells
from benchmarks.environment import surroundings
from benchmarks.layers import FORWARD, LAYERS, RESIDUAL, TRAINING, LayerCase, measure_layer
from benchmarks.measurements import (
    DENSE,
    GRADIENT,
    MASKED,
    PLAIN,
    Effort,
    Footprint,
    Measurements,
    Timing,
    UpdateCost,
    sparse,
)
from benchmarks.memory import MemoryCase, measure_memory
from benchmarks.networks import NETWORKS, RESNET, UPDATES, NetworkCase, UpdateCase, measure_network, measure_updates
from benchmarks.rivals import sparseprop_version
from benchmarks.timing import THREAD, WALL
from gossamer._text.terminal import Progress

__all__ = ["FULL", "QUICK", "SECTIONS", "CpuPlan", "measure"]

SECTIONS = ("layers", "networks", "memory", "updates")


@dataclass(frozen=True)
class CpuPlan:
    """Which rows are measured, and with how much effort; ``most_rounds`` limits the rounds of a ResNet."""

    effort: Effort = field(default_factory=Effort)
    layers: tuple[tuple[LayerCase, int, str], ...] = ()
    networks: tuple[NetworkCase, ...] = ()
    memory: tuple[MemoryCase, ...] = ()
    updates: tuple[UpdateCase, ...] = ()
    most_rounds: int | None = None

    def restricted(self, sections: Collection[str]) -> CpuPlan:
        """Some of the sections only.

        Example:
            >>> len(FULL.restricted(["updates"]).updates), FULL.restricted(["updates"]).layers
            (2, ())
        """
        left_out: dict[str, Any] = {name: () for name in SECTIONS if name not in sections}
        return replace(self, **left_out)

    def with_rounds(self, rounds: int) -> CpuPlan:
        """The same rows, measured more or less often."""
        return replace(self, effort=self.effort._replace(rounds=rounds), most_rounds=None)


def _footprints(ways: tuple[str, ...], steps: int, runs: int) -> tuple[MemoryCase, ...]:
    return tuple(MemoryCase(RESNET, way, 32, steps, runs) for way in ways)


WAYS = (DENSE, MASKED, PLAIN, *(sparse(density) for density in (1.0, 0.1, 0.05, 0.01)), sparse(0.05, GRADIENT))

FULL = CpuPlan(
    layers=tuple((case, batch, work) for case in LAYERS for batch in (1, 32, 128) for work in (FORWARD, TRAINING)),
    networks=NETWORKS,
    memory=_footprints(WAYS, steps=4, runs=3),
    updates=UPDATES,
)

QUICK = CpuPlan(
    effort=Effort(densities=(0.1, 0.05), rival_densities=(), rounds=3, with_masked=False),
    layers=(
        (LAYERS[1], 128, FORWARD),
        (LAYERS[1], 128, TRAINING),
        (RESIDUAL[1], 32, FORWARD),
        *((case, 32, TRAINING) for case in RESIDUAL),
    ),
    networks=(NETWORKS[0], NETWORKS[2], NETWORKS[3]),
    memory=_footprints((DENSE, sparse(0.05), sparse(0.05, GRADIENT)), steps=2, runs=1),
    updates=UPDATES,
    most_rounds=2,
)
"""The rows that have bars."""


def measure(plan: CpuPlan, threads: int = 1, *, quiet: bool = False) -> Measurements:
    """Measure everything in the plan.

    Example:
        >>> plan = CpuPlan(updates=(UPDATES[1],)).with_rounds(1)
        >>> measure(plan, quiet=True).updates[0].subject
        'MLP 784-1024-1024-10'
    """
    plan = replace(plan, effort=plan.effort._replace(clock=THREAD if threads == 1 else WALL))
    n_rows = _n_rows(plan)
    with _threads(threads), Progress("benchmarks", n_rows, lines=n_rows, quiet=quiet) as progress:
        results = Measurements("cpu", plan.effort.rounds, surroundings(plan.effort.clock))
        counted, spent = time.thread_time(), time.process_time()
        for number, (section, title, work) in enumerate(_jobs(plan, threads), 1):
            progress.begin(f"[{number}/{n_rows}] {title}", done=number - 1)
            row = work()
            getattr(results, section).append(row)
            progress.update(number, partial(_said, row))
        counted, spent = time.thread_time() - counted, time.process_time() - spent
    results.notes.extend(_notes(plan, counted, spent))
    return results


def _jobs(plan: CpuPlan, threads: int) -> Iterator[tuple[str, str, Callable[[], Any]]]:
    """Section, title and work of each row."""
    effort = plan.effort
    few = effort._replace(rounds=min(effort.rounds, plan.most_rounds or effort.rounds))
    for layer, batch, work in plan.layers:
        yield "layers", f"{layer.name}, batch {batch}, {work}", partial(measure_layer, layer, batch, work, effort)
    for network in plan.networks:
        title = f"{network.subject}, batch {network.batch}, {network.work}"
        rounds = few if network.subject == RESNET and network.batch > 1 else effort
        yield "networks", title, partial(measure_network, network, rounds)
    for footprint in plan.memory:
        yield "memory", f"{footprint.network}, {footprint.way}, memory", partial(measure_memory, footprint, threads)
    for update in plan.updates:
        rounds = few if update.subject == RESNET else effort
        title = f"{update.subject}, batch {update.batch}, updates"
        yield "updates", title, partial(measure_updates, update, rounds.rounds, effort.clock)


def _n_rows(plan: CpuPlan) -> int:
    return len(plan.layers) + len(plan.networks) + len(plan.memory) + len(plan.updates)


def _said(row: Timing | Footprint | UpdateCost) -> str:
    """A row in a few words."""
    if isinstance(row, Timing):
        gains = [f"{way} {cells.times(row.speedup(way).median)}" for way in row.ms if way != DENSE]
        return ", ".join([f"{DENSE} {cells.milliseconds(row.median(DENSE))}", *gains])
    if isinstance(row, UpdateCost):
        return f"{cells.figure(row.share, '%')} of training"
    return f"{row.training_bytes / 1e6:.1f} MB, checkpoint {row.checkpoint_bytes / 1e6:.1f}, peak {row.peak / 1e6:.0f}"


def _notes(plan: CpuPlan, counted: float, spent: float) -> list[str]:
    """What a reader of the tables should know."""
    notes = []
    if plan.layers and plan.effort.rival_densities:
        version = sparseprop_version()
        notes.append(f"SparseProp {version}" if version else "SparseProp: not installed")
    # The progress bar on a terminal takes about 1 %.
    if plan.effort.clock is THREAD and spent > 1.1 * counted:
        notes.append(
            f"other threads of this process worked as well: {1 - counted / spent:.0%} of its CPU time is in no figure "
            "(set OMP_NUM_THREADS=1)"
        )
    return notes


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
