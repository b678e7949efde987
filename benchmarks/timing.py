"""Works that take turns on one clock.

A shared machine has slow spells. So works that are compared are never measured one after the other: in every round each
has its turn, every second round in reverse order, and ratios are taken within a round, before the median over rounds.
Nothing here depends on what is measured or where: for another device, pass a clock that waits for it.
"""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import NamedTuple

__all__ = [
    "THREAD",
    "WALL",
    "Spread",
    "Stopwatch",
    "Work",
    "alternate",
    "laps",
    "milliseconds",
    "speedup",
    "spread",
    "undisturbed",
]

Work = Callable[[], object]

SHORTEST = 2e-3  # seconds; a shorter work is repeated until a sample takes this long, far above the cost of a clock
MOST_REPEATS = 1000
TRIALS = 3  # of each alternative


class Stopwatch(NamedTuple):
    """A function that returns seconds, and what kind of seconds they are."""

    name: str
    read: Callable[[], float]


THREAD = Stopwatch("CPU time of one thread", time.thread_time)
WALL = Stopwatch("wall time", time.perf_counter)


class Spread(NamedTuple):
    """Median and quartiles."""

    low: float
    median: float
    high: float


def alternate(
    works: Mapping[str, Work | Sequence[Work]], rounds: int, clock: Stopwatch = THREAD
) -> dict[str, list[float]]:
    """Milliseconds of each work in each round, all of them taking turns.

    Several works under one name are alternatives: the fastest of them in a few trials is measured.

    Example:
        >>> ticks = iter(range(1000))
        >>> clock = Stopwatch("one second a look", lambda: float(next(ticks)))
        >>> alternate({"a": lambda: None, "b": lambda: None}, rounds=3, clock=clock)
        {'a': [1000.0, 1000.0, 1000.0], 'b': [1000.0, 1000.0, 1000.0]}
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1; got {rounds}")
    with undisturbed():
        chosen = {name: _fastest(work, clock) for name, work in works.items()}
        times: dict[str, list[float]] = {name: [] for name in chosen}
        for i in range(rounds):
            for name in list(chosen)[:: -1 if i % 2 else 1]:
                work, repeats = chosen[name]
                times[name].append(milliseconds(work, repeats, clock))
    return times


def laps(work: Work, count: int, clock: Stopwatch = THREAD) -> list[float]:
    """Milliseconds of each of ``count`` calls in a row, for a work whose calls differ."""
    with undisturbed():
        return [milliseconds(work, 1, clock) for _ in range(count)]


def spread(values: Sequence[float]) -> Spread:
    """Median and quartiles; a single value is all three."""
    if len(values) < 2:
        return Spread(values[0], values[0], values[0])
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def speedup(reference: Sequence[float], own: Sequence[float]) -> Spread:
    """Speed-up over the reference, from the ratios of the rounds."""
    return spread([there / here for there, here in zip(reference, own, strict=True)])


def _fastest(ways: Work | Sequence[Work], clock: Stopwatch) -> tuple[Work, int]:
    """The fastest of the alternatives, warmed up, and how often a sample repeats it."""
    ways = [ways] if callable(ways) else ways
    n_trials = TRIALS if len(ways) > 1 else 1
    trials = [(min(_seconds(way, 1, clock) for _ in range(n_trials)), way) for way in ways]
    seconds, way = min(trials, key=lambda trial: trial[0])
    if seconds < SHORTEST:  # the first call dominated
        seconds = _seconds(way, 3, clock)
    return way, max(1, min(MOST_REPEATS, math.ceil(SHORTEST / max(seconds, 1e-9))))


def _seconds(work: Work, repeats: int, clock: Stopwatch) -> float:
    start = clock.read()
    for _ in range(repeats):
        work()
    return (clock.read() - start) / repeats


def milliseconds(work: Work, repeats: int, clock: Stopwatch) -> float:
    """Milliseconds per call, from several calls in a row; to five digits, more than a clock can resolve."""
    return float(f"{1e3 * _seconds(work, repeats, clock):.5g}")


@contextmanager
def undisturbed() -> Iterator[None]:
    """Switch garbage collection off."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
