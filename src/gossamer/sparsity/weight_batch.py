"""Sparse weights of one kind taken as one: their active vectors end to end, their dense entries numbered through.

What is done to an entry, whatever its weight, is then done to all entries of a network at once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import torch
from torch import Tensor

from gossamer.layers import GaussianWeight, PointWeight, SparseWeight
from gossamer.layers.gaussian import regrown_raw_std, std_of
from gossamer.layers.weight import RegrowStd
from gossamer.sparsity.segments import Segments
from gossamer.types import WeightStats

__all__ = ["WeightBatch", "are_one_kind"]

MOST = 1 << 15  # weights: their numbers are sorted as 16-bit integers


def are_one_kind(weights: Collection[SparseWeight]) -> bool:
    """Whether these weights, some at least, can be taken as one: none empty, of a kind known here, in one place.

    >>> are_one_kind([])
    False
    """
    # A kind of one's own may compute its std otherwise, or have other vectors.
    known = all(type(weight) in (GaussianWeight, PointWeight) for weight in weights)
    kinds = {(type(w), getattr(w, "mode", None), w.mean.dtype, w.mean.device) for w in weights}
    return known and len(kinds) == 1 and len(weights) < MOST and all(len(weight.mean) for weight in weights)


class WeightBatch:
    """The active entries of several weights of one kind (:func:`are_one_kind`), in their order.

    Example:
        >>> import gossamer
        >>> model = torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.Linear(2, 2))
        >>> batch = WeightBatch(list(gossamer.layers.sparse_weights(gossamer.bayesianize(model, density=0.5)).values()))
        >>> batch.active.lengths, batch.sizes, batch.stats().mean.shape
        ([4, 2], [8, 4], torch.Size([6]))
    """

    def __init__(self, weights: Sequence[SparseWeight]) -> None:
        self.weights = list(weights)
        self.device = self.weights[0].mean.device
        self.active = Segments([len(weight.mean) for weight in self.weights], self.device)
        self.sizes = [math.prod(weight.support.shape) for weight in self.weights]

    def vector(self, name: str) -> Tensor:
        """One of the kind's vectors, of all weights."""
        with torch.no_grad():
            return torch.cat([weight.get_parameter(name) for weight in self.weights])

    def positions(self) -> list[Tensor]:
        """The positions of each weight, in its own numbers."""
        positions = [weight.support.position for weight in self.weights]
        return [position for position in positions if position is not None]

    def stats(self) -> WeightStats:
        """What a criterion sees of all active entries."""
        is_gaussian = isinstance(self.weights[0], GaussianWeight)
        return WeightStats(self.vector("mean"), std_of(self.vector("raw_std")) if is_gaussian else None)

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None) -> dict[str, Tensor]:
        """Value of a new entry of each weight for each vector, ``(weights,)``; every weight keeps some entries."""
        first = self.weights[0]
        zero = torch.zeros(len(self.weights), dtype=first.mean.dtype, device=self.device)
        if not isinstance(first, GaussianWeight):
            return {"mean": zero}

        def average(values: Tensor) -> Tensor:
            return self.active.sums(torch.where(kept, values, 0)) / self.active.counts(kept)

        raw_std = regrown_raw_std(self.vector("raw_std"), first.regrows(regrow_std), average)
        return {"mean": zero, "raw_std": raw_std.expand_as(zero)}
