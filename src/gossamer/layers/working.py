"""A dense copy of a sparse weight to compute with, for devices that multiply dense matrices fastest.

The active vectors stay what is trained and stored. Whoever makes the copy writes them into it after each step and takes
the gradients of the active entries out of the gradients of the copy (``gossamer.capture``).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels import WeightMap, perturb

__all__ = ["WorkingWeight"]


class WorkingWeight(NamedTuple):
    """Dense leaves in the precision of the arithmetic: means, and variances σ² where the weight has any.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> working = WorkingWeight(torch.eye(2), torch.zeros(2, 2))
        >>> working.multiply(torch.tensor([[1.0, 2.0]]), None, LinearMap())
        tensor([[1., 2.]])
    """

    mean: Tensor
    variance: Tensor | None = None

    def multiply(
        self, x: Tensor, bias: Tensor | None, weight_map: WeightMap, *, noisy: bool = True, floor: float | None = None
    ) -> Tensor:
        """The map with one fresh noise an output, or at the means."""
        dtype = self.mean.dtype
        x = x.to(dtype) if x.is_floating_point() else x
        m = weight_map(x, self.mean, None if bias is None else bias.to(dtype))
        if self.variance is None or not noisy:
            return m
        return perturb(m, weight_map(weight_map.square(x), self.variance), _noise(m), floor)


def _noise(like: Tensor) -> Tensor:
    """Normals in the order in which the outputs of a convolution lie in memory, channels last."""
    if like.dim() < 3:
        return torch.randn_like(like)
    shape = (like.shape[0], *like.shape[2:], like.shape[1])
    return torch.randn(shape, dtype=like.dtype, device=like.device).movedim(-1, 1)
