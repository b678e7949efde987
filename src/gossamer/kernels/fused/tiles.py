"""The kernels, in Triton: imported only where it is installed and a fused product is asked for.

Both are implicit matrix products over images whose channels are neighbours in memory. ``forward`` has output pixels as
rows and output channels as columns, and sums over taps and input channels; ``input_gradient`` the other way round.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import libdevice

from gossamer.kernels.fused.geometry import Geometry, Tile, empty_images
from gossamer.kernels.reference import VARIANCE_FLOOR

__all__ = ["forward", "input_gradient"]

# fmt: off
FLOOR = tl.constexpr(VARIANCE_FLOOR)
ROUNDS = tl.constexpr(7)  # Philox4x32 passes every test of BigCrush from 7 rounds on (Salmon et al., 2011, table 2)
TWO_PI = tl.constexpr(6.283185307179586)
MINUS_TWO_LN_TWO = tl.constexpr(-1.3862943611198906)
# Sizes that must not make kernels of their own. The channels may: being multiples of 16 makes loads wide.
RUNTIME = ["height", "width", "out_height", "out_width", "kernel_height", "kernel_width", "stride"]
RUNTIME += ["pad_height", "pad_width"]


def _sizes(g: Geometry) -> tuple[int, ...]:
    return (g.n_in, g.n_out, g.height, g.width, *g.output_shape[2:], *g.kernel, g.stride, *g.padding)


def _options(tile: Tile, only_compiles: bool) -> dict[str, Any]:
    names = ("ROWS", "COLUMNS", "DEPTH", "num_warps", "num_stages", "warmup")
    return dict(zip(names, (*tile[:5], only_compiles), strict=True))


def forward(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Tensor | None, noise: Tensor | None, seed: Tensor | None, *,
    geometry: Geometry, tile: Tile, layer: int = 0, floor: float | None = None, only_compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """Output conv(x, W_mean) + b + std · ε with std² = conv(x², W_variance), and the slope ε / 2 std for its gradient.

    A tile of x is loaded once and squared in registers. The noise is read where it is given, and drawn from ``seed``
    and ``layer`` otherwise.
    """
    y, slope = (empty_images(x, geometry.output_shape) for _ in range(2))
    given = (x if tensor is None else tensor for tensor in (bias, noise, seed if noise is None else None))
    _forward.run(
        x, mean, variance, *given, y, slope, layer, geometry.rows, floor or 0.0, *_sizes(geometry),
        HAS_BIAS=bias is not None, HAS_FLOOR=floor is not None, DRAWS=noise is None, FAST=x.is_cuda,
        FLAT=geometry.is_flat,
        EVEN_DEPTH=geometry.n_in % tile.depth == 0, EVEN_COLUMNS=geometry.n_out % tile.columns == 0,
        TURNED=tile.turned and not geometry.is_flat,
        grid=(triton.cdiv(geometry.rows, tile.rows) * triton.cdiv(geometry.n_out, tile.columns),),
        **_options(tile, only_compiles),
    )
    return y, slope


@triton.jit(do_not_specialize=["layer", "rows", "floor", *RUNTIME])
def _forward(
    x, mean, variance, bias, noise, seed, y, slope, layer, rows, floor,
    n_in, n_out, height, width, out_height, out_width, kernel_height, kernel_width, stride, pad_height, pad_width,
    HAS_BIAS: tl.constexpr, HAS_FLOOR: tl.constexpr, DRAWS: tl.constexpr, FAST: tl.constexpr, FLAT: tl.constexpr,
    EVEN_DEPTH: tl.constexpr, EVEN_COLUMNS: tl.constexpr, TURNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):
    # Tiles of the same rows are neighbours in time, so that x comes out of the cache for all but the first.
    tiles_across = tl.cdiv(n_out, COLUMNS)
    row = tl.program_id(0) // tiles_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles_across * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    image, pixel = row // (out_height * out_width), row % (out_height * out_width)
    top, left = pixel // out_width * stride - pad_height, pixel % out_width * stride - pad_width
    place = ((image * height + top) * width + left) * n_in
    terms = kernel_height * kernel_width * n_in
    is_row, is_column = row < rows, column < n_out
    weight_place = depth[:, None] + column[None, :] * terms
    sum_mean = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
    sum_variance = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
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
            tile = tl.load(x + (place[:, None] + shift[None, :]), mask=x_mask, other=0.0)
            mask = (term < terms)[:, None] & is_column[None, :]
            mean_tile = tl.load(mean + (weight_place + start), mask=mask, other=0.0)
            variance_tile = tl.load(variance + (weight_place + start), mask=mask, other=0.0)
            sum_mean, sum_variance = _add(tile, tile * tile, mean_tile, variance_tile, sum_mean, sum_variance, TURNED)
    for _ in range(steps):
        h, w = top + dh, left + dw
        x_mask = (is_row & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
        if not EVEN_DEPTH:
            x_mask = x_mask & (first + depth < n_in)[None, :]
        shift = (dh * width + dw) * n_in + first
        tile = tl.load(x + (place + shift)[:, None] + depth[None, :], mask=x_mask, other=0.0)
        term = (dh * kernel_width + dw) * n_in + first
        if EVEN_DEPTH and EVEN_COLUMNS:
            mean_tile, variance_tile = tl.load(mean + (weight_place + term)), tl.load(variance + (weight_place + term))
        else:
            mask = (first + depth < n_in)[:, None] & is_column[None, :]
            mean_tile = tl.load(mean + (weight_place + term), mask=mask, other=0.0)
            variance_tile = tl.load(variance + (weight_place + term), mask=mask, other=0.0)
        sum_mean, sum_variance = _add(tile, tile * tile, mean_tile, variance_tile, sum_mean, sum_variance, TURNED)
        dh, dw, first = _next(dh, dw, first, n_in, kernel_width, DEPTH)
    if TURNED:
        sum_mean, sum_variance = tl.trans(sum_mean), tl.trans(sum_variance)
    if HAS_BIAS:
        sum_mean += tl.load(bias + column, mask=is_column, other=0.0).to(tl.float32)[None, :]
    out_place = row[:, None] * n_out + column[None, :]
    out_mask = is_row[:, None] & is_column[None, :]
    if DRAWS:
        group = tl.program_id(0) % tiles_across * (COLUMNS // 4) + tl.arange(0, COLUMNS // 4)
        eps = _normals(tl.load(seed), layer, row, group, tl.cdiv(n_out, 4), ROWS, COLUMNS // 4, FAST)
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


def input_gradient(
    dy: Tensor, slope: Tensor, x: Tensor, mean: Tensor, variance: Tensor, *,
    geometry: Geometry, tile: Tile, only_compiles: bool = False,
) -> Tensor:
    """The gradient convᵀ(dy, W_mean) + 2 x · convᵀ(dy · slope, W_variance).

    With a stride only every second (third, …) tap meets a pixel, and which ones depends on the remainders of its
    coordinates: pixels of the same remainders make tiles of their own, and the other taps are never looked at.
    """
    dx = empty_images(x, (geometry.batch, geometry.n_in, geometry.height, geometry.width))
    across, down = -(-geometry.width // geometry.stride), -(-geometry.height // geometry.stride)
    rows = geometry.batch * across * down
    _input_gradient.run(
        dy, slope, x, mean, variance, dx, rows, *_sizes(geometry),
        EVEN_DEPTH=geometry.n_out % tile.depth == 0, EVEN_COLUMNS=geometry.n_in % tile.columns == 0,
        TURNED=tile.turned,
        grid=(triton.cdiv(rows, tile.rows) * triton.cdiv(geometry.n_in, tile.columns), geometry.stride**2),
        **_options(tile, only_compiles),
    )
    return dx


@triton.jit(do_not_specialize=["rows", *RUNTIME])
def _input_gradient(
    dy, slope, x, mean, variance, dx, rows,
    n_in, n_out, height, width, out_height, out_width, kernel_height, kernel_width, stride, pad_height, pad_width,
    EVEN_DEPTH: tl.constexpr, EVEN_COLUMNS: tl.constexpr, TURNED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):
    tiles_across = tl.cdiv(n_in, COLUMNS)
    row = tl.program_id(0) // tiles_across * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) % tiles_across * COLUMNS + tl.arange(0, COLUMNS)
    depth = tl.arange(0, DEPTH)
    rest_h, rest_w = tl.program_id(1) // stride, tl.program_id(1) % stride
    down, across = tl.cdiv(height, stride), tl.cdiv(width, stride)
    image, pixel = row // (down * across), row % (down * across)
    h, w = pixel // across * stride + rest_h, pixel % across * stride + rest_w
    is_row, is_column = (row < rows) & (h < height) & (w < width), column < n_in
    # Pixel h meets tap dh in output (h + pad - dh) / stride where that is whole: from `tap` on, every stride-th.
    tap_h, tap_w = (rest_h + pad_height) % stride, (rest_w + pad_width) % stride
    taps_h = (kernel_height - tap_h + stride - 1) // stride
    taps_w = (kernel_width - tap_w + stride - 1) // stride
    top, left = (h + pad_height - tap_h) // stride, (w + pad_width - tap_w) // stride
    place = ((image * out_height + top) * out_width + left) * n_out
    terms = kernel_height * kernel_width * n_in
    weight_place = depth[:, None] * terms + column[None, :]
    sum_mean = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
    sum_variance = tl.zeros((COLUMNS, ROWS) if TURNED else (ROWS, COLUMNS), tl.float32)
    dh, dw, first = 0, 0, 0
    for _ in range(taps_h * taps_w * tl.cdiv(n_out, DEPTH)):
        oh, ow = top - dh, left - dw
        mask = (is_row & (oh >= 0) & (oh < out_height) & (ow >= 0) & (ow < out_width))[:, None]
        if not EVEN_DEPTH:
            mask = mask & (first + depth < n_out)[None, :]
        out_place = (place + (first - (dh * out_width + dw) * n_out))[:, None] + depth[None, :]
        tile = tl.load(dy + out_place, mask=mask, other=0.0)
        slope_tile = tl.load(slope + out_place, mask=mask, other=0.0)
        tap = (tap_h + dh * stride) * kernel_width + tap_w + dw * stride
        at = weight_place + (first * terms + tap * n_in)
        if EVEN_DEPTH and EVEN_COLUMNS:
            mean_tile, variance_tile = tl.load(mean + at), tl.load(variance + at)
        else:
            w_mask = (first + depth < n_out)[:, None] & is_column[None, :]
            mean_tile, variance_tile = tl.load(mean + at, w_mask, 0.0), tl.load(variance + at, w_mask, 0.0)
        other = tile * slope_tile
        sum_mean, sum_variance = _add(tile, other, mean_tile, variance_tile, sum_mean, sum_variance, TURNED)
        dh, dw, first = _next(dh, dw, first, n_out, taps_w, DEPTH)
    if TURNED:
        sum_mean, sum_variance = tl.trans(sum_mean), tl.trans(sum_variance)
    in_place = (((image * height + h) * width + w) * n_in)[:, None] + column[None, :]
    in_mask = is_row[:, None] & is_column[None, :]
    x_tile = tl.load(x + in_place, mask=in_mask, other=0.0).to(tl.float32)
    tl.store(dx + in_place, (sum_mean + 2.0 * x_tile * sum_variance).to(dx.dtype.element_ty), mask=in_mask)


@triton.jit
def _add(tile, other, mean, variance, sum_mean, sum_variance, TURNED: tl.constexpr):
    """Both sums with the products of two tiles and two weights added."""
    if TURNED:
        sum_mean = tl.dot(tl.trans(mean), tl.trans(tile), sum_mean)
        sum_variance = tl.dot(tl.trans(variance), tl.trans(other), sum_variance)
    else:
        sum_mean = tl.dot(tile, mean, sum_mean)
        sum_variance = tl.dot(other, variance, sum_variance)
    return sum_mean, sum_variance


@triton.jit
def _next(dh, dw, first, channels, taps_across, DEPTH: tl.constexpr):
    """Channels of a tap, then the next tap: counters instead of divisions."""
    is_tap_done = first + DEPTH >= channels
    dw += is_tap_done.to(tl.int32)
    is_row_done = dw == taps_across
    return dh + is_row_done.to(tl.int32), tl.where(is_row_done, 0, dw), tl.where(is_tap_done, 0, first + DEPTH)


@triton.jit
def _normals(seed, layer, row, group, n_groups, ROWS: tl.constexpr, GROUPS: tl.constexpr, FAST: tl.constexpr):
    """``(ROWS, 4 · GROUPS)`` normals for these rows and groups of four columns, a function of seed, layer and place."""
    place = row[:, None] * n_groups + group[None, :]
    zero = place * 0
    a, b, c, d = tl.philox(seed, place, zero + layer, zero, zero, ROUNDS)
    first, second = _pair(a, b, FAST)
    third, fourth = _pair(c, d, FAST)
    return tl.reshape(tl.join(tl.join(first, second), tl.join(third, fourth)), (ROWS, 4 * GROUPS))


@triton.jit
def _pair(a, b, FAST: tl.constexpr):
    """Two normals from two random words, after Box and Muller."""
    share = ((a >> 8).to(tl.float32) + 0.5) * 5.9604644775390625e-08  # (0, 1), so that its logarithm is finite
    angle = ((b >> 8).to(tl.float32) * 5.9604644775390625e-08 - 0.5) * TWO_PI
    if FAST:
        radius = tl.sqrt(MINUS_TWO_LN_TWO * libdevice.fast_log2f(share))
        return radius * libdevice.fast_cosf(angle), radius * libdevice.fast_sinf(angle)
    radius = tl.sqrt(MINUS_TWO_LN_TWO * tl.log2(share))
    return radius * tl.cos(angle), radius * tl.sin(angle)
