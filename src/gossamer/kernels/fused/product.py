"""One draw of W x + b by the fused kernels, with gradients."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gossamer.kernels.fused.geometry import as_images
from gossamer.kernels.fused.plans import Plan, Tile
from gossamer.kernels.maps import LinearMap, WeightMap

__all__ = ["Source", "noisy_product"]


class Source(NamedTuple):
    """Where the noise of a product comes from: a tensor of it, or a seed on the device and the number of the layer.

    A seed is one 64-bit integer. Who changes it gets other noise, also in the replay of a graph.
    """

    noise: Tensor | None = None
    seed: Tensor | None = None
    layer: int = 0


def noisy_product(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    bias: Tensor | None,
    weight_map: WeightMap,
    *,
    plan: Plan,
    source: Source,
    floor: float | None = None,
) -> Tensor:
    """``map(x, mean) + b + sqrt(map(x², variance)) · ε``; see :func:`gossamer.kernels.perturb`.

    The operator must have been made known by :func:`gossamer.kernels.fused.load`.
    """
    images = as_images(x, mean, weight_map)
    if images is None or plan.forward is None:
        raise ValueError(f"there is no fused kernel for {weight_map} and the plan {plan.name!r}")
    pictures, weight, stride, (top, left) = images
    noise = None if plan.forward.draws else source.noise
    is_linear = isinstance(weight_map, LinearMap)
    if noise is not None and is_linear:
        noise = noise.reshape(-1, noise.shape[-1], 1, 1)
    y, _ = torch.ops.gossamer.lrt(
        pictures,
        weight,
        variance.view(weight.shape) if is_linear else variance,
        bias,
        noise,
        source.seed if plan.forward.draws else None,
        source.layer,
        floor,
        [stride, top, left],
        _numbers(plan.forward),
        _numbers(plan.input_gradient),
        _numbers(plan.weight_gradients),
    )
    product: Tensor = y.reshape(*x.shape[:-1], y.shape[1]) if is_linear else y
    return product


def _numbers(tile: Tile | None) -> list[int]:
    return [] if tile is None else [int(number) for number in tile]
