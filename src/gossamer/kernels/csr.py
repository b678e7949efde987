"""Linear layers by torch's own sparse matrices, for a CPU on which the native kernels are not built.

With the active means W and stds S as sparse matrices (CSR): mean ``W xᵀ``, variance ``S² (x²)ᵀ``. The input's gradient
uses the same entries by column, and the gradients of the entries are sampled products: a dense weight is never formed.
What it cannot compute goes to the reference kernel, so the functions here accept everything that the reference accepts.
"""

from __future__ import annotations

import functools
import math
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.kernels import reference
from gossamer.kernels.double_backward import gradients_again
from gossamer.kernels.library import PositionCache
from gossamer.kernels.maps import LinearMap, Placement, no_view
from gossamer.kernels.reference import gather, perturb, scatter

__all__ = ["gather", "moments", "noisy_product", "perturb", "product", "scatter", "takes"]


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b``, as :func:`reference.product`."""
    if not takes(x, mean, *where):
        return reference.product(x, mean, bias, *where)
    y: Tensor = _Sparse.apply(x, mean, None, _as(bias, x), *where)[0]
    return y


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W x + b``, as :func:`reference.moments`."""
    if not takes(x, mean, *where):
        return reference.moments(x, mean, std, bias, *where)
    m, v = _Sparse.apply(x, mean, std, _as(bias, x), *where)
    return m, v


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of ``W x + b``, as :func:`reference.noisy_product`."""
    m, v = moments(x, mean, std, bias, *where)
    return perturb(m, v, torch.randn_like(m), floor)


def takes(x: Tensor, mean: Tensor, *where: *Placement) -> bool:
    """Whether this build of torch can compute the product with its sparse matrices."""
    position, shape, weight_map = where
    if position is None or not isinstance(weight_map, LinearMap) or x.device.type != "cpu":
        return False
    if x.dtype not in (torch.float32, torch.float64) or x.dtype != mean.dtype:
        return False
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    plain = type(x) in (Tensor, nn.Parameter) and type(mean) in (Tensor, nn.Parameter)
    fits = x.dim() >= 1 and x.shape[-1] == shape[1] and x.numel() > 0 and len(position) > 0
    return plain and fits and _has_sparse_products()


class _Pattern(NamedTuple):
    """The active entries of a range of rows, by row and by column."""

    part: slice  # of the active vector
    by_row: tuple[Tensor, Tensor]  # bounds of the rows, and each entry's column
    by_column: tuple[Tensor, Tensor]
    order: Tensor  # of the entries by column
    shape: tuple[int, int]

    def rows(self, values: Tensor) -> Tensor:
        """The matrix with these values."""
        return _matrix(*self.by_row, values, self.shape)

    def columns(self, values: Tensor) -> Tensor:
        """Its transpose."""
        return _matrix(*self.by_column, values.index_select(0, self.order), self.shape[::-1])

    def sample(self, left: Tensor, right: Tensor) -> Tensor:
        """``left @ right`` at the active entries."""
        zeros = self.rows(left.new_zeros(len(self.order)))
        sampled: Tensor = torch.sparse.sampled_addmm(zeros, left, right, beta=0.0).values()
        return sampled


_patterns = PositionCache[_Pattern](most=4)  # query, key and value may be rows of one weight


def _pattern(position: Tensor, shape: tuple[int, ...], rows: tuple[int, int] | None) -> _Pattern:
    first, last = rows or (0, shape[0])

    def make(position: Tensor) -> _Pattern:
        inside = int(position[0]) >= 0 and int(position[-1]) < shape[0] * shape[1]
        if not inside or bool((position[1:] < position[:-1]).any()):
            raise ValueError("the positions are not sorted or lie outside the weight")
        bounds = torch.tensor([first * shape[1], last * shape[1]], dtype=position.dtype)
        low, high = torch.searchsorted(position, bounds).tolist()
        part = position[low:high].long() - first * shape[1]
        row, column = part // shape[1], part % shape[1]
        order = torch.argsort(column, stable=True)
        return _Pattern(
            slice(low, high),
            (_bounds(row, last - first), column.int()),
            (_bounds(column, shape[1]), row[order].int()),
            order.int(),
            (last - first, shape[1]),
        )

    return _patterns.get(position.contiguous(), (shape, rows), make)


def _bounds(index: Tensor, size: int) -> Tensor:
    """Where the entries of each index begin and end, if they are sorted by it."""
    counts = torch.bincount(index, minlength=size)
    return torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()


def _matrix(bounds: Tensor, index: Tensor, values: Tensor, size: tuple[int, ...]) -> Tensor:
    return torch.sparse_csr_tensor(bounds, index, values, size, check_invariants=False)


class _Sparse(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, mean: Tensor, std: Tensor | None, bias: Tensor | None, *where: *Placement
    ) -> tuple[Tensor, Tensor | None]:
        position, shape, weight_map = where
        assert position is not None
        assert isinstance(weight_map, LinearMap)
        for name, vector in (("mean", mean), ("std", std)):
            reference.check_length(name, vector, len(position))
        pattern = _pattern(position, shape, weight_map.rows)
        columns = x.reshape(-1, shape[1]).T.contiguous()
        m = pattern.rows(mean[pattern.part]) @ columns
        if bias is not None:
            m += weight_map.part(bias).unsqueeze(1)
        v = None if std is None else pattern.rows(std[pattern.part].square()) @ columns.square()
        ctx.save_for_backward(x, mean, std, bias, position)
        ctx.where, ctx.pattern = (shape, weight_map), pattern
        ctx.set_materialize_grads(False)
        out = (*x.shape[:-1], pattern.shape[0])
        return no_view(m.T.reshape(out)), None if v is None else no_view(v.T.reshape(out))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        *leaves, position = ctx.saved_tensors
        where = (position, *ctx.where)
        if torch.is_grad_enabled():
            found = gradients_again(lambda *leaves: _again(leaves, where), leaves, grads, ctx.needs_input_grad[:4])
        else:
            found = _gradients(leaves, ctx.pattern, where[2], grads, ctx.needs_input_grad[:4])
        return (*found, None, None, None)


def _again(leaves: Any, where: Placement) -> tuple[Tensor, ...]:
    x, mean, std, bias = leaves
    if std is None:
        return (reference.product(x, mean, bias, *where),)
    return reference.moments(x, mean, std, bias, *where)


def _gradients(leaves: Any, pattern: _Pattern, weight_map: Any, grads: Any, wanted: Any) -> tuple[Tensor | None, ...]:
    x, mean, std, bias = leaves
    rows = x.reshape(-1, x.shape[-1])
    to_m, to_v = (None if grad is None else grad.reshape(len(rows), -1).T.contiguous() for grad in grads)
    result: list[Tensor | None] = [None] * 4
    if to_m is not None:
        if wanted[0]:
            result[0] = (pattern.columns(mean[pattern.part]) @ to_m).T.reshape(x.shape)
        if wanted[1]:
            result[1] = _padded(pattern.sample(to_m, rows), mean, pattern.part)
        if wanted[3]:
            result[3] = weight_map.sum_to_bias(grads[0], len(bias))
    if to_v is not None:
        to_v = 2 * to_v  # the squares of x and of std both bring a factor 2
        if wanted[0]:
            of_square = (pattern.columns(std[pattern.part].square()) @ to_v).T.reshape(x.shape)
            result[0] = x * of_square if result[0] is None else torch.addcmul(result[0], x, of_square)
        if wanted[2]:
            result[2] = std * _padded(pattern.sample(to_v, rows.square()), std, pattern.part)
    return tuple(result)


def _padded(values: Tensor, like: Tensor, part: slice) -> Tensor:
    """A vector like ``like`` with these values in this part, and zeros for rows that take no part."""
    if len(values) == len(like):
        return values
    whole = torch.zeros_like(like)
    whole[part] = values
    return whole


def _as(bias: Tensor | None, x: Tensor) -> Tensor | None:
    return None if bias is None else bias.to(x.dtype)


@functools.cache
def _has_sparse_products() -> bool:
    """Whether this build of torch has sparse products, which come from MKL."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns once that its sparse matrices are in beta
        try:
            one = _matrix(torch.tensor([0, 1]).int(), torch.tensor([0]).int(), torch.ones(1), (1, 1))
            found = torch.sparse.sampled_addmm(one, torch.ones(1, 1), torch.ones(1, 1), beta=0.0).values()
            return math.isclose(float(found + one @ torch.ones(1, 1)), 2.0)
        except RuntimeError:
            return False
