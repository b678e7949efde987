"""Which noisy products of a network are computed by the fused kernels: measured once, before anything is captured."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping

import torch
from torch import Tensor

from gossamer.kernels.fused import Fused, Geometry, Plan, as_images, choose, compile_all, load, why_not
from gossamer.layers import DenseCopy

__all__ = ["plan_products"]


def plan_products(
    workings: Mapping[int, DenseCopy], plans: dict[int, Plan], seed: Tensor, fused: Fused = "auto"
) -> None:
    """Give each weight its plan for inputs of the shape that it has just seen.

    Args:
        workings: Weights by their numbers, each used once.
        plans: What was chosen before, for batches of another size, and is kept; what is chosen now is added.
        seed: Of the noise that kernels draw.
        fused: Whether to measure.

    Example:
        >>> from gossamer.kernels import LinearMap
        >>> working = DenseCopy(torch.ones(2, 3), torch.ones(2, 3))
        >>> y = working.multiply(torch.ones(4, 3), None, LinearMap())
        >>> plan_products({0: working}, {}, torch.zeros(1, dtype=torch.int64))
        >>> working.plan.name
        'cudnn'
    """
    if fused == "never":
        return
    geometries = {i: found for i, working in workings.items() if (found := _geometry(working)) is not None}
    new = {i: geometry for i, geometry in geometries.items() if i not in plans}
    if new:
        start = time.perf_counter()
        plans |= _choose(new, workings[next(iter(new))].mean, fused)
        _say([plans[i] for i in new], time.perf_counter() - start)
    for i in geometries:
        workings[i].plan, workings[i].planned = plans[i], workings[i].inputs[0][0]
        workings[i].seed, workings[i].layer = seed, i


def _geometry(working: DenseCopy) -> Geometry | None:
    """Of the convolution that a product is, where the fused kernels know it."""
    shape, weight_map = working.inputs[0]
    x = torch.empty(shape, dtype=working.mean.dtype, device="meta")
    images = as_images(x, working.mean, weight_map)
    if images is None:
        return None
    pictures, weight, stride, padding = images
    geometry = Geometry.of(tuple(pictures.shape), tuple(weight.shape), stride, padding)
    return geometry if why_not(geometry, working.mean.dtype, working.mean.device) is None else None


def _choose(geometries: dict[int, Geometry], like: Tensor, fused: Fused) -> dict[int, Plan]:
    load()
    compile_all(dict.fromkeys(geometries.values()), like.dtype, like.device)
    return {i: choose(geometry, like.dtype, like.device, fused=fused) for i, geometry in geometries.items()}


def _say(plans: list[Plan], seconds: float) -> None:
    counts = Counter(plan.name for plan in plans)
    found = "; ".join(f"{n} by {name}" for name, n in counts.most_common())
    logging.getLogger("gossamer").info(f"products with noise, measured in {seconds:.0f} s: {found}")
