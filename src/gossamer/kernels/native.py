"""The native kernel: the products of ``reference`` for float32 on a CPU, at a cost that follows the active entries.

What it cannot compute (other precisions and devices, dense or transposed weights, embeddings, torch.func) goes to the
reference kernel, so the functions here take all that those take.

In eager mode a plain autograd function calls the library, which costs a fifth of a call through the dispatcher. Under
torch.compile, torch.export and dispatch modes the same functions are operators of the namespace ``gossamer``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels import library, reference
from gossamer.kernels.maps import ConvMap, LinearMap, WeightMap
from gossamer.kernels.reference import gather, perturb, scatter

__all__ = ["gather", "moments", "noisy_product", "perturb", "product", "scatter", "takes"]

Geometry = tuple[int, ...]


def takes(x: Tensor, mean: Tensor, position: Tensor | None, shape: tuple[int, ...], weight_map: WeightMap) -> bool:
    """Whether the native kernel computes this itself."""
    if not library.LIBRARY or position is None:
        return False
    if x.device.type != "cpu" or x.dtype != torch.float32 or mean.dtype != torch.float32:
        return False
    known = False
    if isinstance(weight_map, LinearMap):
        known = weight_map.rows is None and x.dim() >= 1 and x.shape[-1] == shape[1]
    elif isinstance(weight_map, ConvMap) and not weight_map.transposed and x.dim() == len(shape):
        known = x.shape[1] == shape[1] * weight_map.groups and min(geometry(x, shape, weight_map)[3:9]) >= 1
    if torch.compiler.is_compiling():
        return known
    plain = type(x) in (Tensor, nn.Parameter) and type(mean) in (Tensor, nn.Parameter)
    return known and plain and not torch._C._are_functorch_transforms_active()


def geometry(x: Tensor, shape: tuple[int, ...], weight_map: Any) -> Geometry:
    """Groups, inputs, outputs; extents of input, output and kernel, stride, padding, dilation along three dimensions.

    Example:
        >>> geometry(torch.zeros(2, 4, 9), (8, 2, 3), ConvMap((2,), (1,), (1,), groups=2))
        (2, 4, 8, 1, 1, 9, 1, 1, 5, 1, 1, 3, 1, 1, 2, 0, 0, 1, 1, 1, 1)
    """
    if isinstance(weight_map, LinearMap):
        return (1, shape[1], shape[0], *(1,) * 12, 0, 0, 0, 1, 1, 1)
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
    return (weight_map.groups, x.shape[1], shape[0], *extent, *out, *kernel, *stride, *padding, *dilation)


def product(
    x: Tensor,
    mean: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
) -> Tensor:
    """``W x + b``, as :func:`reference.product`."""
    if not takes(x, mean, position, shape, weight_map):
        return reference.product(x, mean, bias, position, shape, weight_map)
    return _call(x, mean, None, bias, position, None, shape, weight_map, 0.0)[0]


def moments(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W x + b``, as :func:`reference.moments`."""
    if not takes(x, mean, position, shape, weight_map):
        return reference.moments(x, mean, std, bias, position, shape, weight_map)
    return _call(x, mean, std, bias, position, None, shape, weight_map, 0.0)


def noisy_product(
    x: Tensor,
    mean: Tensor,
    std: Tensor,
    bias: Tensor | None,
    position: Tensor | None,
    shape: tuple[int, ...],
    weight_map: WeightMap,
    floor: float | None = None,
) -> Tensor:
    """``mean + sqrt(variance) · ε`` of :func:`moments` in one pass, with noise that is a function of one drawn seed."""
    if not takes(x, mean, position, shape, weight_map):
        return reference.noisy_product(x, mean, std, bias, position, shape, weight_map, floor)
    # The seed comes from torch's generator, so what fixes torch's random numbers fixes these.
    seed = torch.randint(0, 2**62, (1,), dtype=torch.int64, device=x.device)
    return _call(x, mean, std, bias, position, seed, shape, weight_map, floor or 0.0)[0]


