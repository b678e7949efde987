"""dW_mean = Σ dy x and dW_variance = Σ (dy · slope) x² over all pixels in one kernel.

Rows are output channels, columns input channels of one tap. The sum over pixels is long and the tiles are few, so it is
cut into parts that are added by a second kernel, in a fixed order: the same numbers come out each time.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, empty_images
from gossamer.kernels.fused.plans import Tile
from gossamer.kernels.fused.tiles.sizes import RUNTIME, sizes

__all__ = ["weight_gradients"]

PROCESSORS = 132  # of an H100 or H200, where a device does not say
LEAST_STEPS = 4  # of a part's loop: a shorter one is all start and end
BLOCK, AT_ONCE = 64, 32  # sums that one program adds up, and how many of their parts it loads at a time


def weight_gradients(
    dy: Tensor,
    slope: Tensor,
    x: Tensor,
    *,
    geometry: Geometry,
    tile: Tile,
    parts: int | None = None,
    only_compiles: bool = False,
) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the two weights; ``parts`` of the sum, otherwise enough to fill the device."""
    taps, width = (1, geometry.taps * geometry.n_in) if geometry.is_flat else (geometry.taps, geometry.n_in)
    n_tiles = taps * triton.cdiv(geometry.n_out, tile.rows) * triton.cdiv(width, tile.columns)
    steps = triton.cdiv(geometry.rows, tile.depth)
    parts = parts or max(1, min(_programs(tile, x.device) // n_tiles, steps // LEAST_STEPS))
    chunk = triton.cdiv(steps, parts) * tile.depth
    parts = triton.cdiv(geometry.rows, chunk)
    shape = (geometry.n_out, geometry.n_in, *geometry.kernel)
    grads = empty_images(x, shape), empty_images(x, shape)
    size = grads[0].numel()
    sums = grads if parts == 1 else tuple(torch.empty((2, parts, size), dtype=torch.float32, device=x.device))
    area, across = geometry.out_height * geometry.out_width, geometry.out_width
    _weight_gradients.run(
        dy,
        slope,
        x,
        *sums,
        geometry.rows,
        chunk,
        area.bit_length() - 1,
        across.bit_length() - 1,
        *sizes(geometry),
        BY_SHIFT=area & (area - 1) == 0 and across & (across - 1) == 0,
        FLAT=geometry.is_flat,
        EVEN=geometry.n_out % tile.rows == 0 and width % tile.columns == 0,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        DEPTH=tile.depth,
        num_warps=tile.warps,
        num_stages=tile.stages,
        grid=(n_tiles, parts),
        warmup=only_compiles,
    )
    if parts > 1 and not only_compiles:
        _add[(triton.cdiv(size, BLOCK), 2)](*sums, *grads, size, parts, AT_ONCE=AT_ONCE, BLOCK=BLOCK)
    return grads


def _programs(tile: Tile, device: torch.device) -> int:
    """As many as run at the same time: their registers let three of 4 warps share a processor, or two of 8."""
    processors = PROCESSORS
    if device.type == "cuda":
        processors = torch.cuda.get_device_properties(device).multi_processor_count
    return processors * (3 if tile.warps == 4 else 2)


@triton.jit(do_not_specialize=["rows", "chunk", "log_area", "log_width", *RUNTIME])
def _weight_gradients(
    dy,
    slope,
    x,
    grad_mean,
    grad_variance,
    rows,
    chunk,
    log_area,
    log_width,
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
    BY_SHIFT: tl.constexpr,
    FLAT: tl.constexpr,
    EVEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    terms = kernel_height * kernel_width * n_in
    columns = terms if FLAT else n_in
    across, down = tl.cdiv(columns, COLUMNS), tl.cdiv(n_out, ROWS)
    tile, part = tl.program_id(0), tl.program_id(1)
    column = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    row = tile // across % down * ROWS + tl.arange(0, ROWS)
    tap = tile // (across * down)
    channel = column
    if FLAT:  # a column is a channel of a tap, and there is one tile across all of them
        tap_of_column = column // n_in
        channel = column % n_in
        dh = (tap_of_column // kernel_width - pad_height)[None, :]
        dw = (tap_of_column % kernel_width - pad_width)[None, :]
    else:
        dh, dw = tap // kernel_width - pad_height, tap % kernel_width - pad_width
    is_row, is_column = row < n_out, column < columns
    sum_mean = tl.zeros((ROWS, COLUMNS), tl.float32)
    sum_variance = tl.zeros((ROWS, COLUMNS), tl.float32)
    last = tl.minimum(rows, (part + 1) * chunk)
    for start in range(part * chunk, last, DEPTH):
        output = start + tl.arange(0, DEPTH)
        if BY_SHIFT:  # as for images of 32 x 32 and their halves
            image = output >> log_area
            pixel = output & (out_height * out_width - 1)
            oh, ow = pixel >> log_width, pixel & (out_width - 1)
        else:
            image = output // (out_height * out_width)
            pixel = output % (out_height * out_width)
            oh, ow = pixel // out_width, pixel % out_width
        is_output = output < last
        dy_mask = is_output[:, None]
        if FLAT:
            h, w = (oh * stride)[:, None] + dh, (ow * stride)[:, None] + dw
            x_mask = dy_mask & (h >= 0) & (h < height) & (w >= 0) & (w < width)
            in_place = (((image * height)[:, None] + h) * width + w) * n_in + channel[None, :]
        else:
            h, w = oh * stride + dh, ow * stride + dw
            x_mask = (is_output & (h >= 0) & (h < height) & (w >= 0) & (w < width))[:, None]
            in_place = (((image * height + h) * width + w) * n_in)[:, None] + channel[None, :]
        if not EVEN:
            dy_mask = dy_mask & is_row[None, :]
            x_mask = x_mask & is_column[None, :]
        out_place = (output * n_out)[:, None] + row[None, :]
        dy_tile = tl.load(dy + out_place, mask=dy_mask, other=0.0)
        slope_tile = tl.load(slope + out_place, mask=dy_mask, other=0.0)
        x_tile = tl.load(x + in_place, mask=x_mask, other=0.0)
        sum_mean = tl.dot(tl.trans(dy_tile), x_tile, sum_mean)
        sum_variance = tl.dot(tl.trans(dy_tile * slope_tile), x_tile * x_tile, sum_variance)
    place = part * n_out * terms + row[:, None] * terms + tap * n_in + column[None, :]
    mask = is_row[:, None] & is_column[None, :]
    tl.store(grad_mean + place, sum_mean.to(grad_mean.dtype.element_ty), mask=mask)
    tl.store(grad_variance + place, sum_variance.to(grad_variance.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["parts"])
def _add(sums_mean, sums_variance, grad_mean, grad_variance, size, parts, AT_ONCE: tl.constexpr, BLOCK: tl.constexpr):
    """The parts of a sum, for the mean and, in the second row of programs, for the variance."""
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = place < size
    sums, grad = sums_mean, grad_mean
    if tl.program_id(1) == 1:
        sums, grad = sums_variance, grad_variance
    total = tl.zeros((AT_ONCE, BLOCK), tl.float32)
    for start in range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        loaded = (part < parts)[:, None] & mask[None, :]
        total += tl.load(sums + part[:, None] * size + place[None, :], mask=loaded, other=0.0)
    tl.store(grad + place, tl.sum(total, axis=0).to(grad.dtype.element_ty), mask=mask)
