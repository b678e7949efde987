"""Choices that every rank makes alike: the best entries of a score, of one vector or of several laid end to end.

A CPU takes one vector after another. A GPU, where launches of many small kernels would take the time, is given one for
all of them; the lengths are known on the host, so nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

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


def _numbers(ends: Tensor, total: int) -> Tensor:
    """The segment of every entry: not by ``repeat_interleave``, which gives a segment to one warp."""
    return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True, out_int32=True)
