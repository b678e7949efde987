"""Convolutions with a sparse weight: one, two or three dimensions, transposed or not, every padding mode."""

import math
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kernels import ConvMap
from gossamer.layers.modules import DenseWeight, SparseLayer
from gossamer.layers.weight import SparseWeight


class SparseConv(SparseLayer):
    """A convolution with a sparse kernel."""

    replaces, kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d), "conv"

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer, weights)
        borders = _borders(layer)
        symmetric = borders[0::2] == borders[1::2]
        inside = layer.padding_mode == "zeros" and symmetric
        # What the convolution cannot pad by itself is padded before it; F.pad counts from the last dimension.
        self.borders = () if inside else borders
        self.pad_mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        padding = tuple(reversed(borders[0::2])) if inside else (0,) * len(layer.stride)
        self.map = ConvMap(layer.stride, padding, layer.dilation, layer.groups)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; the kernels of one output channel add up to an output."""
        fan_in = layer.in_channels // layer.groups * math.prod(layer.kernel_size)
        return [DenseWeight("weight", layer.weight, fan_in=fan_in)]

    def forward(self, x: Tensor) -> Tensor:
        single = x.dim() == len(self.map.stride) + 1
        x = x.unsqueeze(0) if single else x
        if self.borders:
            x = F.pad(x, self.borders, mode=self.pad_mode)
        y = self.weight.multiply(x, self.bias, self.map)
        return y.squeeze(0) if single else y


class SparseConvTranspose(SparseLayer):
    """A transposed convolution with a sparse kernel."""

    replaces, kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d), "conv"

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The weight; with a stride, only some taps of the kernel meet in an output."""
        taps = math.prod(layer.kernel_size) / math.prod(layer.stride)
        return [DenseWeight("weight", layer.weight, fan_in=max(1, round(layer.in_channels // layer.groups * taps)))]

    def forward(self, x: Tensor, output_size: list[int] | None = None) -> Tensor:
        plain: Any = self.template
        dims = len(plain.stride)
        output_padding = plain.output_padding
        if output_size is not None:
            sizes = plain.stride, plain.padding, plain.kernel_size, dims, plain.dilation
            output_padding = plain._output_padding(x, output_size, *sizes)
        geometry = plain.stride, plain.padding, plain.dilation, plain.groups
        weight_map = ConvMap(*geometry, transposed=True, output_padding=tuple(output_padding))
        single = x.dim() == dims + 1
        y = self.weight.multiply(x.unsqueeze(0) if single else x, self.bias, weight_map)
        return y.squeeze(0) if single else y


def _borders(layer: Any) -> list[int]:
    """Padding before and after each dimension, from the last dimension to the first, as ``F.pad`` takes it."""
    borders: list[int] = []
    for i in reversed(range(len(layer.kernel_size))):
        if layer.padding == "valid":
            before, after = 0, 0
        elif layer.padding == "same":
            total = layer.dilation[i] * (layer.kernel_size[i] - 1)
            before, after = total // 2, total - total // 2
        else:
            before = after = layer.padding[i]
        borders += [before, after]
    return borders
