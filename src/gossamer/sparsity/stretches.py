"""Vectors that lie end to end in one, so that a GPU is given one kernel for all of them.

Their lengths are known on the host, and nothing here makes it wait for the device.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

__all__ = ["Stretches"]


class Stretches:
    """Stretches of known lengths, none of them empty, in one vector.

    Args:
        lengths: How many entries each has.
        device: Where the vectors are.

    Example:
        >>> stretches = Stretches([3, 2], torch.device("cpu"))
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
        last = [start + length - 1 for start, length in zip(self.starts, lengths, strict=True)]
        self._lengths, self._last = self.table([self.lengths, last])

    def table(self, rows: Sequence[Sequence[int]]) -> Tensor:
        """Rows of one integer a stretch, on the device; without waiting for it, as ``torch.tensor`` would."""
        host = torch.tensor(rows)
        return (host.pin_memory() if self.device.type == "cuda" else host).to(self.device, non_blocking=True)

    def spread(self, values: Tensor) -> Tensor:
        """One value a stretch as one an entry."""
        return values.repeat_interleave(self._lengths, output_size=self.total)

    def sums(self, values: Tensor) -> Tensor:
        """The sum of each stretch, in an order of additions that every rank and rerun repeats."""
        return torch.stack([part.sum() for part in values.split(self.lengths)])

    def counts(self, mask: Tensor) -> Tensor:
        """How many entries of each stretch are true."""
        up_to = mask.cumsum(0)[self._last]
        return up_to.diff(prepend=up_to.new_zeros(1))

    def best(self, score: Tensor, counts: Sequence[int]) -> Tensor:
        """Where the highest scores of each stretch are, ``counts`` of them; of equal scores the first positions win.

        The places of a stretch come together, the best first. NaN must not be among the scores.
        """
        order = score.sort(descending=True, stable=True).indices
        number = torch.arange(len(self.lengths), dtype=torch.int16, device=self.device)  # short keys sort faster
        order = order[self.spread(number)[order].sort(stable=True).indices]
        taken = list(accumulate(counts[:-1], initial=0))
        n_taken, shift = self.table([counts, [start - first for start, first in zip(self.starts, taken, strict=True)]])
        shift = shift.repeat_interleave(n_taken, output_size=sum(counts))
        return order[torch.arange(len(shift), device=self.device) + shift]
