"""Sizes of a convolution that the fused kernels compute, and the tiles that they may cut it into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.maps import ConvMap, LinearMap, WeightMap

__all__ = ["Geometry", "Plan", "Tile", "as_images", "tiles_to_try"]


@dataclass(frozen=True)
class Geometry:
    """A convolution of ``(batch, n_in, height, width)`` with ``(n_out, n_in, *kernel)``."""

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
    def output_shape(self) -> tuple[int, int, int, int]:
        """``(batch, n_out, height, width)`` of the output."""
        height = (self.height + 2 * self.padding[0] - self.kernel[0]) // self.stride + 1
        width = (self.width + 2 * self.padding[1] - self.kernel[1]) // self.stride + 1
        return self.batch, self.n_out, height, width

    @property
    def rows(self) -> int:
        """Output pixels: rows of the matrix product that the convolution is."""
        batch, _, height, width = self.output_shape
        return batch * height * width

    @property
    def is_flat(self) -> bool:
        """Whether one loop runs over taps and channels: with an image's few channels, a tap would be mostly empty."""
        return self.n_in < 16


def as_images(x: Tensor, weight: Tensor, weight_map: WeightMap) -> tuple[Tensor, Tensor, int, tuple[int, int]] | None:
    """Input and weight of the equivalent convolution, its stride and padding; ``None`` if there is none."""
    if isinstance(weight_map, LinearMap) and weight_map.rows is None and x.dim() > 1:
        return x.reshape(-1, x.shape[-1])[:, :, None, None], weight[:, :, None, None], 1, (0, 0)
    if not isinstance(weight_map, ConvMap) or len(weight_map.stride) != 2 or weight_map.transposed:
        return None
    if weight_map.groups != 1 or weight_map.dilation != (1, 1) or weight_map.stride[0] != weight_map.stride[1]:
        return None
    return x, weight, weight_map.stride[0], (weight_map.padding[0], weight_map.padding[1])


def empty_images(like: Tensor, shape: tuple[int, ...]) -> Tensor:
    """An empty ``(batch, channels, height, width)`` whose channels are adjacent in memory."""
    batch, channels, height, width = shape
    empty: Tensor = torch.empty((batch, height, width, channels), dtype=like.dtype, device=like.device)
    return empty.permute(0, 3, 1, 2)


def by_channels(x: Tensor) -> Tensor:
    """The same images with their channels adjacent in memory."""
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


class Tile(NamedTuple):
    """The outputs of one program, how many terms of a sum it loads at once, and options for the compiler.

    Two float32 accumulators of a tile must fit into registers: 128 x 128 with 8 warps takes half of them. A forward
    tile that ``draws`` makes the noise instead of reading it. A ``turned`` tile is computed transposed, so that the
    weights are the first factor: where that factor is made in registers (x²), two products wait for each other.
    """

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    draws: bool = False
    turned: bool = False


@dataclass(frozen=True)
class Plan:
    """The tile of each part of a noisy product; ``None`` leaves the part to torch's convolutions."""

    forward: Tile | None = None
    input_gradient: Tile | None = None

    @property
    def name(self) -> str:
        """Which parts are fused."""
        fused = [part.replace("_", " ") for part, tile in vars(self).items() if tile is not None]
        return "triton " + ", ".join(fused) if fused else "cudnn"


TILES = [Tile(128, 64, 64, 4, 3), Tile(128, 128, 64, 8, 3)]
TILES += [Tile(128, 64, 64, 8, 3, turned=True), Tile(64, 64, 64, 4, 4, turned=True)]
FLAT_TILES = [Tile(64, 64, 32, 4, 2), Tile(128, 64, 32, 8, 2)]


def tiles_to_try(part: str, geometry: Geometry) -> list[Tile]:
    """Tiles no wider than the layer and no deeper than the channels of a tap; beyond these there are only zeros.

    Forward tiles draw their noise: at every shape measured that was faster than reading it.
    """
    columns, channels = geometry.n_out, geometry.n_in
    if part == "input_gradient":
        columns, channels = channels, columns
    deepest = max(16, 1 << (channels - 1).bit_length())  # 16: the least of a tensor core
    fitting = [tile._replace(depth=min(tile.depth, deepest)) for tile in TILES if tile.columns <= max(64, columns)]
    if part == "input_gradient":
        return [] if geometry.is_flat else fitting  # an image needs none
    return [tile._replace(draws=True) for tile in (FLAT_TILES if geometry.is_flat else fitting)]
