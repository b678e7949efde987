"""How much is measured of each row: at which densities, how often, on which clock."""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.timing import THREAD, Clock

__all__ = ["Effort"]


class Effort(NamedTuple):
    """Densities of the sparse ways and of their rivals, rounds, clock, and whether the masked way takes part."""

    densities: tuple[float, ...] = (0.2, 0.1, 0.05, 0.02, 0.01)
    rival_densities: tuple[float, ...] = (0.1, 0.05)
    rounds: int = 7
    clock: Clock = THREAD
    with_masked: bool = True
