"""Which entries of a dense weight are active, and where they are stored.

A weight of ``size`` entries keeps only ``n_active`` numbers; ``position`` says where they belong. Everything that has
one number an entry (means, raw stds, gradients, optimizer state) is a vector in the order of ``position``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from gossamer import kernels

__all__ = ["Support"]


class Support(nn.Module):
    """Sorted flat positions of the active entries of a weight of shape ``shape``.

    Args:
        shape: Shape of the dense weight.
        position: Sorted flat positions, ``(n_active,)``; ``None`` means that every entry is active.
        frozen: Half-open range of flat positions that can never be active (the padding row of an embedding).
        shares_budget: Whether the number of active entries may move to other weights of the network.

    Example:
        >>> support = Support((2, 3), torch.tensor([1, 5]))
        >>> support.n_active, support.size, support.position.dtype
        (2, 6, torch.int32)
        >>> support.scatter(torch.tensor([10.0, 20.0]))
        tensor([[ 0., 10.,  0.],
                [ 0.,  0., 20.]])
    """

    position: Tensor | None

    def __init__(
        self,
        shape: tuple[int, ...],
        position: Tensor | None = None,
        frozen: tuple[int, int] = (0, 0),
        shares_budget: bool = False,
    ) -> None:
        super().__init__()
        self.shape = tuple(shape)
        self.frozen = frozen
        self.shares_budget = shares_budget
        self.register_buffer("position", None if position is None else position.to(self._dtype()))

    @property
    def size(self) -> int:
        """Number of entries that may be active."""
        return math.prod(self.shape) - (self.frozen[1] - self.frozen[0])

    @property
    def n_active(self) -> int:
        """Number of active entries."""
        return self.size if self.position is None else len(self.position)

    @property
    def is_dense(self) -> bool:
        """Whether every entry that may be active is: then there is nothing to move."""
        return self.n_active == self.size

    def scatter(self, values: Tensor, probe: Tensor | None = None) -> Tensor:
        """The dense tensor with ``values`` at the active positions and exact zeros elsewhere."""
        return kernels.scatter(values, self.position, self.shape, probe)

    def gather(self, dense: Tensor) -> Tensor:
        """The active entries of a dense tensor."""
        return kernels.gather(dense, self.position)

    def explicit(self, device: torch.device) -> Tensor:
        """The positions; where every entry was active they are written down from now on, so that some can go."""
        if self.position is None:
            start, stop = self.frozen
            every = torch.arange(math.prod(self.shape), dtype=self._dtype(), device=device)
            self.position = torch.cat([every[:start], every[stop:]])
        return self.position

    def set_position(self, position: Tensor) -> None:
        """Replace the positions; in place where the number of them is the same, so that captured graphs stay valid."""
        if self.position is None:
            raise ValueError("a dense support has no positions to replace")
        if len(position) == len(self.position):
            self.position.copy_(position)
        else:
            self.position = position.to(self.position)

    def check(self, position: Tensor) -> None:
        """Raise unless ``position`` is sorted, without repeats, inside the weight and off its frozen range."""
        sorted_inside = bool((position[1:] > position[:-1]).all()) and (
            len(position) == 0 or (int(position[0]) >= 0 and int(position[-1]) < math.prod(self.shape))
        )
        on_frozen = bool(((position >= self.frozen[0]) & (position < self.frozen[1])).any())
        if not sorted_inside or on_frozen:
            raise ValueError(
                f"positions for a weight of shape {self.shape} must be sorted, unique, inside it and off its frozen "
                "range: the state is corrupt or belongs to another network"
            )

    def extra_repr(self) -> str:
        """Shape and counts, for ``print(model)``."""
        return f"shape={self.shape}, active={self.n_active}/{self.size}"

    def _dtype(self) -> torch.dtype:
        # Half the bytes of int64, and enough for any weight below two thousand million entries.
        return torch.int32 if math.prod(self.shape) <= torch.iinfo(torch.int32).max else torch.int64
