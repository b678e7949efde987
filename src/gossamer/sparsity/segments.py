"""Vectors that lie end to end in one, so that a GPU is given one kernel for all of them.

Their lengths are known on the host, and nothing here makes it wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

__all__ = ["Segments"]


class Segments:
    """Segments of known lengths, none of them empty, in one vector.

    Args:
        lengths: How many entries each has.
        device: Where the vectors are.

    Example:
        >>> stretches = Segments([3, 2], torch.device("cpu"))
        >>> stretches.best(torch.tensor([1.0, 3.0, 3.0, 5.0, 9.0]), [2, 1])
        tensor([1, 2, 4])
        >>> stretches.spread(torch.tensor([0.1, 0.2]))
        tensor([0.1000, 0.1000, 0.1000, 0.2000, 0.2000])
    """

    def __init__(self, lengths: Sequence[int], device: torch.device) -> None:
        if not lengths or min(lengths) < 1:
            raise ValueError(f"there must be stretches, and none of them empty; got lengths {list(lengths)}")
        self.lengths, self.total = list(lengths), sum(lengths)
        self.starts = list(accumulate(lengths[:-1], initial=0))
        self.device = device

    def table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of one integer a stretch, on the device; without waiting for it, as ``torch.tensor`` would."""
        host = torch.tensor(rows)
        return (host.pin_memory() if self.device.type == "cuda" else host).to(self.device, non_blocking=True)

    def spread(self, values: Tensor) -> Tensor:
        """One value a stretch as one an entry."""
        return values[self._number]

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each stretch, in an order of additions that every rank and rerun repeats."""
        return torch.stack([part.sum() for part in values.split(self.lengths)])

    def counts(self, mask: Tensor) -> Tensor:
        """How many entries of each stretch are true."""
        up_to = mask.cumsum(0)[self._ends - 1]
        return up_to.diff(prepend=up_to.new_zeros(1))

    def best(self, score: Tensor, counts: Sequence[int]) -> Tensor:
        """Where the highest scores of each stretch are, ``counts`` of them; of equal scores the first positions win.

        The places of a stretch come together, the best first. NaN must not be among the scores.
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
    """Of every entry the number of its stretch: not by ``repeat_interleave``, which gives a stretch to one warp."""
    return torch.searchsorted(ends, torch.arange(total, device=ends.device), right=True, out_int32=True)
