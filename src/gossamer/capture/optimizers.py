"""Optimizers inside a graph: their rates are tensors on the device, their state exists before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer

__all__ = ["OnDevice", "refusal"]

FLAGS = ("lr", "fused", "foreach", "capturable")


def refusal(optimizer: Optimizer) -> str | None:
    """Why the steps of an optimizer cannot be captured, if they cannot.

    Example:
        >>> refusal(torch.optim.LBFGS([torch.zeros(1, requires_grad=True)]))
        'LBFGS steps are not captured, those of SGD, Adam and AdamW are'
    """
    if type(optimizer) in (SGD, Adam, AdamW):
        return None
    return f"{type(optimizer).__name__} steps are not captured, those of SGD, Adam and AdamW are"


class OnDevice:
    """Makes an optimizer fit for capture, and gives its options back as they were.

    Example:
        >>> parameter = torch.zeros(2, requires_grad=True)
        >>> optimizer = SGD([parameter], lr=0.1, momentum=0.9)
        >>> on_device = OnDevice(optimizer)
        >>> on_device.set_rates([0.05])
        >>> optimizer.param_groups[0]["lr"], on_device.options[0]["lr"]
        (tensor(0.0500), 0.1)
        >>> on_device.release()
        >>> optimizer.param_groups[0]["lr"]
        0.1
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.options = [{flag: group[flag] for flag in FLAGS if flag in group} for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            group["fused"], group["foreach"] = True, False
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"
            for parameter in group["params"]:
                _start(optimizer, parameter, group)

    def set_rates(self, rates: Sequence[float]) -> None:
        """The learning rates of the groups for the steps to come."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"].fill_(rate)

    def state(self) -> list[Tensor]:
        """All tensors that a step changes, besides the parameters."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def release(self) -> None:
        """Put the options back."""
        for group, options in zip(self.optimizer.param_groups, self.options, strict=True):
            group.update(options)


def _start(optimizer: Optimizer, parameter: Tensor, group: dict[str, Any]) -> None:
    """The state with which the first step gives what it would give without a state."""
    state = optimizer.state[parameter]
    names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group.get("amsgrad"))
    if isinstance(optimizer, SGD):
        names = ["momentum_buffer"] if group["momentum"] else []
        if group["momentum"] and group["dampening"]:  # the first gradient is not damped
            raise ValueError("SGD with dampening cannot be captured")
    else:  # a checkpoint has it on the CPU, where a fused kernel would not find it
        state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).to(parameter.device)
    for name in names:
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter)
