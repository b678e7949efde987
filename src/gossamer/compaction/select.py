"""The one module of a compacted network that torch does not have."""

from __future__ import annotations

from torch import Tensor, nn

__all__ = ["Select"]


class Select(nn.Module):
    """Some of the entries along a dimension: the inputs that a network still reads.

    Example:
        >>> import torch
        >>> Select(torch.tensor([0, 2]))(torch.tensor([[1.0, 2.0, 3.0]]))
        tensor([[1., 3.]])
    """

    index: Tensor

    def __init__(self, index: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        """The chosen entries, in their order."""
        return x.index_select(self.dim, self.index)

    def extra_repr(self) -> str:
        """How many of them."""
        return f"{len(self.index)}, dim={self.dim}"
