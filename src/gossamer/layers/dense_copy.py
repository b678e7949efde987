"""A dense copy of a sparse weight to compute with.

It is for devices that multiply dense matrices fastest. The active vectors stay what is trained and stored:
``gossamer.train.capture`` writes them into the copy after each step and gathers their gradients from those of the copy.
"""

import torch
from torch import Tensor

from gossamer.kernels import WeightMap, perturb


class DenseCopy:
    """Dense leaves in the precision of the arithmetic: means, and variances σ² where the weight has any.

    ``mean`` is zero where nothing is active. For a weight that trains with drawn weights it is a draw; then, and for a
    weight without a distribution, ``variance`` is ``None``.
    """

    def __init__(self, mean: Tensor, variance: Tensor | None = None) -> None:
        self.mean, self.variance = mean, variance
        self.noise: Tensor | None = None  # drawn elsewhere, for outputs of its shape; otherwise it is drawn here
        self.outputs: list[torch.Size] = []  # shapes of the noisy products so far, to draw their noise in advance

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
        """The map with fresh noise for each output, or at the means."""
        dtype = self.mean.dtype
        x = x.to(dtype) if x.is_floating_point() else x
        bias = None if bias is None else bias.to(dtype)
        m = weight_map(x, self.mean, bias)
        if self.variance is None or not noisy:
            return m
        if not torch.compiler.is_compiling():
            self.outputs.append(m.shape)
        given = self.noise
        noise = given if given is not None and given.shape == m.shape else torch.randn_like(m)
        return perturb(m, weight_map(weight_map.square(x), self.variance), noise, floor)
