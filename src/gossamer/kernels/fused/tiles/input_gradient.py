"""dx = convᵀ(dy, W_mean) + 2 x · convᵀ(dy · slope, W_variance) in one kernel.

Rows are input pixels, columns input channels, and the sum runs over taps and output channels. With a stride only every
second (third, …) tap meets a pixel, and which ones depends on the remainders of its coordinates: pixels of the same
remainders make tiles of their own, and the other taps are never looked at.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, empty_images
from gossamer.kernels.fused.plans import Tile
from gossamer.kernels.fused.tiles.sizes import RUNTIME, sizes

__all__ = ["input_gradient"]


def input_gradient(
    dy: Tensor,
    slope: Tensor,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    *,
    geometry: Geometry,
    tile: Tile,
    only_compiles: bool = False,
) -> Tensor:
    """Gradient with respect to ``x``."""
    dx = empty_images(x, (geometry.batch, geometry.n_in, geometry.height, geometry.width))
    across, down = -(-geometry.width // geometry.stride), -(-geometry.height // geometry.stride)
    rows = geometry.batch * across * down
    grid = (triton.cdiv(rows, tile.rows) * triton.cdiv(geometry.n_in, tile.columns), geometry.stride**2)
    _input_gradient.run(
        dy,
        slope,
        x,
        mean,
        variance,
        dx,
        rows,
        *sizes(geometry),
        EVEN_DEPTH=geometry.n_out % tile.depth == 0,
        EVEN_COLUMNS=geometry.n_in % tile.columns == 0,
        TURNED=tile.turned,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        grid=grid,
        warmup=only_compiles,
    )
    return dx


@triton.jit(do_not_specialize=["rows", *RUNTIME])
def _input_gradient(
    dy,
    slope,
    x,
    mean,
    variance,
    dx,
    rows,
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
    EVEN_DEPTH: tl.constexpr,
    EVEN_COLUMNS: tl.constexpr,
    TURNED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    tiles_across = tl.cdiv(n_in, COLUMNS)
    row = tl.program_id(0) // tiles_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles_across * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    rest_h, rest_w = tl.program_id(1) // stride, tl.program_id(1) % stride
    down, across = tl.cdiv(height, stride), tl.cdiv(width, stride)
    image = row // (down * across)
    pixel = row % (down * across)
    h = pixel // across * stride + rest_h
    w = pixel % across * stride + rest_w
    is_row = (row < rows) & (h < height) & (w < width)
    is_column = column < n_in
    # Pixel h meets tap dh in output (h + pad - dh) / stride where that is whole: from `tap` on, every stride-th.
    tap_h, tap_w = (rest_h + pad_height) % stride, (rest_w + pad_width) % stride
    taps_h = (kernel_height - tap_h + stride - 1) // stride
    taps_w = (kernel_width - tap_w + stride - 1) // stride
    top, left = (h + pad_height - tap_h) // stride, (w + pad_width - tap_w) // stride
    place = ((image * out_height + top) * out_width + left) * n_out
    terms = kernel_height * kernel_width * n_in
    weight_place = depth[:, None] * terms + column[None, :]
    if TURNED:
        sum_mean, sum_variance = tl.zeros((COLUMNS, ROWS), tl.float32), tl.zeros((COLUMNS, ROWS), tl.float32)
    else:
        sum_mean, sum_variance = tl.zeros((ROWS, COLUMNS), tl.float32), tl.zeros((ROWS, COLUMNS), tl.float32)
    dh, dw, first = 0, 0, 0
    for _ in range(taps_h * taps_w * tl.cdiv(n_out, DEPTH)):
        oh, ow = top - dh, left - dw
        within = is_row & (oh >= 0) & (oh < out_height) & (ow >= 0) & (ow < out_width)
        mask = within[:, None]
        if not EVEN_DEPTH:
            mask = mask & (first + depth < n_out)[None, :]
        out_place = (place + (first - (dh * out_width + dw) * n_out))[:, None] + depth[None, :]
        dy_tile = tl.load(dy + out_place, mask=mask, other=0.0)
        slope_tile = tl.load(slope + out_place, mask=mask, other=0.0)
        tap = (tap_h + dh * stride) * kernel_width + tap_w + dw * stride
        term = first * terms + tap * n_in
        if EVEN_DEPTH and EVEN_COLUMNS:
            mean_tile = tl.load(mean + (weight_place + term))
            variance_tile = tl.load(variance + (weight_place + term))
        else:
            w_mask = (first + depth < n_out)[:, None] & is_column[None, :]
            mean_tile = tl.load(mean + (weight_place + term), mask=w_mask, other=0.0)
            variance_tile = tl.load(variance + (weight_place + term), mask=w_mask, other=0.0)
        if TURNED:
            sum_mean = tl.dot(tl.trans(mean_tile), tl.trans(dy_tile), sum_mean)
            sum_variance = tl.dot(tl.trans(variance_tile), tl.trans(dy_tile * slope_tile), sum_variance)
        else:
            sum_mean = tl.dot(dy_tile, mean_tile, sum_mean)
            sum_variance = tl.dot(dy_tile * slope_tile, variance_tile, sum_variance)
        first += DEPTH
        is_done = first >= n_out
        first = tl.where(is_done, 0, first)
        dw += is_done.to(tl.int32)
        is_done = dw == taps_w
        dw = tl.where(is_done, 0, dw)
        dh += is_done.to(tl.int32)
    if TURNED:
        sum_mean, sum_variance = tl.trans(sum_mean), tl.trans(sum_variance)
    in_place = (((image * height + h) * width + w) * n_in)[:, None] + column[None, :]
    in_mask = is_row[:, None] & is_column[None, :]
    x_tile = tl.load(x + in_place, mask=in_mask, other=0.0).to(tl.float32)
    tl.store(dx + in_place, (sum_mean + 2.0 * x_tile * sum_variance).to(dx.dtype.element_ty), mask=in_mask)
