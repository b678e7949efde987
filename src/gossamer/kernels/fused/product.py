"""One draw of W x + b by the fused kernels: the operator ``gossamer::lrt``, and one for the gradient of its input.

Each is one node of a compiled graph. A part that is left to torch is not: its convolutions and elementwise work are
traced as such, and the compiler fuses them with their neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.fused.geometry import Geometry, Plan, Tile, as_images, by_channels, empty_images
from gossamer.kernels.maps import LinearMap, WeightMap

__all__ = ["load", "noisy_product"]


def noisy_product(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    weight_map: WeightMap,
    *,
    plan: Plan,
    noise: Tensor | None = None,
    seed: Tensor | None = None,
    layer: int = 0,
    floor: float | None = None,
) -> Tensor:
    """``map(x, mean) + b + sqrt(map(x², variance)) · ε``; see :func:`gossamer.kernels.perturb`. Needs :func:`load`.

    The noise is given, or, for a plan that draws it, made from a 64-bit ``seed`` on the device and the number of the
    ``layer``: changing the seed changes the noise, also when a graph is replayed.
    """
    images = as_images(x, mean, weight_map)
    if images is None or plan.forward is None:
        raise ValueError(f"there is no fused kernel for {weight_map} and the plan {plan.name!r}")
    pictures, weight, stride, padding = images
    draws, is_linear = plan.forward.draws, isinstance(weight_map, LinearMap)
    noise, seed = (None, seed) if draws else (noise, None)
    if is_linear:
        variance = variance.view(weight.shape)
        noise = None if noise is None else noise.reshape(-1, noise.shape[-1], 1, 1)
    parts = plan.forward, plan.input_gradient  # not vars(plan), at which torch.compile would break its graph
    tiles = [[] if tile is None else [int(n) for n in tile] for tile in parts]
    tensors, place = (pictures, weight, variance, bias, noise, seed), [stride, *padding]
    y, _ = torch.ops.gossamer.lrt(*tensors, layer, floor, place, *tiles)
    product: Tensor = y.reshape(*x.shape[:-1], y.shape[1]) if is_linear else y
    return product


def _options(x: Tensor, weight: Tensor, place: Sequence[int], tile: Sequence[int]) -> dict[str, Any]:
    geometry = Geometry.of(tuple(x.shape), tuple(weight.shape), place[0], (place[1], place[2]))
    return {"geometry": geometry, "tile": Tile._make((*tile[:5], *map(bool, tile[5:])))}


def _forward(
    x: Tensor, mean: Tensor, variance: Tensor, bias: Any, noise: Any, seed: Any, layer: int, floor: Any, *rest: Any
) -> tuple[Tensor, Tensor]:
    from gossamer.kernels.fused.tiles import forward

    x, mean, variance = by_channels(x), by_channels(mean), by_channels(variance)
    noise, options = None if noise is None else by_channels(noise), _options(x, mean, *rest[:2])
    return forward(x, mean, variance, bias, noise, seed, layer=layer, floor=floor, **options)


def _input_gradient(*arguments: Any) -> Tensor:
    from gossamer.kernels.fused.tiles import input_gradient

    return input_gradient(*map(by_channels, arguments[:5]), **_options(*arguments[2:4], *arguments[5:]))


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, variance = inputs[:3]
    ctx.place, _, ctx.input_gradient = inputs[8:]
    ctx.save_for_backward(x, mean, variance, output[1])
    ctx.set_materialize_grads(False)  # the slope has none


def _differentiate(ctx: Any, dy: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    if dy is None:
        return (None,) * 11
    x, mean, variance, slope = ctx.saved_tensors
    for_input, for_mean, for_variance, for_bias = ctx.needs_input_grad[:4]
    place, dv = ctx.place, dy * slope  # the gradient of the variance
    dx = None
    if for_input and ctx.input_gradient:
        dx = torch.ops.gossamer.lrt_input_gradient(dy, slope, x, mean, variance, place, ctx.input_gradient)
    elif for_input:
        of_square = torch_gradient(dv, x, variance, place, 0)
        dx = torch.addcmul(torch_gradient(dy, x, mean, place, 0), x, of_square, value=2)
    grad_mean = torch_gradient(dy, x, mean, place, 1) if for_mean else None
    grad_variance = torch_gradient(dv, x * x, variance, place, 1) if for_variance else None
    grad_bias = dy.sum((0, 2, 3)) if for_bias else None
    return (dx, grad_mean, grad_variance, grad_bias, *(None,) * 7)


def torch_gradient(dy: Tensor, x: Tensor, weight: Tensor, place: Sequence[int], which: int) -> Tensor:
    """The gradient of a convolution with respect to its input (0) or its weight (1)."""
    options = ([place[0]] * 2, place[1:], [1, 1], False, [0, 0], 1, [which == 0, which == 1, False])
    gradient: Tensor = torch.ops.aten.convolution_backward(dy, x, weight, None, *options)[which]
    return gradient


def _fake_forward(x: Tensor, mean: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    shape = _options(x, mean, rest[6], rest[7])["geometry"].output_shape
    return empty_images(x, shape), empty_images(x, shape)


_registered: list[torch.library.Library] = []


def load() -> None:
    """Make the operators known to torch."""
    if _registered:
        return
    library = torch.library.Library("gossamer", "FRAGMENT")
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)
    # place is [stride, *padding]; a tile without numbers is a part that is left to torch.
    library.define(
        "lrt(Tensor x, Tensor mean, Tensor variance, Tensor? bias, Tensor? noise, Tensor? seed, int layer, "
        "float? floor, int[] place, int[] forward, int[] input_gradient) -> (Tensor, Tensor)",
        tags=tags,
    )
    library.define(
        "lrt_input_gradient(Tensor dy, Tensor slope, Tensor x, Tensor mean, Tensor variance, int[] place, int[] tile) "
        "-> Tensor",
        tags=tags,
    )
    library.impl("lrt", _forward, "CompositeExplicitAutograd")
    library.impl("lrt_input_gradient", _input_gradient, "CompositeExplicitAutograd")
    torch.library.register_fake("gossamer::lrt", _fake_forward, lib=library)
    like_input: Any = lambda dy, slope, x, *rest: empty_images(x, tuple(x.shape))  # noqa: E731
    torch.library.register_fake("gossamer::lrt_input_gradient", like_input, lib=library)
    torch.library.register_autograd("gossamer::lrt", _differentiate, setup_context=_remember, lib=library)
    _registered.append(library)
