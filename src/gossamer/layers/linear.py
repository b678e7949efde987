"""Linear layers with a sparse weight."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from gossamer.kernels import LinearMap
from gossamer.layers.module import DenseWeight, SparseLayer

__all__ = ["SparseLinear"]


class SparseLinear(SparseLayer):
    """``y = x Wᵀ + b`` with a sparse W.

    Example:
        >>> import torch, gossamer
        >>> layer = gossamer.bayesianize(nn.Linear(20, 10), density=0.1)
        >>> layer(torch.zeros(3, 20)).shape, len(layer.mean), len(layer.std)
        (torch.Size([3, 10]), 20, 20)
    """

    replaces = (nn.Linear,)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The one weight; a row of it adds up to an output."""
        return [DenseWeight("weight", layer.weight, fan_in=layer.in_features)]

    def forward(self, x: Tensor, rows: tuple[int, int] | None = None) -> Tensor:
        """The outputs, or those of a range of them."""
        return self.weight.multiply(x, self.bias, LinearMap(rows))