def _call(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    position: Any,
    seed: Tensor | None,
    shape: tuple[int, ...],
    weight_map: Any,
    floor: float,
) -> tuple[Tensor, Tensor]:
    numbers = geometry(x, shape, weight_map)
    is_linear = isinstance(weight_map, LinearMap)
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1], 1, 1, 1) if is_linear else x
    leaves = (flat, mean, std, None if bias is None else bias.to(x.dtype))
    keep = torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves)
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        y, r = torch.ops.gossamer.forward(*leaves, position, seed, list(numbers), floor, keep)
    elif keep:
        y, r = _Native.apply(*leaves, position, seed, numbers, floor)
    else:
        y, r = library.forward(*leaves, position, seed, numbers, floor, False)
    out = (*x.shape[:-1], shape[0]) if is_linear else (x.shape[0], shape[0], *numbers[6:9][5 - len(shape) :])
    return y.view(out), r.view(out) if r.numel() == y.numel() else r


def gradients(ctx: Any, dy: Tensor | None, dv: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    """Gradients of x, mean, std and bias; ``run`` is the function or operator that computes the first three."""
    x, mean, std, bias, position, seed, r = ctx.saved_tensors
    for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
    noisy = seed is not None
    if torch.is_grad_enabled():
        return _differentiable(ctx, (x, mean, std, bias), position, seed, dy, dv)
    if dy is None:
        assert dv is not None  # else there was nothing to differentiate
        dy = torch.zeros_like(dv)
    if std is not None and not noisy and dv is None:
        dv = torch.zeros_like(dy)
    dx, dmean, dstd = None, None, None
    if for_input or for_mean or for_std:
        second = r if noisy else dv
        dx, dmean, dstd = run(
            x, dy, None if std is None else second, noisy, mean, std, position, ctx.numbers, for_input
        )
    return (
        dx if for_input else None,
        dmean if for_mean else None,
        dstd if for_std else None,
        dy.sum((0, 2, 3, 4)) if for_bias else None,
    )


def _as_convolution(numbers: Geometry, dims: int) -> tuple[ConvMap, tuple[int, ...]]:
    """The map of a geometry in so many dimensions, and the shape of its weight."""
    groups, n_inputs, n_outputs = numbers[:3]
    stride, padding, dilation = (tuple(numbers[i - dims : i]) for i in (15, 18, 21))
    return ConvMap(stride, padding, dilation, groups), (n_outputs, n_inputs // groups, *numbers[12 - dims : 12])


def _differentiable(
    ctx: Any, inputs: tuple[Any, ...], position: Tensor, seed: Tensor | None, dy: Tensor | None, dv: Tensor | None
) -> tuple[Tensor | None, ...]:
    """The gradients as functions that can be differentiated again, by way of the reference kernel."""
    x, mean, std, bias = inputs
    weight_map, shape = _as_convolution(ctx.numbers, x.dim() - 2)
    where = (position, shape, weight_map)
    with torch.enable_grad():
        if std is None:
            outputs, grads = [reference.product(x, mean, bias, *where)], [dy]
        else:
            m, v = reference.moments(x, mean, std, bias, *where)
            outputs, grads = [m, v], [dy, dv]
            if seed is not None:
                noise = library.normals(seed, tuple(m.shape))
                outputs, grads = [perturb(m, v, noise, ctx.floor or None)], [dy]
        wanted = [i for i in range(4) if ctx.needs_input_grad[i]]
        given = [(y, g.view_as(y)) for y, g in zip(outputs, grads, strict=True) if g is not None]
        found = torch.autograd.grad(
            [y for y, _ in given],
            [inputs[i] for i in wanted],
            [g for _, g in given],
            create_graph=True,
            allow_unused=True,
        )
    result: list[Tensor | None] = [None] * 4
    for i, grad in zip(wanted, found, strict=True):
        result[i] = grad
    return tuple(result)


class _Native(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        mean: Tensor,
        std: Tensor | None,
        bias: Tensor | None,
        position: Tensor,
        seed: Tensor | None,
        numbers: Geometry,
        floor: float,
    ) -> tuple[Tensor, Tensor]:
        y, r = library.forward(x, mean, std, bias, position, seed, numbers, floor, True)
        separate = std is not None and seed is None
        ctx.save_for_backward(x, mean, std, bias, position, seed, None if separate else r)
        ctx.numbers, ctx.floor = numbers, floor
        ctx.set_materialize_grads(False)
        if not separate:
            ctx.mark_non_differentiable(r)
        return y, r

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        return (*gradients(ctx, grads[0], grads[1], library.backward), None, None, None, None)
