"""A dense copy of a sparse weight to compute with, for devices that multiply dense matrices fastest.

The active vectors stay what is trained and stored. Whoever makes the copy writes them into it after each step and takes
the gradients of the active entries out of the gradients of the copy (``gossamer.capture``).
"""

from __future__ import annotations

import torch
from torch import Tensor

from gossamer.kernels import WeightMap, fused, perturb

__all__ = ["DenseCopy"]


class DenseCopy:
    """Dense leaves in the precision of the arithmetic: means, and variances σ² where the weight has any.

    Args:
        mean: Of every entry, zero where it is not active; or a draw, for a weight that trains with drawn weights.
        variance: Of every entry; ``None`` for a weight without a distribution, and for a draw.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> copied = DenseCopy(torch.eye(2), torch.zeros(2, 2))
        >>> copied.multiply(torch.tensor([[1.0, 2.0]]), None, LinearMap())
        tensor([[1., 2.]])
        >>> copied.outputs
        [torch.Size([1, 2])]
    """

    def __init__(self, mean: Tensor, variance: Tensor | None = None) -> None:
        self.mean, self.variance = mean, variance
        self.noise: Tensor | None = None  # drawn by somebody else for outputs of its shape; otherwise drawn here
        self.outputs: list[torch.Size] = []  # shapes of the noisy products so far, for who wants to draw the noise
        self.inputs: list[tuple[torch.Size, WeightMap]] = []  # and of what went into them, for who plans them
        self.plan, self.planned = fused.Plan(), torch.Size()  # of the fused kernels, for inputs of this shape
        self.seed: Tensor | None = None  # of the noise that they draw
        self.layer = 0

    @property
    def leaves(self) -> list[Tensor]:
        """What autograd gives gradients to."""
        return [self.mean] if self.variance is None else [self.mean, self.variance]

    def drawn(self, noisy: bool) -> Tensor:
        """One draw of the weight, or its means."""
        if self.variance is None or not noisy:
            return self.mean
        tiny = torch.finfo(self.variance.dtype).tiny  # at zero, the root has no gradient
        return torch.addcmul(self.mean, self.variance.clamp_min(tiny).sqrt(), torch.randn_like(self.mean))

    def multiply(
        self, x: Tensor, bias: Tensor | None, weight_map: WeightMap, *, noisy: bool = True, floor: float | None = None
    ) -> Tensor:
        """The map with one fresh noise an output, or at the means."""
        dtype = self.mean.dtype
        x = x.to(dtype) if x.is_floating_point() else x
        bias = None if bias is None else bias.to(dtype)
        if noisy and self.variance is not None and self.plan.forward is not None and x.shape == self.planned:
            weights, (noise, seed, layer) = (self.mean, self.variance, bias), (self.noise, self.seed, self.layer)
            return fused.noisy_product(
                x, *weights, weight_map, plan=self.plan, noise=noise, seed=seed, layer=layer, floor=floor
            )
        m = weight_map(x, self.mean, bias)
        if self.variance is None or not noisy:
            return m
        if not torch.compiler.is_compiling():
            self.outputs.append(m.shape)
            self.inputs.append((x.shape, weight_map))
        drawn = self.noise is not None and self.noise.shape == m.shape
        noise = self.noise if drawn and self.noise is not None else torch.randn_like(m)
        return perturb(m, weight_map(weight_map.square(x), self.variance), noise, floor)
