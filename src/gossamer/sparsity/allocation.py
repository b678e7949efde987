"""Allocations: how many active entries each layer gets for a density of the whole network.

Layers with ``keep_dense`` keep all their entries, which do not count against the budget of the others. Every other
layer gets at least one entry: an empty layer would cut the network in two. Fractions keep the counts exact.
"""

import bisect
import math
from collections.abc import Sequence
from fractions import Fraction

from gossamer.types import Allocation, LayerStats

__all__ = ["ALLOCATION", "apportion", "erk", "global_", "uniform", "uniform_reference"]


def uniform(layers: Sequence[LayerStats], density: float) -> list[int]:
    """The same density in every layer: ``max(1, round(density · size))``.

    >>> uniform([LayerStats("stem", (4, 3), keep_dense=True), LayerStats("body", (100, 10))], 0.1)
    [12, 100]
    """
    _check_density(density)
    return [
        layer.size if layer.keep_dense else min(layer.size, max(1, round(density * layer.size))) for layer in layers
    ]


def erk(layers: Sequence[LayerStats], density: float) -> list[int]:
    """Erdős-Rényi-kernel: density_l = ε · sum(shape) / prod(shape), so narrow layers are denser.

    Layers that would exceed density 1 become dense, those that would be empty get one entry, and ε is solved again:
    the total is exactly the budget (Evci et al. 2020, section 3).

    >>> erk([LayerStats("narrow", (10, 10)), LayerStats("wide", (1000, 10))], 0.05)
    [10, 495]
    """
    # ε · sum(shape) / prod(shape) · size entries; size < prod(shape) only where entries are frozen.
    weights = [Fraction(sum(layer.shape) * layer.size, max(1, math.prod(layer.shape))) for layer in layers]
    return _share(layers, density, weights)


def global_(layers: Sequence[LayerStats], density: float) -> list[int]:
    """One budget for all layers, first split in proportion to size; training may then move it between layers.

    >>> global_([LayerStats("a", (3,)), LayerStats("b", (3,)), LayerStats("c", (4,))], 0.5)
    [2, 1, 2]
    """
    return _share(layers, density, [Fraction(layer.size) for layer in layers])


def uniform_reference(layers: Sequence[LayerStats], density: float) -> list[int]:
    """The count of the released code of SSVI: ``size - int((1 - density) · size)`` in every layer.

    >>> uniform_reference([LayerStats("body", (64, 64, 3, 3))], 0.05)
    [1844]
    """
    _check_density(density)
    return [layer.size if layer.keep_dense else layer.size - int((1 - density) * layer.size) for layer in layers]


ALLOCATION: dict[str, Allocation] = {"uniform": uniform, "erk": erk, "global": global_, "global_": global_}
"""The allocations by name."""


def _check_density(density: float) -> None:
    if not 0 < density <= 1:
        raise ValueError(f"density is the share of active entries, in (0, 1], got {density}")


def _share(layers: Sequence[LayerStats], density: float, weights: Sequence[Fraction]) -> list[int]:
    """Divide a budget of round(density · total size) among the layers not kept dense, in proportion to ``weights``."""
    _check_density(density)
    counts = [layer.size for layer in layers]
    free = [i for i, layer in enumerate(layers) if not layer.keep_dense and layer.size > 0]
    if free:
        sizes = [counts[i] for i in free]
        budget = max(len(free), round(density * sum(sizes)))
        for i, count in zip(free, apportion(budget, [weights[i] for i in free], sizes), strict=True):
            counts[i] = count
    return counts


def apportion(budget: int, weights: Sequence[Fraction], sizes: Sequence[int], least: int = 1) -> list[int]:
    """Integers near clip(ε w_l, least, size_l) that sum to ``budget``, rounded up where the fraction is largest.

    >>> apportion(10, [Fraction(1), Fraction(2), Fraction(3)], [100, 100, 3], least=0)
    [2, 5, 3]
    """
    bounds = [(least, size) for size in sizes]
    scale = _solve_scale(budget, weights, bounds)
    shares = [_clip(scale * weight, bound) for weight, bound in zip(weights, bounds, strict=True)]
    counts = [math.floor(share) for share in shares]
    # A share with a fraction lies below its size, so one more entry always fits; sorted is stable, so ties go by order.
    by_fraction = sorted(range(len(shares)), key=lambda i: counts[i] - shares[i])
    for i in by_fraction[: budget - sum(counts)]:
        counts[i] += 1
    return counts


def _solve_scale(budget: int, weights: Sequence[Fraction], bounds: Sequence[tuple[int, int]]) -> Fraction:
    """The ε with Σ clip(ε w_l, least_l, size_l) = ``budget``; the sum is increasing and linear between its corners."""
    pairs = list(zip(weights, bounds, strict=True))

    def total(scale: Fraction) -> Fraction:
        return sum((_clip(scale * weight, bound) for weight, bound in pairs), Fraction(0))

    corners = sorted({edge / weight for weight, bound in pairs for edge in bound})
    corner = corners[bisect.bisect_right(corners, Fraction(budget), key=total) - 1]
    slope = sum(weight for weight, (least, size) in pairs if least <= corner * weight < size)
    return corner + (budget - total(corner)) / slope if slope else corner


def _clip(share: Fraction, bound: tuple[int, int]) -> Fraction:
    least, size = bound
    return min(max(share, Fraction(least)), Fraction(size))
