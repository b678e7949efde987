"""The fused noisy product as the operator ``gossamer::lrt``, its gradients as two more, for whoever traces a network.

Each is one node of a compiled graph. A part that is left to torch is not: its convolutions and what is to be done entry
by entry are traced as such, and fused by the compiler with their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, by_channels, empty_images
from gossamer.kernels.fused.plans import Tile

__all__: list[str] = []

_LIBRARY = torch.library.Library("gossamer", "FRAGMENT")
_TAGS = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
# stride_padding is [stride, *padding]; a tile without numbers is a part that is left to torch.
_LIBRARY.define(
    "lrt(Tensor x, Tensor mean, Tensor variance, Tensor? bias, Tensor? noise, Tensor? seed, int layer, float? floor, "
    "int[] stride_padding, int[] forward, int[] input_gradient, int[] weight_gradients) -> (Tensor, Tensor)",
    tags=_TAGS,
)
_LIBRARY.define(
    "lrt_input_gradient(Tensor dy, Tensor slope, Tensor x, Tensor mean, Tensor variance, int[] stride_padding, "
    "int[] tile) -> Tensor",
    tags=_TAGS,
)
_LIBRARY.define(
    "lrt_weight_gradients(Tensor dy, Tensor slope, Tensor x, int[] shape, int[] stride_padding, int[] tile) "
    "-> (Tensor, Tensor)",
    tags=_TAGS,
)


def _geometry(x: Tensor, shape: Sequence[int], stride_padding: Sequence[int]) -> Geometry:
    stride, top, left = stride_padding
    return Geometry.of(tuple(x.shape), tuple(shape), stride, (top, left))


def _tile(numbers: Sequence[int]) -> Tile:
    rows, columns, depth, warps, stages, draws, turned = numbers
    return Tile(rows, columns, depth, warps, stages, bool(draws), bool(turned))


def _forward(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    noise: Tensor | None,
    seed: Tensor | None,
    layer: int,
    floor: float | None,
    stride_padding: Sequence[int],
    forward: Sequence[int],
    input_gradient: Sequence[int],
    weight_gradients: Sequence[int],
) -> tuple[Tensor, Tensor]:
    from gossamer.kernels.fused.tiles.forward import forward as run

    x, mean, variance = by_channels(x), by_channels(mean), by_channels(variance)
    noise = None if noise is None else by_channels(noise)
    geometry = _geometry(x, mean.shape, stride_padding)
    return run(x, mean, variance, bias, noise, seed, geometry=geometry, tile=_tile(forward), layer=layer, floor=floor)


def _input_gradient(
    dy: Tensor,
    slope: Tensor,
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    stride_padding: Sequence[int],
    tile: Sequence[int],
) -> Tensor:
    from gossamer.kernels.fused.tiles.input_gradient import input_gradient

    dy, slope, x, mean, variance = (by_channels(tensor) for tensor in (dy, slope, x, mean, variance))
    geometry = _geometry(x, mean.shape, stride_padding)
    return input_gradient(dy, slope, x, mean, variance, geometry=geometry, tile=_tile(tile))


def _weight_gradients(
    dy: Tensor, slope: Tensor, x: Tensor, shape: Sequence[int], stride_padding: Sequence[int], tile: Sequence[int]
) -> tuple[Tensor, Tensor]:
    from gossamer.kernels.fused.tiles.weight_gradients import weight_gradients

    dy, slope, x = by_channels(dy), by_channels(slope), by_channels(x)
    return weight_gradients(dy, slope, x, geometry=_geometry(x, shape, stride_padding), tile=_tile(tile))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, variance, _, _, _, _, _, ctx.stride_padding, _, ctx.input_gradient, ctx.weight_gradients = inputs
    ctx.save_for_backward(x, mean, variance, output[1])
    ctx.set_materialize_grads(False)  # the slope has none


def _differentiate(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 12
    x, mean, variance, slope = ctx.saved_tensors
    for_input, for_mean, for_variance, for_bias = ctx.needs_input_grad[:4]
    operators, place = torch.ops.gossamer, ctx.stride_padding
    dx = grad_mean = grad_variance = None
    is_left = not ctx.weight_gradients or (for_input and not ctx.input_gradient)
    dv = dy * slope if is_left else dy  # of the variance; a fused kernel makes its own
    if for_input and ctx.input_gradient:
        dx = operators.lrt_input_gradient(dy, slope, x, mean, variance, place, ctx.input_gradient)
    elif for_input:
        dx = torch.addcmul(
            _torch_backward(dy, x, mean, place, 0), x, _torch_backward(dv, x, variance, place, 0), value=2
        )
    if (for_mean or for_variance) and ctx.weight_gradients:
        shape = list(mean.shape)
        grad_mean, grad_variance = operators.lrt_weight_gradients(dy, slope, x, shape, place, ctx.weight_gradients)
    else:
        grad_mean = _torch_backward(dy, x, mean, place, 1) if for_mean else None
        grad_variance = _torch_backward(dv, x * x, variance, place, 1) if for_variance else None
    grad_bias = dy.sum((0, 2, 3)) if for_bias else None
    return (dx, grad_mean, grad_variance, grad_bias, *(None,) * 8)


def _torch_backward(dy: Tensor, x: Tensor, weight: Tensor, stride_padding: Sequence[int], which: int) -> Tensor:
    """The gradient of a convolution with respect to its input (0) or its weight (1)."""
    stride, top, left = stride_padding
    wanted = [which == 0, which == 1, False]
    gradients = torch.ops.aten.convolution_backward(
        dy, x, weight, None, [stride, stride], [top, left], [1, 1], False, [0, 0], 1, wanted
    )
    gradient: Tensor = gradients[which]
    return gradient


def _fake_forward(x: Tensor, mean: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = _geometry(x, mean.shape, rest[6]).output_shape
    return empty_images(x, shape), empty_images(x, shape)


_LIBRARY.impl("lrt", _forward, "CompositeExplicitAutograd")
_LIBRARY.impl("lrt_input_gradient", _input_gradient, "CompositeExplicitAutograd")
_LIBRARY.impl("lrt_weight_gradients", _weight_gradients, "CompositeExplicitAutograd")
torch.library.register_fake("gossamer::lrt", _fake_forward, lib=_LIBRARY)
torch.library.register_fake(
    "gossamer::lrt_input_gradient",
    lambda dy, slope, x, mean, variance, stride_padding, tile: empty_images(x, tuple(x.shape)),
    lib=_LIBRARY,
)
torch.library.register_fake(
    "gossamer::lrt_weight_gradients",
    lambda dy, slope, x, shape, stride_padding, tile: (empty_images(x, tuple(shape)), empty_images(x, tuple(shape))),
    lib=_LIBRARY,
)
torch.library.register_autograd("gossamer::lrt", _differentiate, setup_context=_remember, lib=_LIBRARY)
