"""Exposes the dense gradient of a weight, which only the backward pass before an update of the subspace needs.

For y = W x + b + noise it is the map's weight gradient of dL/dy and x, whichever kernel computed y. So a node of the
autograd graph around the product can form it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.maps import WeightMap
from gossamer.kernels.reference import Function

Sink = Callable[[Tensor, Tensor, WeightMap], object]
"""Called with dL/dy, x and the map in a backward pass; may form the dense gradient a few rows at a time."""


def watch(y: Tensor, x: Tensor, weight_map: WeightMap, probe: Tensor | None, sink: Sink | None = None) -> Tensor:
    """``y`` itself; in its backward pass the ``sink`` is called, or the ``probe`` receives the whole dense gradient.

    A ``probe`` is a leaf of zeros in the shape of the weight. It also serves where Python cannot be called in the
    middle of a backward pass: in a compiled graph and under torch.func.
    """
    if probe is None and sink is None:
        return y
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        if probe is None or torch.compiler.is_exporting():  # an exported program only predicts
            return y
    elif sink is not None and y.requires_grad:
        watched: Tensor = _CallSink.apply(y, x, weight_map, sink)
        return watched
    elif probe is None or sink is not None:
        return y
    watched = _Probe.apply(y, x, probe, weight_map)
    return watched


class _Probe(Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor, probe: Tensor, weight_map: WeightMap) -> Tensor:
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, x, probe, ctx.weight_map = inputs
        ctx.save_for_backward(x)
        ctx.shape = probe.shape

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        return grads[0], None, ctx.weight_map.weight_gradient(grads[0], x, ctx.shape), None


class _CallSink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, x: Tensor, weight_map: WeightMap, sink: Sink) -> Tensor:
        ctx.save_for_backward(x)
        ctx.weight_map, ctx.sink = weight_map, sink
        ctx.mark_dirty(y)  # a view could not be overwritten in place by what follows, and a hook would then be lost
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (x,) = ctx.saved_tensors
        with torch.no_grad():
            ctx.sink(grads[0], x, ctx.weight_map)
        return grads[0], None, None, None
