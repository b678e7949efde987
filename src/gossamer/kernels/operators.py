"""The native kernel as operators ``gossamer::forward`` and ``gossamer::backward``, for whoever traces a network.

They are registered one by one on a library: ``torch.library.custom_op`` would double the time of ``import gossamer``.
"""

from __future__ import annotations

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


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, mean, std, bias, position, seed, numbers, floor, _ = inputs
    separate = std is not None and seed is None
    ctx.save_for_backward(x, mean, std, bias, position, seed, None if separate else output[1])
    ctx.numbers, ctx.floor = tuple(numbers), floor


def _differentiate(ctx: Any, dy: Tensor, dv: Tensor) -> tuple[Any, ...]:
    def run(*arguments: Any) -> Any:
        return torch.ops.gossamer.backward(*arguments[:7], list(arguments[7]), arguments[8])

    return (*gradients(ctx, dy, dv, run), None, None, None, None, None)


_LIBRARY.impl("forward", library.forward, "CPU")
_LIBRARY.impl("backward", library.backward, "CPU")
torch.library.register_fake(
    "gossamer::forward",
    lambda x, mean, std, bias, position, seed, numbers, floor, keep: library.outputs(x, std, seed, numbers, keep),
    lib=_LIBRARY,
)
torch.library.register_fake(
    "gossamer::backward",
    lambda x, dy, dv, is_factor, mean, std, position, numbers, for_input: library.input_gradients(
        x, mean, std, for_input
    ),
    lib=_LIBRARY,
)
torch.library.register_autograd("gossamer::forward", _differentiate, setup_context=_setup, lib=_LIBRARY)
