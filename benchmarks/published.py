"""Dense LRT and sparsity as published code has them: two dense products by autograd, masks of zeros and ones.

Here for comparison only. Means, standard deviations, gradients and momenta have the size of the dense weight, and
autograd keeps what the formula leaves behind: x², σ², the variance, its root, the noise. With a mask both are
multiplied by it in every forward pass, and so are their gradients in the backward pass. The mask holds floats: with
booleans, which take a quarter of the memory, torch multiplies several times slower.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from gossamer.convert import bayesianize
from gossamer.kernels import WeightMap
from gossamer.layers import GaussianWeight, SparseModule
from gossamer.layers.gaussian import REFERENCE_FLOOR
from gossamer.priors import normal_kl

__all__ = ["PublishedWeight", "published"]


def published(build: Callable[[], nn.Module], density: float = 1.0) -> nn.Module:
    """A dense Bayesian network, all but a share ``density`` of whose weights are masked out.

    Example:
        >>> network = published(lambda: nn.Sequential(nn.Linear(20, 10)), density=0.1)
        >>> len(network[0].mean), int((network[0].dense_std() > 0).sum())
        (200, 20)
    """
    network, pattern = bayesianize(build(), density=1.0), bayesianize(build(), density=density)
    for layer, other in zip(network.modules(), pattern.modules(), strict=True):
        if isinstance(layer, SparseModule) and isinstance(other, SparseModule):
            for name, weight in layer.named_weights().items():
                assert isinstance(weight, GaussianWeight)
                position = other.named_weights()[name].support.position if density < 1 else None
                setattr(layer, name, PublishedWeight(weight, position))
    return network


class PublishedWeight(GaussianWeight):
    """A dense weight of which only the entries at ``position`` are let through, where there is one."""

    mask: Tensor | None

    def __init__(self, dense: GaussianWeight, position: Tensor | None) -> None:
        mask = None
        if position is not None:
            mask = torch.zeros_like(dense.mean.detach())
            mask[position.long()] = 1
        mean = dense.mean.detach() * (1 if mask is None else mask)
        super().__init__(dense.support, mean, dense.std.detach(), dense.prior_std)
        self.register_buffer("mask", mask)

    @property
    def std(self) -> Tensor:
        """σ, zero where the mask is."""
        return super().std if self.mask is None else super().std * self.mask

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the entries let through; one whose σ is the prior's adds nothing."""
        if self.mask is None:
            return super().kl()
        std = torch.lerp(self.mask.new_tensor(self.prior_std), super().std, self.mask)
        return normal_kl(self.mean * self.mask, std, self.prior_std)

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """The map with one fresh noise an output, as the formula reads."""
        shape, std = self.support.shape, self.std
        mean = self.mean if self.mask is None else self.mean * self.mask
        m = weight_map(x, mean.view(shape), bias)
        v = weight_map(x * x, (std * std).view(shape))
        return m + torch.sqrt(v + REFERENCE_FLOOR) * torch.randn_like(m)
