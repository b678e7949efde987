"""Choices that every rank makes alike: the best entries of a score, of one vector or of several laid end to end.

A score that is never whole, because it is seen a piece at a time or known for candidates only, has its :class:`Best`.

A CPU takes one vector after another. A GPU, where launches of many small kernels would take the time, is given one for
all of them; the lengths are known on the host, so nothing here waits for the device.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from gossamer.kernels.ordered import located, look_through, merged, places, top_mask
from gossamer.layers import Support

DEVICES = {"cuda"}


def works_together(device: torch.device) -> bool:
    """Whether one kernel over all weights beats one after another on this kind of device."""
    return device.type in DEVICES


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
        if works_together(self.device):
            return values[self._number]
        return torch.cat([value.expand(n, *value.shape) for value, n in zip(values, self.lengths, strict=True)])

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each segment, in an order of additions that every rank and rerun repeats; of columns, of each."""
        return torch.stack([part.sum(0) for part in values.split(self.lengths)])

    def counts(self, mask: Tensor) -> Tensor:
        """How many entries of each segment are true."""
        if not works_together(self.device):
            return torch.stack([part.count_nonzero() for part in mask.split(self.lengths)])
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
        return places(self.top_mask(score, counts))

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
    """

    def __init__(self, support: Support, n_wanted: int) -> None:
        assert support.position is not None
        self.support, self.position, self.n_wanted = support, support.position, n_wanted
        self.clear()

    def clear(self) -> None:
        """Forget what was seen."""
        self.is_finite = True
        self.active = torch.zeros(len(self.position), device=self.position.device)
        self.score, self.where = self.active[:0], self.position[:0]  # of inactive entries, by position
        self._threshold, self._end = -math.inf, 0

    def consider(self, first: int, grad: Tensor) -> None:
        """Take in |gradient| of the entries from ``first`` on, which is overwritten."""
        known = (self.position, self.active, self.support.frozen)
        where, score, is_finite = look_through(grad, first, *known, self._threshold)
        self.is_finite = self.is_finite and is_finite
        self.where, self.score = torch.cat([self.where, where]), torch.cat([self.score, score])
        if first < self._end:  # pieces may come in any order, but seldom do
            self.where, order = self.where.sort()
            self.score = self.score[order]
        self._end = max(self._end, first + grad.numel())
        if self.score.numel() > 2 * self.n_wanted:  # not for every entry more
            self.trim()

    def consider_only(self, where: Tensor, score: Tensor) -> None:
        """Take in the scores of these entries, in order of position; all others have a score of zero."""
        low, high = self.support.frozen
        counts = (score > 0) & ((where < low) | (where >= high))
        where, score = where[counts], score[counts]
        at, is_other = located(self.position.long(), where)
        self.active[at[~is_other]] = score[~is_other]
        self.where, self.score = where[is_other], score[is_other]
        self.trim()

    def trim(self) -> None:
        """Forget all inactive entries but the ``n_wanted`` best."""
        if self.score.numel() > self.n_wanted:
            best = places(top_mask(self.score, self.n_wanted))
            self.score, self.where = self.score.index_select(0, best), self.where.index_select(0, best)
            self._threshold = float(self.score.amin()) if self.n_wanted else math.inf

    def best(self, kept: Tensor) -> Tensor:
        """Flat positions, sorted, of the entries to take in when those active ones stay that ``kept`` marks."""
        removed = places(~kept)
        where, order = merged(self.where.long(), self.position.index_select(0, removed).long())
        score = torch.cat([self.score, self.active.index_select(0, removed)]).index_select(0, order)
        n_wanted = len(removed)
        if len(self.where) < n_wanted:  # entries that were not named, and have a score of zero, may be among the best
            others = self._others(n_wanted)
            where, order = merged(where, others)
            score = torch.cat([score, torch.zeros_like(others, dtype=score.dtype)])[order]
        return where.index_select(0, places(top_mask(score, n_wanted)))

    def _others(self, n_wanted: int) -> Tensor:
        """The first inactive entries beside those that are known."""
        low, high = self.support.frozen
        known = torch.cat([self.where, self.position.long()])
        is_other = known.new_ones(min(self.support.size, n_wanted + len(known) + high - low), dtype=torch.bool)
        is_other[known[known < len(is_other)]] = False
        is_other[low:high] = False
        return is_other.nonzero().flatten()[:n_wanted]


def runs(sizes: Sequence[int], limit: int | None, alone: Sequence[bool] = ()) -> Iterator[tuple[int, int]]:
    """Ranges of neighbours with at most ``limit`` entries together, or of one that has more or stands alone."""
    first, total = 0, 0
    for number, size in enumerate(sizes):
        is_full = limit is not None and total + size > limit
        if number > first and (is_full or any(alone[first : number + 1])):
            yield first, number
            first, total = number, 0
        total += size
    yield first, len(sizes)


def _numbers(ends: Tensor, total: int) -> Tensor:
    """The segment of every entry: not by ``repeat_interleave``, which gives a segment to one warp."""
    return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True, out_int32=True)
