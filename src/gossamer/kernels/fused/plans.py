"""How the parts of a noisy product are computed, and the few ways among which a measurement chooses.

A tile is what one program of a kernel computes. Two float32 accumulators of it, of mean and variance, have to fit into
the registers: 128 x 128 with 8 warps and 128 x 64 with 4 are 128 registers a thread, half of what there is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gossamer.kernels.fused.geometry import Geometry

__all__ = ["Plan", "Tile", "forward_tiles", "input_gradient_tiles", "weight_gradient_tiles"]


class Tile(NamedTuple):
    """Rows and columns of a tile, how many terms of a sum are loaded at once, and what the compiler is told.

    ``draws`` is only for the forward kernel: whether it draws the noise itself or reads it. With ``turned`` the
    transposed tile is computed, so that the weights are the first factor of a product. Tensor cores may take that from
    registers, and where it is made there (x²), the compiler makes one product wait for the other; the second factor
    goes through shared memory, at the price of writing it.
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
    """The tile of each part; ``None`` is the convolution of torch.

    Example:
        >>> Plan(forward=Tile(128, 64, 64, 4, 3)).name
        'triton forward'
    """

    forward: Tile | None = None
    input_gradient: Tile | None = None
    weight_gradients: Tile | None = None

    @property
    def name(self) -> str:
        """Which parts are fused."""
        parts = {
            "forward": self.forward,
            "input gradient": self.input_gradient,
            "weight gradients": self.weight_gradients,
        }
        fused = [part for part, tile in parts.items() if tile is not None]
        return "triton " + ", ".join(fused) if fused else "cudnn"


def forward_tiles(geometry: Geometry) -> list[Tile]:
    """What to try for the product itself.

    Example:
        >>> [tile.depth for tile in forward_tiles(Geometry(1, 3, 8, 8, 64, (3, 3), 1, (1, 1)))]
        [32, 32]
    """
    if geometry.is_flat:
        return [Tile(64, 64, 32, 4, 2), Tile(128, 64, 32, 8, 2)]
    tiles = [
        Tile(128, 64, 64, 4, 3),
        Tile(128, 64, 64, 8, 3),
        Tile(128, 64, 64, 8, 3, turned=True),
        Tile(64, 64, 64, 4, 4, turned=True),
        Tile(128, 128, 64, 8, 3),
        Tile(128, 128, 64, 8, 3, turned=True),
    ]
    return _that_fit(tiles, columns=geometry.n_out, depth=geometry.n_in)


def input_gradient_tiles(geometry: Geometry) -> list[Tile]:
    """What to try for the gradient of the input; an image needs none."""
    if geometry.is_flat:
        return []
    tiles = [
        Tile(128, 64, 64, 4, 3),
        Tile(128, 64, 32, 4, 4),
        Tile(128, 64, 64, 8, 3, turned=True),
        Tile(64, 64, 64, 4, 3, turned=True),
        Tile(128, 128, 64, 8, 3),
        Tile(128, 128, 64, 8, 3, turned=True),
    ]
    return _that_fit(tiles, columns=geometry.n_in, depth=geometry.n_out)


def weight_gradient_tiles(geometry: Geometry) -> list[Tile]:
    """What to try for the gradients of both weights; rows are outputs here, columns inputs, the sum is over pixels."""
    if geometry.is_flat:
        return [Tile(64, 32, 64, 4, 3), Tile(64, 32, 128, 4, 2), Tile(64, 32, 32, 4, 4)]
    tiles = [
        Tile(64, 64, 64, 4, 3),
        Tile(64, 64, 128, 4, 2),
        Tile(128, 64, 64, 8, 3),
        Tile(128, 128, 64, 8, 2),
        Tile(128, 128, 32, 8, 3),
    ]
    return [tile for tile in _that_fit(tiles, columns=geometry.n_in) if tile.rows <= max(64, geometry.n_out)]


def _that_fit(tiles: list[Tile], columns: int, depth: int | None = None) -> list[Tile]:
    """No wider than the layer, and no deeper than the channels of a tap: what is beyond them would be zeros."""
    most = max(64, columns)
    deepest = max(16, 1 << (depth - 1).bit_length()) if depth is not None else 128  # 16: the least of a tensor core
    found = [tile._replace(depth=min(tile.depth, deepest)) for tile in tiles if tile.columns <= most]
    return list(dict.fromkeys(found))
