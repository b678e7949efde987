"""Sparsity as published implementations have it: dense tensors, multiplied by a mask of zeros and ones.

Here for comparison only. Means, standard deviations, gradients and momenta have the size of the dense weight; in every
forward pass both are multiplied by the mask, and the backward pass multiplies their gradients by it. The mask holds
floats: with booleans, which take a quarter of the memory, torch multiplies several times slower.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer import kernels
from gossamer.convert import bayesianize
from gossamer.kernels import WeightMap
from gossamer.layers import GaussianWeight, SparseModule
from gossamer.priors import normal_kl

__all__ = ["MaskedWeight", "masked"]


def masked(build: Callable[[], nn.Module], density: float) -> nn.Module:
    """A dense Bayesian network, all but a share ``density`` of whose weights are masked out.

    Example:
        >>> network = masked(lambda: nn.Sequential(nn.Linear(20, 10)), density=0.1)
        >>> len(network[0].mean), int((network[0].dense_std() > 0).sum())
        (200, 20)
    """
    network, pattern = bayesianize(build(), density=1.0), bayesianize(build(), density=density)
    for layer, other in zip(network.modules(), pattern.modules(), strict=True):
        if isinstance(layer, SparseModule) and isinstance(other, SparseModule):
            for name, weight in layer.named_weights().items():
                position = other.named_weights()[name].support.position
                if position is not None and isinstance(weight, GaussianWeight):
                    setattr(layer, name, MaskedWeight(weight, position))
    return network


class MaskedWeight(GaussianWeight):
    """A dense weight of which only the entries at ``position`` are let through."""

    mask: Tensor

    def __init__(self, dense: GaussianWeight, position: Tensor) -> None:
        mask = torch.zeros_like(dense.mean.detach())
        mask[position.long()] = 1
        super().__init__(dense.support, dense.mean.detach() * mask, dense.std.detach(), dense.prior_std)
        self.register_buffer("mask", mask)

    @property
    def std(self) -> Tensor:
        """σ, zero where the mask is."""
        return super().std * self.mask

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the entries let through; one whose σ is the prior's adds nothing."""
        std = torch.lerp(self.mask.new_tensor(self.prior_std), super().std, self.mask)
        return normal_kl(self.mean * self.mask, std, self.prior_std)

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The map with one fresh noise an output, by two dense products."""
        shape = self.support.shape
        return kernels.noisy_product(x, self.mean * self.mask, self.std, bias, None, shape, weight_map)
