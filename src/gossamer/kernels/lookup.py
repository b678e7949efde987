"""Embeddings from their active entries alone: the dense table is never formed.

Positions are sorted, so the active entries of a word are a range of them. Binary search finds it, and its entries are
scattered into the word's row of the output. Where sizes must not depend on data (torch.compile, torch.func, captured
CUDA graphs) the reference kernel takes over, so the functions here accept everything that it accepts.
"""

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from gossamer.kernels import reference
from gossamer.kernels.reference import EmbeddingMap, Placement, check_length, no_view, perturb


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """The rows of the words ``x``, as :func:`reference.product`."""
    if not takes(x, mean, *where):
        return reference.product(x, mean, bias, *where)
    return _find(x, *where).rows("mean", mean)


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of the rows, as :func:`reference.moments`."""
    if not takes(x, mean, *where):
        return reference.moments(x, mean, std, bias, *where)
    found = _find(x, *where)
    wide = torch.float32 if mean.dtype == torch.float16 else mean.dtype
    return found.rows("mean", mean), found.rows("std", std.to(wide).square())


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of the rows with independent noise for each output, as :func:`reference.noisy_product`."""
    m, v = moments(x, mean, std, bias, *where)
    return perturb(m, v, torch.randn_like(m), floor)


def takes(x: Tensor, mean: Tensor, *where: *Placement) -> bool:
    """Whether the rows can be looked up."""
    position, _, weight_map = where
    if position is None or not isinstance(weight_map, EmbeddingMap) or torch.compiler.is_compiling():
        return False
    if torch._C._are_functorch_transforms_active() or (x.is_cuda and torch.cuda.is_current_stream_capturing()):
        return False
    plain = type(x) in (Tensor, nn.Parameter) and type(mean) in (Tensor, nn.Parameter)
    return plain and x.dtype in (torch.int32, torch.int64) and x.device == position.device == mean.device


class _Found(NamedTuple):
    """The active entries of the words in a batch, repeated for each occurrence of a word."""

    entry: Tensor  # index into the active vectors
    place: Tensor  # flat index into the output
    out: tuple[int, ...]
    n_active: int
    factor: Tensor | None  # of the gradients, unless they are simply added up

    def rows(self, name: str, values: Tensor) -> Tensor:
        """The rows of the output with these active values."""
        check_length(name, values, self.n_active)
        picked = values.index_select(0, self.entry)
        if self.factor is not None and picked.requires_grad:
            picked.register_hook(partial(torch.mul, self.factor.to(picked.dtype)))
        flat = picked.new_zeros(math.prod(self.out)).scatter(0, self.place, picked)
        return no_view(flat.view(self.out))


def _find(x: Tensor, *where: *Placement) -> _Found:
    position, shape, weight_map = where
    assert position is not None
    assert isinstance(weight_map, EmbeddingMap)
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
    factor = _factor(words, weight_map)
    return _Found(entry, place, (*x.shape, *shape[1:]), len(position), None if factor is None else factor[row])


def _factor(words: Tensor, weight_map: EmbeddingMap) -> Tensor | None:
    """Factor of each word's gradient: zero for padding, and one over the word's count if the layer scales by it."""
    if weight_map.padding_idx < 0 and not weight_map.scale_grad_by_freq:
        return None
    factor = (words != weight_map.padding_idx).double()
    if weight_map.scale_grad_by_freq:
        _, which, count = torch.unique(words, return_inverse=True, return_counts=True)
        factor /= count[which]
    return factor
