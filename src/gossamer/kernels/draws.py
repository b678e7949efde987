"""Several drawn weights with the same active positions, multiplied at once: y_k = W_k x_k + b.

The sparse kernel reads a position once for eight draws, or for all examples of a draw, whichever is wider. Where a
dense weight is faster, all draws are one product of batched matrices.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch
from torch._functorch.pyfunctorch import temporarily_pop_interpreter_stack

from gossamer.kernels import dispatch, library, native, reference
from gossamer.kernels.reference import ConvMap, LinearMap, Placement

LANES = 8  # numbers that native code multiplies at once


def products(x: Tensor, values: Tensor, bias: Tensor | None, *where: *Placement, shared: bool = False) -> Tensor:
    """``(draws, batch, …)`` for ``values`` of ``(draws, n_active)``; ``x`` is ``(draws, batch, …)`` or, shared, one.

    Example:
        >>> x, values = torch.ones(3, 2), torch.tensor([[1.0], [10.0]])
        >>> products(x, values, None, torch.tensor([1]), (1, 2), LinearMap(), shared=True).shape
        torch.Size([2, 3, 1])
    """
    one = x if shared else x[0]
    if dispatch.kernel_of(one, *where) is not reference:
        where = native.explicit(where)
        numbers = native.takes(one, values, *where)
        if numbers is not None:
            return _native(x, values, bias, where, numbers, shared)
    elif x.is_floating_point():
        if isinstance(where[2], LinearMap):
            return _batched(x, values.to(x.dtype), bias, where, shared)
        if shared and isinstance(where[2], ConvMap) and not where[2].transposed and where[2].groups == 1:
            return _side_by_side_channels(x, values.to(x.dtype), bias, where)
    return torch.stack([dispatch.product(x if shared else x[k], row, bias, *where) for k, row in enumerate(values)])


def is_seeded(mean: Tensor) -> bool:
    """Whether draws around these means are functions of seeds: on a CPU, where native code is built and may be used.

    Elsewhere, and under ``use("dense")``, torch's generator draws all numbers.
    """
    return dispatch.in_use() != "dense" and dispatch.may_read(mean)


def seeds(shape: tuple[int, ...], generator: torch.Generator | None) -> Tensor:
    """A seed for each draw of each weight; ``generator`` may be on any device."""
    device = "cpu" if generator is None else generator.device
    return torch.randint(2**62, shape, generator=generator, device=device).cpu()


def sampled(mean: Tensor, std: Tensor, seeds: Tensor, out: Tensor | None = None) -> Tensor:
    """``mean + std · ε``, one draw for each seed, ``(n,), (n,), (draws,) -> (draws, n)``.

    ε is a function of the seed and the entry.
    """
    n, draws = len(mean), len(seeds)
    out = mean.new_empty(draws, n) if out is None else out
    mean, std = native.vector("mean", mean, n), native.vector("std", std, n)
    if out.shape != (draws, n) or out.dtype is not torch.float32 or not (out.is_contiguous() and out.is_cpu):
        raise ValueError(f"the draws need a table of shape {(draws, n)} in float32; got {tuple(out.shape)} {out.dtype}")
    seeds = seeds.to(torch.int64).contiguous()
    pointers = (mean.data_ptr(), std.data_ptr(), seeds.data_ptr(), out.data_ptr())
    library.LIBRARY["sample"](draws, n, *pointers, torch.get_num_threads())
    return out


def mapped(x: Tensor, values: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """The same inside ``torch.vmap`` over the rows of ``values``, which ``x`` may or may not be mapped over."""
    level, own = _functorch.maybe_get_level(values), _functorch.maybe_get_level(x)
    if own not in (-1, level) or _functorch.maybe_current_level() != level:  # the network maps something itself
        return reference.product(x, values, bias, *where)
    shared = own == -1
    whole = x if shared else _functorch.get_unwrapped(x).movedim(_functorch.maybe_get_bdim(x), 0)
    with temporarily_pop_interpreter_stack():
        y = products(whole, _functorch.get_unwrapped(values), bias, *where, shared=shared)
    result: Tensor = _functorch._add_batch_dim(y, 0, level)
    return result


def _native(
    x: Tensor, values: Tensor, bias: Tensor | None, where: Placement, numbers: native.Geometry, shared: bool
) -> Tensor:
    position, _, weight_map = where
    assert position is not None
    draws, one = len(values), x if shared else x[0]
    if bias is not None:
        bias = weight_map.part(bias) if isinstance(weight_map, LinearMap) else bias
        bias = native.vector("bias", bias.float(), numbers[2])
    values = native.vector("values", values, draws * len(position))
    x = native.in_memory(x)
    batch = one.numel() // (numbers[1] * math.prod(numbers[3:6]))
    side_by_side = _side_by_side(numbers, draws, batch)
    plan = native.plan_of(position, numbers, LANES * min(batch, 4) if side_by_side else batch)
    y = x.new_empty(draws, *native.output_shape(one, where, numbers))
    head = (plan.address, draws, batch, x.dtype is torch.bfloat16, x.data_ptr(), shared, values.data_ptr())
    tail = (None if bias is None else bias.data_ptr(), side_by_side, y.data_ptr(), torch.get_num_threads())
    if library.LIBRARY["draws"](*head, *tail):
        raise library.no_memory(f"the products of {batch} examples with {draws} weights")
    return y


def _side_by_side(numbers: native.Geometry, draws: int, batch: int) -> bool:
    """Whether lanes are draws rather than examples or pixels: where they then pass over the weights less often."""
    *rows, width = numbers[6:9]
    by_draw = batch * math.prod(rows) * width * -(-draws // LANES)
    if max(numbers[3:9]) == 1:
        return by_draw < draws * -(-batch // LANES)
    return batch < LANES and by_draw < draws * batch * math.prod(rows) * -(-width // LANES)


def _side_by_side_channels(x: Tensor, values: Tensor, bias: Tensor | None, where: Placement) -> Tensor:
    """Convolutions of the same input by dense weights: the channels of all draws are those of one convolution."""
    dense = _dense(values, where)
    bias = None if bias is None else bias.to(x.dtype).repeat(len(values))
    y = where[2](x, dense.flatten(0, 1), bias)
    return y.view(len(y), len(values), -1, *y.shape[2:]).transpose(0, 1)


def _dense(values: Tensor, where: Placement) -> Tensor:
    position, shape, _ = where
    dense = values
    if position is not None:
        dense = values.new_zeros(len(values), math.prod(shape))
        dense.scatter_(1, position.long().expand(len(values), -1), values)
    return dense.view(len(values), *shape)


def _batched(x: Tensor, values: Tensor, bias: Tensor | None, where: Placement, shared: bool) -> Tensor:
    """Linear layers by dense weights: one product of all draws."""
    _, shape, weight_map = where
    assert isinstance(weight_map, LinearMap)
    dense = _dense(values, where)
    bias = None if bias is None else weight_map.part(bias).to(x.dtype)
    if weight_map.rows is not None:
        dense = dense[:, slice(*weight_map.rows)]
    rows = x.reshape(*([] if shared else x.shape[:1]), -1, x.shape[-1])
    if shared:  # one product for all outputs of all draws
        y: Any = rows @ dense.reshape(-1, shape[1]).T
        y = y.view(len(rows), *dense.shape[:2]).transpose(0, 1)
    else:
        y = torch.bmm(rows, dense.transpose(1, 2))
    y = y if bias is None else y.add_(bias)
    out: Tensor = y.reshape(len(values), *(x.shape if shared else x.shape[1:])[:-1], y.shape[-1])
    return out
