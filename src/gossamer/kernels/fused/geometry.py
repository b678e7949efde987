"""Sizes of a convolution that the fused kernels compute; a linear layer is one of 1 x 1 images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.kernels.maps import ConvMap, LinearMap, WeightMap

__all__ = ["Geometry", "as_images"]

LARGEST = 2**31 - 1  # elements of a tensor: offsets are 32-bit numbers


@dataclass(frozen=True)
class Geometry:
    """A convolution of ``(batch, n_in, height, width)`` with ``(n_out, n_in, *kernel)``.

    Example:
        >>> geometry = Geometry.of((128, 64, 32, 32), (128, 64, 3, 3), stride=2, padding=(1, 1))
        >>> geometry.output_shape, geometry.rows
        ((128, 128, 16, 16), 32768)
    """

    batch: int
    n_in: int
    height: int
    width: int
    n_out: int
    kernel: tuple[int, int]
    stride: int
    padding: tuple[int, int]

    @classmethod
    def of(cls, x: tuple[int, ...], weight: tuple[int, ...], stride: int, padding: tuple[int, int]) -> Geometry:
        """From the shapes of input and weight."""
        batch, n_in, height, width = x
        return cls(batch, n_in, height, width, weight[0], (weight[2], weight[3]), stride, padding)

    @property
    def out_height(self) -> int:
        """Of the output."""
        return (self.height + 2 * self.padding[0] - self.kernel[0]) // self.stride + 1

    @property
    def out_width(self) -> int:
        """Of the output."""
        return (self.width + 2 * self.padding[1] - self.kernel[1]) // self.stride + 1

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """``(batch, n_out, out_height, out_width)``."""
        return self.batch, self.n_out, self.out_height, self.out_width

    @property
    def rows(self) -> int:
        """Output pixels: rows of the matrix product that the convolution is."""
        return self.batch * self.out_height * self.out_width

    @property
    def taps(self) -> int:
        """Pixels of the kernel."""
        return self.kernel[0] * self.kernel[1]

    @property
    def is_flat(self) -> bool:
        """Whether taps and channels make one sum: with the few channels of an image a tap would be mostly empty."""
        return self.n_in < 16

    @property
    def products(self) -> int:
        """Multiplications of one pass."""
        return self.rows * self.n_out * self.n_in * self.taps

    @property
    def fits(self) -> bool:
        """Whether no tensor has more elements than a 32-bit offset reaches."""
        return max(self.batch * self.n_in * self.height * self.width, self.rows * self.n_out) <= LARGEST


def as_images(x: Tensor, weight: Tensor, weight_map: WeightMap) -> tuple[Tensor, Tensor, int, tuple[int, int]] | None:
    """Input and weight of the equivalent convolution, its stride and padding; ``None`` where there is none.

    Example:
        >>> x, weight, stride, padding = as_images(torch.ones(5, 3), torch.ones(2, 3), LinearMap())
        >>> x.shape, weight.shape, stride, padding
        (torch.Size([5, 3, 1, 1]), torch.Size([2, 3, 1, 1]), 1, (0, 0))
    """
    if isinstance(weight_map, LinearMap) and weight_map.rows is None and x.dim() > 1:
        return x.reshape(-1, x.shape[-1])[:, :, None, None], weight[:, :, None, None], 1, (0, 0)
    if not isinstance(weight_map, ConvMap) or len(weight_map.stride) != 2 or weight_map.transposed:
        return None
    if weight_map.groups != 1 or weight_map.dilation != (1, 1) or weight_map.stride[0] != weight_map.stride[1]:
        return None
    return x, weight, weight_map.stride[0], (weight_map.padding[0], weight_map.padding[1])


def empty_images(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty ``(batch, channels, height, width)`` whose channels are neighbours in memory."""
    batch, channels, height, width = shape
    empty: Tensor = torch.empty((batch, height, width, channels), dtype=like.dtype, device=like.device)
    return empty.permute(0, 3, 1, 2)


def by_channels(x: Tensor) -> Tensor:
    """The same images with the channels as neighbours in memory, in a tensor without gaps."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
