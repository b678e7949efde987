"""Gradients that can be differentiated again: those of the reference kernel, which computes the same function."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import library, reference
from gossamer.kernels.maps import ConvMap


def native_gradients(
    ctx: Any, leaves: tuple[Any, ...], position: Tensor, seed: Tensor | None, grads: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of x, mean, std and bias as functions of these leaves and of ``grads`` (``None`` counts as zeros)."""
    numbers = ctx.numbers
    groups, n_inputs, n_outputs = numbers[:3]
    weight_map = ConvMap(numbers[12:15], numbers[15:18], numbers[18:21], groups)
    shape = (n_outputs, n_inputs // groups, *numbers[9:12])
    low = numbers[21] * math.prod(shape[1:])
    part = ((position >= low) & (position < low + math.prod(shape))).nonzero().flatten()  # the rows that take part
    where = (position[part] - low, shape, weight_map)

    def compute(x: Tensor, mean: Tensor, std: Tensor | None, bias: Tensor | None) -> tuple[Tensor, ...]:
        x = x.reshape(-1, n_inputs, *numbers[3:6])
        if std is None:
            return (reference.product(x, mean[part], bias, *where),)
        m, v = reference.moments(x, mean[part], std[part], bias, *where)
        if seed is None:
            return m, v
        noise = library.normals(seed, tuple(m.shape)).to(m.dtype)
        return (reference.perturb(m, v, noise, ctx.floor or None),)

    targets = {i: leaf for i, leaf in enumerate(leaves) if leaf is not None and ctx.needs_input_grad[i]}
    with torch.enable_grad():
        pairs = [(y, dy.view_as(y)) for y, dy in zip(compute(*leaves), grads, strict=False) if dy is not None]
        if not pairs:
            return (None,) * len(leaves)
        outputs, given = zip(*pairs, strict=True)
        found = torch.autograd.grad(outputs, list(targets.values()), given, create_graph=True, allow_unused=True)
    by_index = dict(zip(targets, found, strict=True))
    return tuple(by_index.get(i) for i in range(len(leaves)))
