"""The best entries of a dense score that is never whole: seen a piece at a time, or known for candidates only."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from gossamer.layers import Support
from gossamer.sparsity.selection import top_mask


class Best:
    """The ``n_wanted`` highest scores of inactive entries so far, and those of the active ones.

    It is not known yet which of the active entries will be removed, and compete with the others. The result is that of
    a top-k of the whole score, ties by position included.

    Example:
        >>> best = Best(Support((2, 3), torch.tensor([0, 4])), n_wanted=1)
        >>> best.consider(0, torch.tensor([5.0, 1.0, 2.0]), (0, 1))
        >>> best.consider(3, torch.tensor([3.0, 4.0, 1.0]), (1, 2))
        >>> best.best(kept=torch.tensor([True, False]))
        tensor([4])
    """

    def __init__(self, support: Support, n_wanted: int) -> None:
        assert support.position is not None
        self.support, self.position, self.n_wanted = support, support.position, n_wanted
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        self.is_finite = True
        self.active = torch.zeros(len(self.position), device=self.position.device)
        self.score, self.where = self.active[:0], self.position[:0].long()  # of inactive entries, by position
        self._threshold, self._end = -math.inf, 0

    def bounds(self, ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """The slices of the active entries that lie in ranges of all entries."""
        edges = torch.tensor(ranges, device=self.position.device).to(self.position.dtype)
        return [(low, high) for low, high in torch.searchsorted(self.position, edges).tolist()]

    def consider(self, first: int, score: Tensor, inside: tuple[int, int]) -> None:
        """Take in the scores of the entries from ``first`` on, which are overwritten; those ``inside`` are active."""
        active = self.position[slice(*inside)].long() - first
        self.active[slice(*inside)] = score[active]
        score[active] = -torch.inf
        low, high = (min(max(edge - first, 0), len(score)) for edge in self.support.frozen)
        score[low:high] = -torch.inf
        fresh = (score >= self._threshold).logical_and_(score > -torch.inf).nonzero().flatten()
        self.where, self.score = torch.cat([self.where, fresh + first]), torch.cat([self.score, score[fresh]])
        if first < self._end:  # pieces may come in any order, but seldom do
            self.where, order = self.where.sort()
            self.score = self.score[order]
        self._end = max(self._end, first + len(score))
        if len(self.score) > 2 * self.n_wanted:  # not for every entry more
            self.trim()

    def consider_only(self, where: Tensor, score: Tensor) -> None:
        """Take in the scores of these entries, in order of position; all others have a score of zero."""
        low, high = self.support.frozen
        counts = (score > 0) & ((where < low) | (where >= high))
        where, score = where[counts], score[counts]
        at = torch.searchsorted(self.position, where.to(self.position.dtype)).clamp_max_(len(self.position) - 1)
        is_active = self.position[at] == where
        self.active[at[is_active]] = score[is_active]
        self.where, self.score = where[~is_active], score[~is_active]
        self.trim()

    def trim(self) -> None:
        """Forget all inactive entries but the ``n_wanted`` best."""
        if len(self.score) > self.n_wanted:
            best = top_mask(self.score, self.n_wanted)
            self.score, self.where = self.score[best], self.where[best]
            self._threshold = float(self.score.amin()) if self.n_wanted else math.inf

    def best(self, kept: Tensor) -> Tensor:
        """Flat positions, sorted, of the entries to take in when those active ones stay that ``kept`` marks."""
        removed = ~kept
        where, order = torch.cat([self.where, self.position[removed].long()]).sort()
        score = torch.cat([self.score, self.active[removed]])[order]
        n_wanted = int(removed.sum())
        if len(self.where) < n_wanted:  # entries that were not named, and have a score of zero, may be among the best
            others = self._others(n_wanted)
            where, order = torch.cat([where, others]).sort()
            score = torch.cat([score, torch.zeros_like(others, dtype=score.dtype)])[order]
        return where[top_mask(score, n_wanted)]

    def _others(self, n_wanted: int) -> Tensor:
        """The first inactive entries beside those that are known."""
        low, high = self.support.frozen
        known = torch.cat([self.where, self.position.long()])
        is_other = known.new_ones(min(self.support.size, n_wanted + len(known) + high - low), dtype=torch.bool)
        is_other[known[known < len(is_other)]] = False
        is_other[low:high] = False
        return is_other.nonzero().flatten()[:n_wanted]
