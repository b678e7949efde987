"""Embeddings from their active entries alone: the dense table is never formed.

Positions are sorted, so the active entries of a word are a range of them. Binary search finds it, and its entries are
scattered into the word's row of the output. Where sizes must not depend on data (torch.compile, torch.func, captured
CUDA graphs) or gradients are scaled by the words' counts, the reference kernel takes over, so the functions here accept
everything that it accepts. The padding row has no active entry.
"""

import math

import torch
from torch import Tensor, nn

from gossamer.kernels import reference
from gossamer.kernels.reference import EmbeddingMap, Placement, check_length, no_view, perturb


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """The rows of the words ``x``, as :func:`reference.product`."""
    if not takes(x, mean, *where):
        return reference.product(x, mean, bias, *where)
    return _rows(x, {"mean": mean}, *where)[0]


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of the rows, as :func:`reference.moments`."""
    if not takes(x, mean, *where):
        return reference.moments(x, mean, std, bias, *where)
    wide = torch.float32 if mean.dtype == torch.float16 else mean.dtype
    m, v = _rows(x, {"mean": mean, "std": std.to(wide).square()}, *where)
    return m, v


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of the rows with independent noise for each output, as :func:`reference.noisy_product`."""
    m, v = moments(x, mean, std, bias, *where)
    return perturb(m, v, torch.randn_like(m), floor)


def takes(x: Tensor, mean: Tensor, *where: *Placement) -> bool:
    """Whether the rows can be looked up."""
    position, _, weight_map = where
    if position is None or not isinstance(weight_map, EmbeddingMap) or weight_map.scale_grad_by_freq:
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    if x.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    plain = type(x) in (Tensor, nn.Parameter) and type(mean) in (Tensor, nn.Parameter)
    return plain and x.dtype in (torch.int32, torch.int64) and x.device == position.device == mean.device


def _rows(x: Tensor, vectors: dict[str, Tensor], *where: *Placement) -> list[Tensor]:
    """The rows of the output for each vector of active values."""
    position, shape, _ = where
    assert position is not None
    words, width = x.reshape(-1), math.prod(shape[1:])
    if words.numel() and not (int(words.min()) >= 0 and int(words.max()) < shape[0]):
        raise IndexError(
            f"words must be numbers from 0 to {shape[0] - 1}; got {int(words.min())} to {int(words.max())}"
        )
    start = words.to(position.dtype) * width
    low = torch.searchsorted(position, start)
    count = torch.searchsorted(position, start + width) - low
    row = torch.repeat_interleave(count)
    entry = torch.arange(len(row), device=x.device) - (count.cumsum(0) - count - low)[row]
    place = row * width + (position[entry] - start[row])
    rows = []
    for name, values in vectors.items():
        check_length(name, values, len(position))
        flat = values.new_zeros(len(words) * width).scatter(0, place, values.index_select(0, entry))
        rows.append(no_view(flat.view(*x.shape, *shape[1:])))
    return rows
