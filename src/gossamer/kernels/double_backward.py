"""Gradients that can be differentiated again: those of the reference kernel, which every other kernel equals."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import library, reference
from gossamer.kernels.maps import ConvMap

__all__ = ["gradients_again", "native_gradients"]


def gradients_again(
    compute: Callable[..., Sequence[Tensor]],
    leaves: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The wanted gradients of Σ ⟨output, grad⟩ for the leaves, as functions of leaves and ``grads``.

    A ``grad`` that is ``None`` or missing counts as zeros; a gradient that is not wanted is ``None``.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> (slope,) = gradients_again(lambda x: [x**3], [x], [torch.tensor(1.0)], [True])
        >>> slope, *torch.autograd.grad(slope, x)
        (tensor(27., grad_fn=<MulBackward0>), tensor(18.))
    """
    with torch.enable_grad():
        outputs = compute(*leaves)
        given = [(y, grad.view_as(y)) for y, grad in zip(outputs, grads, strict=False) if grad is not None]
        if not given:
            return (None,) * len(leaves)
        targets = {i: leaf for i, leaf in enumerate(leaves) if leaf is not None and wanted[i]}
        found = torch.autograd.grad(
            [y for y, _ in given],
            list(targets.values()),
            [grad for _, grad in given],
            create_graph=True,
            allow_unused=True,
        )
    by_index = dict(zip(targets, found, strict=True))
    return tuple(by_index.get(i) for i in range(len(leaves)))


def native_gradients(
    ctx: Any, leaves: tuple[Any, ...], position: Tensor, seed: Tensor | None, grads: Any
) -> tuple[Tensor | None, ...]:
    """Those of a native product, which keeps its geometry and the floor of its variance in ``ctx``."""
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

    return gradients_again(compute, leaves, grads, ctx.needs_input_grad[:4])
