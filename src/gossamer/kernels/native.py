"""The native kernel: the products of ``reference`` on a CPU, at a cost that follows the active entries.

Activations are float32 or bfloat16, weights and sums float32. What it cannot compute (other precisions and devices,
dense or transposed weights, embeddings, torch.func) goes to the reference kernel, so the functions here take all that
those take.

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
from gossamer.kernels.double_backward import gradients_again
from gossamer.kernels.maps import ConvMap, LinearMap, Placement
from gossamer.kernels.reference import gather, perturb, scatter

__all__ = ["gather", "moments", "noisy_product", "perturb", "product", "scatter", "takes"]

Geometry = tuple[int, ...]
PRECISIONS = (torch.float32, torch.bfloat16)  # of activations; sums and weights are float32


def product(x: Tensor, mean: Tensor, bias: Tensor | None, *where: *Placement) -> Tensor:
    """``W x + b``, as :func:`reference.product`."""
    numbers = _numbers(x, mean, where)
    if numbers is None:
        return reference.product(x, mean, bias, *where)
    return _call(x, mean, None, bias, where, None, numbers, 0.0)[0]


def moments(x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement) -> tuple[Tensor, Tensor]:
    """Mean and variance of ``W x + b``, as :func:`reference.moments`."""
    numbers = _numbers(x, mean, where)
    if numbers is None:
        return reference.moments(x, mean, std, bias, *where)
    return _call(x, mean, std, bias, where, None, numbers, 0.0)


def noisy_product(
    x: Tensor, mean: Tensor, std: Tensor, bias: Tensor | None, *where: *Placement, floor: float | None = None
) -> Tensor:
    """``mean + sqrt(variance) · ε`` of :func:`moments` in one pass, with noise that is a function of one drawn seed."""
    numbers = _numbers(x, mean, where)
    if numbers is None:
        return reference.noisy_product(x, mean, std, bias, *where, floor=floor)
    # The seed comes from torch's generator, so what fixes torch's random numbers fixes these.
    seed = torch.randint(0, 2**62, (1,), dtype=torch.int64, device=x.device)
    return _call(x, mean, std, bias, where, seed, numbers, floor or 0.0)[0]


def takes(x: Tensor, mean: Tensor, *where: *Placement) -> bool:
    """Whether the native kernel computes this itself."""
    return _numbers(x, mean, where) is not None


def _numbers(x: Tensor, mean: Tensor, where: Placement) -> Geometry | None:
    """The geometry of what the native kernel computes itself."""
    position, shape, weight_map = where
    if position is None or not library.LIBRARY or x.device.type != "cpu":
        return None
    if x.dtype not in PRECISIONS or mean.dtype != torch.float32:
        return None
    if not torch.compiler.is_compiling():
        plain = type(x) in (Tensor, nn.Parameter) and type(mean) in (Tensor, nn.Parameter)
        if not plain or torch._C._are_functorch_transforms_active():
            return None
    if isinstance(weight_map, LinearMap):
        return geometry(x, shape, weight_map) if x.dim() >= 1 and x.shape[-1] == shape[1] else None
    if isinstance(weight_map, ConvMap) and not weight_map.transposed and x.dim() == len(shape):
        numbers = geometry(x, shape, weight_map)
        return numbers if x.shape[1] == shape[1] * weight_map.groups and min(numbers[3:9]) >= 1 else None
    return None


def geometry(x: Tensor, shape: tuple[int, ...], weight_map: LinearMap | ConvMap) -> Geometry:
    """Groups, inputs, outputs; extents of input, output and kernel, stride, padding, dilation along three dimensions.

    The last two are the first row of the weight that takes part, and how many rows it has.

    Example:
        >>> geometry(torch.zeros(2, 4, 9), (8, 2, 3), ConvMap((2,), (1,), (1,), groups=2))
        (2, 4, 8, 1, 1, 9, 1, 1, 5, 1, 1, 3, 1, 1, 2, 0, 0, 1, 1, 1, 1, 0, 8)
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
    is_linear = isinstance(weight_map, LinearMap)
    if isinstance(weight_map, LinearMap) and bias is not None:
        bias = weight_map.part(bias)
    flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1], 1, 1, 1) if is_linear else x
    leaves = (flat, mean, std, None if bias is None else bias.to(mean.dtype))
    keep = torch.is_grad_enabled() and any(leaf is not None and leaf.requires_grad for leaf in leaves)
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack():
        y, r = torch.ops.gossamer.forward(*leaves, position, seed, list(numbers), floor, keep)
    elif keep:
        y, r = _Native.apply(*leaves, position, seed, numbers, floor)
    else:
        y, r = library.forward(*leaves, position, seed, numbers, floor, False)
    out = (*x.shape[:-1], numbers[2]) if is_linear else (x.shape[0], shape[0], *numbers[6:9][5 - len(shape) :])
    return y.view(out), r.view(out) if r.numel() == y.numel() else r


def gradients(ctx: Any, dy: Tensor | None, dv: Tensor | None, run: Any) -> tuple[Tensor | None, ...]:
    """Gradients of x, mean, std and bias; ``run`` is the function or operator that computes the first three."""
    x, mean, std, bias, position, seed, r = ctx.saved_tensors
    for_input, for_mean, for_std, for_bias = ctx.needs_input_grad[:4]
    noisy = seed is not None
    if dy is None and dv is None:
        return None, None, None, None
    if torch.is_grad_enabled():
        return _again(ctx, (x, mean, std, bias), position, seed, (dy, dv))
    if dy is None:
        assert dv is not None
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
        dy.sum((0, 2, 3, 4), dtype=bias.dtype) if for_bias else None,
    )


def _again(
    ctx: Any, leaves: tuple[Any, ...], position: Tensor, seed: Tensor | None, grads: Any
) -> tuple[Tensor | None, ...]:
    """The gradients as functions that can be differentiated again."""
    weight_map, shape = _as_convolution(ctx.numbers, leaves[0].dim() - 2)
    low = ctx.numbers[21] * math.prod(shape[1:])
    part = ((position >= low) & (position < low + math.prod(shape))).nonzero().flatten()  # of the rows that take part
    where = (position[part] - low, shape, weight_map)

    def compute(x: Tensor, mean: Tensor, std: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
        if std is None:
            return (reference.product(x, mean[part], bias, *where),)
        m, v = reference.moments(x, mean[part], std[part], bias, *where)
        if seed is None:
            return m, v
        noise = library.normals(seed, tuple(m.shape)).to(m.dtype)
        return (perturb(m, v, noise, ctx.floor or None),)

    return gradients_again(compute, leaves, grads, ctx.needs_input_grad[:4])


def _as_convolution(numbers: Geometry, dims: int) -> tuple[ConvMap, tuple[int, ...]]:
    """The map of a geometry in so many dimensions, and the shape of the rows of its weight that take part."""
    groups, n_inputs, n_outputs = numbers[:3]
    stride, padding, dilation = (tuple(numbers[i - dims : i]) for i in (15, 18, 21))
    return ConvMap(stride, padding, dilation, groups), (n_outputs, n_inputs // groups, *numbers[12 - dims : 12])


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
