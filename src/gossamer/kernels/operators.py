"""The native kernel as operators ``gossamer::forward`` and ``gossamer::backward``, for whoever traces a network.

They are registered one by one on a library: ``torch.library.custom_op`` would double the time of ``import gossamer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import library
from gossamer.kernels.native import gradients

__all__: list[str] = []

_LIBRARY = torch.library.Library("gossamer", "DEF")
_LIBRARY.define(
    "forward(Tensor x, Tensor mean, Tensor? std, Tensor? bias, Tensor position, Tensor? seed, "
    "SymInt[] numbers, float floor, bool keep) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)
_LIBRARY.define(
    "backward(Tensor x, Tensor dy, Tensor? dv, bool is_factor, Tensor mean, Tensor? std, Tensor position, "
    "SymInt[] numbers, bool for_input) -> (Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order),
)


def _forward(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    position: Tensor,
    seed: Tensor | None,
    numbers: Sequence[int],
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    return library.forward(x, mean, std, bias, position, seed, tuple(numbers), floor, keep)


def _forward_shapes(
    x: Tensor,
    mean: Tensor,
    std: Tensor | None,
    bias: Tensor | None,
    position: Tensor,
    seed: Tensor | None,
    numbers: Sequence[int],
    floor: float,
    keep: bool,
) -> tuple[Tensor, Tensor]:
    y = x.new_empty((x.shape[0], numbers[2], *numbers[6:9]))
    return y, torch.empty_like(y) if std is not None and (keep or seed is None) else x.new_empty(0)


def _backward(
    x: Tensor,
    dy: Tensor,
    dv: Tensor | None,
    is_factor: bool,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor,
    numbers: Sequence[int],
    for_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return library.backward(x, dy, dv, is_factor, mean, std, position, tuple(numbers), for_input)


def _backward_shapes(
    x: Tensor,
    dy: Tensor,
    dv: Tensor | None,
    is_factor: bool,
    mean: Tensor,
    std: Tensor | None,
    position: Tensor,
    numbers: Sequence[int],
    for_input: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = x.new_empty(x.shape if for_input else 0)
    return dx, mean.new_empty(mean.shape), mean.new_empty(0 if std is None else mean.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, std, bias, position, seed, numbers, floor, _ = inputs
    separate = std is not None and seed is None
    ctx.save_for_backward(x, mean, std, bias, position, seed, None if separate else output[1])
    ctx.numbers, ctx.floor = tuple(numbers), floor


def _differentiate(ctx: Any, dy: Tensor, dv: Tensor) -> tuple[Any, ...]:
    def run(*arguments: Any) -> Any:
        return torch.ops.gossamer.backward(*arguments[:7], list(arguments[7]), arguments[8])

    return (*gradients(ctx, dy, dv, run), None, None, None, None, None)


_LIBRARY.impl("forward", _forward, "CPU")
_LIBRARY.impl("backward", _backward, "CPU")
torch.library.register_fake("gossamer::forward", _forward_shapes, lib=_LIBRARY)
torch.library.register_fake("gossamer::backward", _backward_shapes, lib=_LIBRARY)
torch.library.register_autograd("gossamer::forward", _differentiate, setup_context=_setup, lib=_LIBRARY)
