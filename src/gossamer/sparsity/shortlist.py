"""The most promising entries of a weight, found while its dense gradient passes by a few rows at a time.

The set is that of a top-k of the whole gradient, ties by position included, at a fraction of its memory: what is kept
are the best entries so far and the scores of the active ones, of which nobody knows yet who will be removed.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gossamer.kernels import WeightMap
from gossamer.layers import Support
from gossamer.sparsity.selection import top_mask

__all__ = ["Passes", "Shortlist"]

LEAST = 1 << 16  # entries of the gradient that are formed at a time: with fewer, the calls cost more than the memory
SHARE = 64  # of a large weight, this part of its gradient is formed at a time


class Passes:
    """Counts the gradients that each row of a weight receives; as a sink of its layer it does nothing else.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> passes, grad, x = Passes((6, 3)), torch.ones(1, 2), torch.ones(1, 3)
        >>> for rows in ((0, 2), (4, 6)):
        ...     passes(grad, x, LinearMap(rows))
        >>> passes.single
        True
        >>> passes(grad, x, LinearMap((1, 3)))
        >>> passes.single
        False
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = torch.zeros(shape[0], dtype=torch.uint8)
        self.shape = shape

    def __call__(self, grad: Tensor, x: Tensor, weight_map: WeightMap) -> None:
        """Count the rows that take part in this product."""
        for low, high in weight_map.row_ranges(self.shape, self.shape[0]):
            self.count[low:high].add_(1).clamp_(max=2)

    @property
    def any(self) -> bool:
        """Whether there was a gradient."""
        return bool(self.count.any())

    @property
    def single(self) -> bool:
        """Whether there was one, and no row had a second: no accumulation, no weight that a network uses twice."""
        return self.any and not bool((self.count > 1).any())


class Shortlist:
    """A sink that keeps the entries of largest |gradient|. They can be told only if no row had a second gradient.

    Args:
        support: Where the active entries of the weight are.
        n_wanted: How many entries will be asked for at most.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> shortlist = Shortlist(Support((2, 2), torch.tensor([0, 3])), n_wanted=1)
        >>> grad, x = torch.tensor([[1.0, -3.0]]), torch.tensor([[1.0, 2.0]])  # of the weight: [[1, 2], [-3, -6]]
        >>> shortlist(grad, x, LinearMap())
        >>> shortlist.best(torch.tensor([True, True])), shortlist.best(torch.tensor([True, False]))
        (tensor([], dtype=torch.int64), tensor([3]))
    """

    def __init__(self, support: Support, n_wanted: int) -> None:
        assert support.position is not None
        self.support, self.n_wanted = support, n_wanted
        self.position = support.position
        self.row_size = math.prod(support.shape[1:])
        self.passes = Passes(support.shape)
        self.is_finite = True
        self._active = torch.zeros(len(self.position), device=self.position.device)
        self._score, self._where = self._active[:0], self.position[:0].long()
        self._threshold = -math.inf

    @torch.no_grad()
    def __call__(self, grad: Tensor, x: Tensor, weight_map: WeightMap) -> None:
        """Look through the dense gradient of one product, a few rows at a time."""
        self.passes(grad, x, weight_map)
        if not self.passes.single:
            return  # the sum of two gradients cannot be told from the best entries of each
        shape = self.support.shape
        n_rows = max(LEAST, self.support.size // SHARE) // self.row_size
        ranges = weight_map.row_ranges(shape, n_rows)
        bounds = self._bounds(ranges)
        for (low, high), inside in zip(ranges, bounds, strict=True):
            score = weight_map.weight_gradient(grad, x, shape, (low, high)).flatten().float().abs_()
            self.is_finite = self.is_finite and bool(score.amax().isfinite())
            self._consider(low * self.row_size, score, inside)

    def best(self, kept: Tensor) -> Tensor:
        """Flat positions, sorted, of the entries to take in when those active ones stay that ``kept`` marks."""
        self._consider_rest()
        removed = ~kept
        where = torch.cat([self._where, self.position[removed].long()])
        score = torch.cat([self._score, self._active[removed]])
        where, order = where.sort()
        return where[top_mask(score[order], int(removed.sum()))]

    def _bounds(self, ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The slices of the active entries that lie in ranges of rows."""
        edges = torch.tensor(ranges, device=self.position.device) * self.row_size
        return [(low, high) for low, high in torch.searchsorted(self.position, edges.to(self.position.dtype)).tolist()]

    def _consider(self, first: int, score: Tensor, inside: tuple[int, int]) -> None:
        """Take in the scores of the entries from ``first`` on, of which those ``inside`` the support are active."""
        active = self.position[slice(*inside)].long() - first
        self._active[slice(*inside)] = score[active]
        score[active] = -torch.inf
        low, high = (min(max(edge - first, 0), len(score)) for edge in self.support.frozen)
        score[low:high] = -torch.inf
        fresh = (score >= self._threshold).logical_and_(score > -torch.inf).nonzero().flatten()
        where, order = torch.cat([self._where, fresh + first]).sort()
        score = torch.cat([self._score, score[fresh]])[order]
        if len(score) > self.n_wanted:
            best = top_mask(score, self.n_wanted)
            score, where = score[best], where[best]
            self._threshold = float(score.amin()) if self.n_wanted else math.inf
        self._score, self._where = score, where

    def _consider_rest(self) -> None:
        """Rows that took no part in the loss have a gradient of zero, and zeros are candidates like all others."""
        for row in (self.passes.count == 0).nonzero().flatten().tolist():
            ((low, high),) = self._bounds([(row, row + 1)])
            self._consider(row * self.row_size, self._active.new_zeros(self.row_size), (low, high))
            self.passes.count[row] = 1
