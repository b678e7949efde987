"""What is timed for a layer: each part by torch's convolutions, with the work around them, and by the fused kernels.

The work around the convolutions is what a compiled graph leaves of it. Squares of the input are written by the kernel
that makes the input, so only the write counts; mean, variance and noise are read and the output is written by one
kernel; the two terms of the input's gradient are read instead of one, by whoever comes next.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, by_channels, empty_images
from gossamer.kernels.fused.plans import Tile

__all__ = ["Works"]


class Works:
    """Random tensors of a layer's shapes, and what to do with them.

    Args:
        geometry: Of the layer.
        dtype: Of everything.
        device: Placement.
    """

    def __init__(self, geometry: Geometry, dtype: torch.dtype, device: torch.device | str) -> None:
        self.geometry = geometry
        shape = (geometry.batch, geometry.n_in, geometry.height, geometry.width)
        weight = (geometry.n_out, geometry.n_in, *geometry.kernel)
        options: Any = {"dtype": dtype, "device": device}
        self.x, self.mean = by_channels(torch.randn(shape, **options)), by_channels(torch.randn(weight, **options))
        self.variance = by_channels(torch.rand(weight, **options))
        self.noise, self.dy, self.slope = (by_channels(torch.randn(geometry.output_shape, **options)) for _ in range(3))
        self.seed = torch.zeros(1, dtype=torch.int64, device=device)
        self.squares, self.dv = self.x * self.x, self.dy * self.slope
        self.out_mean, self.out_variance = (empty_images(self.x, geometry.output_shape) for _ in range(2))
        self.grads = torch.empty_like(self.x), torch.empty_like(self.x)

    def torch_forward(self) -> None:
        """Two convolutions, noise and the sum."""
        self.noise.normal_()
        self.squares.fill_(1.0)
        mean, variance = self._convolve(self.x, self.mean), self._convolve(self.squares, self.variance)
        torch.addcmul(mean, variance, self.noise, out=self.out_mean)

    def torch_input_gradient(self) -> None:
        """Two transposed convolutions and their sum; the gradient of the variance is there."""
        self._gradient(self.dy, self.x, self.mean, 0)
        self._gradient(self.dv, self.x, self.variance, 0)
        self.grads[0].copy_(self.grads[1])

    def torch_weight_gradients(self) -> None:
        """Two products; squares and the gradient of the variance are there."""
        self._gradient(self.dy, self.x, self.mean, 1)
        self._gradient(self.dv, self.squares, self.variance, 1)

    def variance_gradient(self) -> None:
        """The gradient dy · slope, for whoever cannot make it in passing."""
        torch.mul(self.dy, self.slope, out=self.dv)

    def square(self) -> None:
        """x² in the backward pass."""
        torch.mul(self.x, self.x, out=self.squares)

    def forward(self, tile: Tile, only_compiles: bool = False) -> None:
        """By the fused kernel, and the noise where it does not draw it."""
        from gossamer.kernels.fused.tiles.forward import forward

        if not tile.draws and not only_compiles:
            self.noise.normal_()
        noise = None if tile.draws else self.noise
        weights = self.mean, self.variance, None
        forward(self.x, *weights, noise, self.seed, geometry=self.geometry, tile=tile, only_compiles=only_compiles)

    def input_gradient(self, tile: Tile, only_compiles: bool = False) -> None:
        """By the fused kernel."""
        from gossamer.kernels.fused.tiles.input_gradient import input_gradient

        weights = self.mean, self.variance
        input_gradient(
            self.dy, self.slope, self.x, *weights, geometry=self.geometry, tile=tile, only_compiles=only_compiles
        )

    def weight_gradients(self, tile: Tile, only_compiles: bool = False) -> None:
        """By the fused kernel."""
        from gossamer.kernels.fused.tiles.weight_gradients import weight_gradients

        weight_gradients(self.dy, self.slope, self.x, geometry=self.geometry, tile=tile, only_compiles=only_compiles)

    def _convolve(self, x: Tensor, weight: Tensor) -> Tensor:
        return torch.conv2d(x, weight, None, self.geometry.stride, self.geometry.padding)

    def _gradient(self, dy: Tensor, x: Tensor, weight: Tensor, which: int) -> None:
        stride = [self.geometry.stride] * 2
        wanted = [which == 0, which == 1, False]
        torch.ops.aten.convolution_backward(
            dy, x, weight, None, stride, list(self.geometry.padding), [1, 1], False, [0, 0], 1, wanted
        )
