"""The native kernel as operators ``gossamer::forward`` and ``gossamer::backward``, for whoever traces a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels import library
from gossamer.kernels.native import _gradients

__all__: list[str] = []


@torch.library.custom_op("gossamer::forward", mutates_args=(), device_types="cpu")
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


@_forward.register_fake
def _(
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


@torch.library.custom_op("gossamer::backward", mutates_args=(), device_types="cpu")
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


@_backward.register_fake
def _(
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
    return dx, torch.empty_like(mean), mean.new_empty(0 if std is None else mean.shape)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, std, bias, position, seed, numbers, floor, _ = inputs
    separate = std is not None and seed is None
    ctx.save_for_backward(x, mean, std, bias, position, seed, None if separate else output[1])
    ctx.numbers, ctx.floor = tuple(numbers), floor


def _differentiate(ctx: Any, dy: Tensor, dv: Tensor) -> tuple[Any, ...]:
    def run(*arguments: Any) -> Any:
        return torch.ops.gossamer.backward(*arguments[:7], list(arguments[7]), arguments[8])

    return (*_gradients(ctx, dy, dv, run), None, None, None, None, None)


_forward.register_autograd(_differentiate, setup_context=_setup)
