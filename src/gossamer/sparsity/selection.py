"""Choices that every rank makes alike: the best entries of a score, of one vector or of several laid end to end.

A score that is never whole, because it is seen a piece at a time or known for candidates only, has its :class:`Best`.

A CPU takes one vector after another. A GPU, where launches of many small kernels would take the time, is given one for
all of them; the lengths are known on the host, so nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from gossamer.layers import Support

DEVICES = {"cuda"}


def works_together(device: torch.device) -> bool:
    """Whether one kernel over all weights beats one after another on this kind of device."""
    return device.type in DEVICES


def top_mask(score: Tensor, k: int) -> Tensor:
    """Boolean mask of the ``k`` highest scores of a vector; of equal scores the first positions win.

    Exactly ``k`` entries are true, always: NaN counts as -inf. No value leaves the device.

    >>> top_mask(torch.tensor([1.0, 3.0, 3.0, float("nan"), 3.0]), 2)
    tensor([False,  True,  True, False, False])
    """
    if score.dim() != 1 or not 0 <= k <= len(score):
        raise ValueError(f"top_mask takes a vector and 0 <= k <= its length, got shape {tuple(score.shape)}, k = {k}")
    if k == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    score = score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    # topk alone breaks ties as the device likes; by position, every rank, device and rerun chooses the same entries.
    threshold = score.topk(k, sorted=False).values.amin()
    if score.is_cpu and int((best := score >= threshold).sum()) == k:  # no ties; a GPU would have to be waited for
        return best
    above, tied = score > threshold, score == threshold
    return above | (tied & (tied.cumsum(0) <= k - above.sum()))


class Segments:
    """Segments of known lengths, none of them empty, in one vector."""

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"there must be segments, and none of them empty; got lengths {list(lengths)}")
        self.lengths, self.total = list(lengths), sum(lengths)
        self.starts = list(accumulate(lengths[:-1], initial=0))
        self.device = device

    def table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of one integer per segment, on the device; without waiting for it, as ``torch.tensor`` would."""
        host = torch.tensor(rows)
        return (host.pin_memory() if self.device.type == "cuda" else host).to(self.device, non_blocking=True)

    def spread(self, values: Tensor) -> Tensor:
        """One value per segment as one per entry."""
        return values[self._number]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each segment, in an order of additions that every rank and rerun repeats; of columns, of each."""
        return torch.stack([part.sum(0) for part in values.split(self.lengths)])

    def counts(self, mask: Tensor) -> Tensor:
        """How many entries of each segment are true."""
        up_to = mask.cumsum(0)[self._ends - 1]
        return up_to.diff(prepend=up_to.new_zeros(1))

    def top_mask(self, score: Tensor, counts: Sequence[int]) -> Tensor:
        """Mask of the highest scores of each segment, ``counts`` of them; of equal scores the first positions win."""
        if works_together(self.device):
            mask = torch.zeros(len(score), dtype=torch.bool, device=score.device)
            return mask.index_fill_(0, self.best(score, counts), True)
        parts = zip(score.split(self.lengths), counts, strict=True)
        return torch.cat([top_mask(part, count) for part, count in parts])

    def top_mask_of_all(self, score: Tensor, count: int) -> Tensor:
        """Mask of the ``count`` highest scores of all segments together, the best of each segment among them.

        An empty layer would cut the network in two.
        """
        safe = torch.cat([part.index_fill(0, part.argmax(), torch.inf) for part in score.split(self.lengths)])
        return top_mask(safe, max(len(self.lengths), count))

    def top(self, score: Tensor, counts: Sequence[int]) -> Tensor:
        """Where :meth:`top_mask` is true, in order."""
        if works_together(self.device):
            return self.best(score, counts).sort().values
        return self.top_mask(score, counts).nonzero().flatten()

    def best(self, score: Tensor, counts: Sequence[int]) -> Tensor:
        """As :meth:`top`, by sorts over all segments: those of a segment come together, the best first.

        NaN must not be among the scores.
        """
        order = score.sort(descending=True, stable=True).indices
        order = order[self._number[order].to(torch.int16).sort(stable=True).indices]  # short keys sort faster
        ends = list(accumulate(counts))
        shift = [start - end + count for start, end, count in zip(self.starts, ends, counts, strict=True)]
        ends_, shift_ = self.table([ends, shift])
        number = _numbers(ends_, ends[-1])
        return order[torch.arange(ends[-1], device=self.device) + shift_[number]]

    @cached_property
    def _ends(self) -> Tensor:
        return self.table([list(accumulate(self.lengths))])[0]

    @cached_property
    def _number(self) -> Tensor:
        return _numbers(self._ends, self.total)


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


def _numbers(ends: Tensor, total: int) -> Tensor:
    """The segment of every entry: not by ``repeat_interleave``, which gives a segment to one warp."""
    return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True, out_int32=True)
