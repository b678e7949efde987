"""The native kernel: the products of ``reference`` on a CPU, at a cost that follows the active entries.

Activations are float32 or bfloat16, weights and sums float32. What it cannot compute (other precisions and devices,
dense or transposed weights, embeddings, empty inputs, torch.func) goes to the reference kernel, so the functions here
accept everything that the reference accepts.

In eager mode an autograd function calls the library, at a fifth of the cost of a call through torch's dispatcher. Under
torch.compile, torch.export and dispatch modes the same functions are operators of the namespace ``gossamer``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import library, reference
from gossamer.kernels.double_backward import native_gradients
from gossamer.kernels.maps import ConvMap, LinearMap, Placement

Geometry = tuple[int, ...]


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b``, as :func:`reference.product`."""
    numbers = _numbers(x, mean, None, bias, where)
    if numbers is None:
        return reference.product(x, mean, bias, *where)
    return _call(x, mean, None, bias, where, None, numbers, 0.0)[0]


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W x + b``, as :func:`reference.moments`."""
    numbers = _numbers(x, mean, std, bias, where)
    if numbers is None:
        return reference.moments(x, mean, std, bias, *where)
    return _call(x, mean, std, bias, where, None, numbers, 0.0)


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """One draw of ``W x + b`` in one pass; the noise is a function of a seed from torch's generator."""
    numbers = _numbers(x, mean, std, bias, where)
    if numbers is None:
        return reference.noisy_product(x, mean, std, bias, *where, floor=floor)
    seed = torch.randint(0, 2**62, (1,), dtype=torch.int64, device=x.device)
    return _call(x, mean, std, bias, where, seed, numbers, floor or 0.0)[0]


def takes(x: Tensor, mean: Tensor, *where: *Placement) -> bool:
    """Whether the native kernel can compute this product."""
    return _numbers(x, mean, None, None, where) is not None


_PLAIN = {Tensor, nn.Parameter, type(None)}  # a subclass may have no memory of its own


def _numbers(x: Tensor, mean: Tensor, std: Tensor | None, bias: Tensor | None, where: Placement) -> Geometry | None:
    """The geometry of a product that the native kernel can compute, otherwise ``None``."""
    position, shape, weight_map = where
    if position is None or not library.LIBRARY or not x.is_cpu:
        return None
    if x.dtype not in library.PRECISIONS or mean.dtype is not torch.float32:
        return None
    if std is not None and std.dtype is not torch.float32:
        return None
    if not torch.compiler.is_compiling():
        plain = {type(x), type(mean), type(std), type(bias), type(position)} <= _PLAIN
        if not plain or torch._C._are_functorch_transforms_active() or not x.numel():
            return None
    if isinstance(weight_map, LinearMap):
        fits = shape[1] > 0 and x.dim() >= 1 and x.shape[-1] == shape[1]
        return geometry(x, shape, weight_map) if fits else None
    if isinstance(weight_map, ConvMap) and not weight_map.transposed and x.dim() == len(shape):
        numbers = geometry(x, shape, weight_map)
        return numbers if x.shape[1] == shape[1] * weight_map.groups and min(numbers[3:9]) >= 1 else None
    return None


def geometry(x: Tensor, shape: tuple[int, ...], weight_map: LinearMap | ConvMap) -> Geometry:
    """The 23 numbers that native code reads.

    Groups, inputs, outputs; extents of input, output and kernel, stride, padding and dilation, three each; the first
    row of the weight that takes part, and how many rows it has.
    """
    if isinstance(weight_map, LinearMap):
        first, last = weight_map.rows or (0, shape[0])
        return (1, shape[1], last - first, *(1,) * 12, 0, 0, 0, 1, 1, 1, first, shape[0])
    missing = 5 - len(shape)

    def three(values: Sequence[int], neutral: int = 1) -> tuple[int, ...]:
        return (neutral,) * missing + tuple(values)

    extent, kernel = three(x.shape[2:]), three(shape[2:])
    stride, dilation = three(weight_map.stride), three(weight_map.dilation)
    padding = three(weight_map.padding, 0)
    out = tuple(
        (extent[i] + 2 * padding[i] - dilation[i] * (kernel[i] - 1) - 1) // stride[i] + 1 if extent[i] else -1
        for i in range(3)
    )
    channels = (weight_map.groups, x.shape[1], shape[0])
    return (*channels, *extent, *out, *kernel, *stride, *padding, *dilation, 0, shape[0])


def _call(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    where: Placement,
    seed: Tensor | None,
    numbers: Geometry,
    floor: float,
) -> tuple[Tensor, Tensor]:
    position, shape, weight_map = where
    assert position is not None
    if isinstance(weight_map, LinearMap):
        out = (*x.shape[:-1], numbers[2])
        if bias is not None and weight_map.rows is not None:
            bias = weight_map.part(bias)
    else:
        out = (x.shape[0], shape[0], *numbers[6:9][5 - len(shape) :])
    if bias is not None and bias.dtype is not torch.float32:
        bias = bias.float()
    keep = torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, mean, std, bias))
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1], 1, 1, 1) if isinstance(weight_map, LinearMap) else x
        y, r = torch.ops.gossamer.forward(flat, mean, std, bias, position, seed, list(numbers), floor, keep)
        return y.view(out), r.view(out) if std is not None and (keep or seed is None) else r
    plan = library.plan(position, numbers, x.numel() // (numbers[1] * math.prod(numbers[3:6])))
    if keep:
        y, r = _Native.apply(x, mean, std, bias, position, seed, plan, floor, out)
        return y, r
    return library.forward(plan, x, mean, std, bias, seed, floor, False, out)


def gradients(ctx: Any, dy: Tensor | None, dv: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    """Gradients of x, mean, std and bias; ``run`` is the function or operator that computes the first three."""
    x, mean, std, bias, position, seed, r = ctx.saved_tensors
    for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
    if dy is None and dv is None:
        return None, None, None, None
    batched = dy is not None and torch._C._functorch.is_legacy_batchedtensor(dy)  # by torch.autograd's vectorize=True
    if torch.is_grad_enabled() or batched:
        return native_gradients(ctx, (x, mean, std, bias), position, seed, (dy, dv))
    if dy is None:
        assert dv is not None
        dy = torch.zeros_like(dv)
    noisy = seed is not None
    if std is not None and not noisy and dv is None:
        dv = torch.zeros_like(dy)
    dx = dmean = dstd = None
    if for_input or for_mean or for_std:
        second = r if noisy else dv
        dx, dmean, dstd = run(x, dy, None if std is None else second, noisy, mean, std, for_input)
    return (
        dx if for_input else None,
        dmean if for_mean else None,
        dstd if for_std else None,
        dy.reshape(-1, len(bias), math.prod(ctx.numbers[6:9])).sum((0, 2), dtype=bias.dtype) if for_bias else None,
    )


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        x, mean, std, bias, position, seed, plan, floor, out = inputs
        y, r = library.forward(plan, x, mean, std, bias, seed, floor, True, out)
        separate = std is not None and seed is None
        ctx.save_for_backward(x, mean, std, bias, position, seed, None if separate else r)
        ctx.plan, ctx.numbers, ctx.floor = plan, plan.numbers, floor
        ctx.set_materialize_grads(False)
        if not separate:
            ctx.mark_non_differentiable(r)
        return y, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        def run(*arguments: Any) -> tuple[Tensor, Tensor, Tensor]:
            return library.backward(ctx.plan, *arguments)

        return (*gradients(ctx, grads[0], grads[1], run), None, None, None, None, None)
