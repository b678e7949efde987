"""y = conv(x, W_mean) + b + sqrt(conv(x², W_variance)) · ε in one kernel, and the slope ε / 2 std for its gradient.

An implicit matrix product: rows are output pixels, columns output channels, and the sum runs over the taps of the
kernel and, within each, the input channels. A tile of x is loaded once, squared in registers, and multiplied with both
weights.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, empty_images
from gossamer.kernels.fused.plans import Tile
from gossamer.kernels.fused.tiles.noise import normals
from gossamer.kernels.fused.tiles.sizes import RUNTIME, sizes
from gossamer.kernels.reference import VARIANCE_FLOOR

__all__ = ["forward"]

FLOOR = tl.constexpr(VARIANCE_FLOOR)


def forward(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    noise: Tensor | None,
    seed: Tensor | None,
    *,
    geometry: Geometry,
    tile: Tile,
    layer: int = 0,
    floor: float | None = None,
    only_compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output and slope; the noise is read where it is given, and drawn from ``seed`` and ``layer`` otherwise."""
    y, slope = (empty_images(x, geometry.output_shape) for _ in range(2))
    grid = (triton.cdiv(geometry.rows, tile.rows) * triton.cdiv(geometry.n_out, tile.columns),)
    _forward.run(
        x,
        mean,
        variance,
        x if bias is None else bias,
        x if noise is None else noise,
        x if seed is None or noise is not None else seed,
        y,
        slope,
        layer,
        geometry.rows,
        floor or 0.0,
        *sizes(geometry),
        HAS_BIAS=bias is not None,
        HAS_FLOOR=floor is not None,
        DRAWS=noise is None,
        FAST=x.is_cuda,
        FLAT=geometry.is_flat,
        EVEN_DEPTH=geometry.n_in % tile.depth == 0,
        EVEN_COLUMNS=geometry.n_out % tile.columns == 0,
        TURNED=tile.turned and not geometry.is_flat,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        grid=grid,
        warmup=only_compiles,
    )
    return y, slope


@triton.jit(do_not_specialize=["layer", "rows", "floor", *RUNTIME])
def _forward(
    x,
    mean,
    variance,
    bias,
    noise,
    seed,
    y,
    slope,
    layer,
    rows,
    floor,
    n_in,
    n_out,
    height,
    width,
    out_height,
    out_width,
    kernel_height,
    kernel_width,
    stride,
    pad_height,
    pad_width,
    HAS_BIAS: tl.constexpr,
    HAS_FLOOR: tl.constexpr,
    DRAWS: tl.constexpr,
    FAST: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN_DEPTH: tl.constexpr,
    EVEN_COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    # Tiles of the same rows are neighbours in time, so that x comes out of the cache for all but the first.
    tiles_across = tl.cdiv(n_out, COLUMNS)
    row = tl.program_id(0) // tiles_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles_across * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    image = row // (out_height * out_width)
    pixel = row % (out_height * out_width)
    top = pixel // out_width * stride - pad_height
    left = pixel % out_width * stride - pad_width
    place = ((image * height + top) * width + left) * n_in
    terms = kernel_height * kernel_width * n_in
    is_row, is_column = row < rows, column < n_out
    weight_place = depth[:, None] + column[None, :] * terms
    if TURNED:
        sum_mean, sum_variance = tl.zeros((COLUMNS, ROWS), tl.float32), tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        sum_mean, sum_variance = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    dh, dw, first = 0, 0, 0
    steps = kernel_height * kernel_width * tl.cdiv(n_in, DEPTH)
    if FLAT:
        steps = 0
        for start in range(0, terms, DEPTH):
            term = start + depth
            tap_h, tap_w = term // n_in // kernel_width, term // n_in % kernel_width
            h, w = top[:, None] + tap_h[None, :], left[:, None] + tap_w[None, :]
            x_mask = (h >= 0) & (h < height) & (w >= 0) & (w < width) & (term < terms)[None, :] & is_row[:, None]
            shift = (tap_h * width + tap_w) * n_in + term % n_in
            x_tile = tl.load(x + (place[:, None] + shift[None, :]), mask=x_mask, other=0.0)
            w_mask = (term < terms)[:, None] & is_column[None, :]
            mean_tile = tl.load(mean + (weight_place + start), mask=w_mask, other=0.0)
            variance_tile = tl.load(variance + (weight_place + start), mask=w_mask, other=0.0)
            sum_mean = tl.dot(x_tile, mean_tile, sum_mean)
            sum_variance = tl.dot(x_tile * x_tile, variance_tile, sum_variance)
    for _ in range(steps):
        h, w = top + dh, left + dw
        within = is_row & (h >= 0) & (h < height) & (w >= 0) & (w < width)
        x_mask = within[:, None]
        if not EVEN_DEPTH:
            x_mask = x_mask & (first + depth < n_in)[None, :]
        x_tile = tl.load(
            x + (place + ((dh * width + dw) * n_in + first))[:, None] + depth[None, :], mask=x_mask, other=0.0
        )
        term = (dh * kernel_width + dw) * n_in + first
        if EVEN_DEPTH and EVEN_COLUMNS:
            mean_tile = tl.load(mean + (weight_place + term))
            variance_tile = tl.load(variance + (weight_place + term))
        else:
            w_mask = (first + depth < n_in)[:, None] & is_column[None, :]
            mean_tile = tl.load(mean + (weight_place + term), mask=w_mask, other=0.0)
            variance_tile = tl.load(variance + (weight_place + term), mask=w_mask, other=0.0)
        if TURNED:
            sum_mean = tl.dot(tl.trans(mean_tile), tl.trans(x_tile), sum_mean)
            sum_variance = tl.dot(tl.trans(variance_tile), tl.trans(x_tile * x_tile), sum_variance)
        else:
            sum_mean = tl.dot(x_tile, mean_tile, sum_mean)
            sum_variance = tl.dot(x_tile * x_tile, variance_tile, sum_variance)
        # Channels of a tap, then the next tap: counters instead of divisions.
        first += DEPTH
        is_done = first >= n_in
        first = tl.where(is_done, 0, first)
        dw += is_done.to(tl.int32)
        is_done = dw == kernel_width
        dw = tl.where(is_done, 0, dw)
        dh += is_done.to(tl.int32)
    if TURNED:
        sum_mean, sum_variance = tl.trans(sum_mean), tl.trans(sum_variance)
    if HAS_BIAS:
        sum_mean += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_place = row[:, None] * n_out + column[None, :]
    out_mask = is_row[:, None] & is_column[None, :]
    if DRAWS:
        group = tl.program_id(0) % tiles_across * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
        eps = normals(tl.load(seed), layer, row, group, tl.cdiv(n_out, 4), ROWS, COLUMNS // 4, FAST)
    else:
        eps = tl.load(noise + out_place, mask=out_mask, other=0.0).to(tl.float32)
    if HAS_FLOOR:
        inverse_std = tl.rsqrt(sum_variance + floor)
        std = (sum_variance + floor) * inverse_std
    else:
        inverse_std = tl.where(sum_variance > FLOOR, tl.rsqrt(tl.maximum(sum_variance, FLOOR)), 0.0)
        std = sum_variance * inverse_std
    tl.store(y + out_place, (sum_mean + std * eps).to(y.dtype.element_ty), mask=out_mask)
    tl.store(slope + out_place, (0.5 * eps * inverse_std).to(slope.dtype.element_ty), mask=out_mask)
