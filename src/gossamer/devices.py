"""One process on one device, in float32 or mixed with bfloat16. Several processes are a matter for Lightning Fabric."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["OneProcess", "is_bf16"]

Value = TypeVar("Value")


class OneProcess:
    """What a training asks of Lightning Fabric, for one process.

    Args:
        device: ``"auto"`` is a GPU if there is one, otherwise the CPU.
        bf16: Compute the passes in bfloat16 where autocast does; parameters stay float32.

    Example:
        >>> place = OneProcess("cpu", bf16=True)
        >>> module, optimizer = place.setup(layer := nn.Linear(2, 2), torch.optim.SGD(layer.parameters(), lr=0.1))
        >>> module(torch.ones(1, 2)).dtype, place.world_size
        (torch.float32, 1)
    """

    global_rank, world_size, is_global_zero = 0, 1, True

    def __init__(self, device: str = "cpu", *, bf16: bool = False) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        self.bf16 = bf16

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The network on the device, behind the precision of its passes, and its optimizer."""
        return _InPrecision(model.to(self.device), self), optimizer

    def backward(self, loss: Tensor) -> None:
        """Differentiate the loss."""
        loss.backward()

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a pass in the precision of the training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def broadcast(self, value: Value) -> Value:
        """What the first process has: this one."""
        return value

    def barrier(self) -> None:
        """There is nobody to wait for."""


def is_bf16(fabric: Any) -> bool:
    """Whether passes are computed in bfloat16, here or by Lightning Fabric."""
    return fabric.bf16 if isinstance(fabric, OneProcess) else "bf16" in str(fabric._precision.precision)


class _InPrecision(nn.Module):
    """A network whose inputs and outputs are float32, and whose passes may be bfloat16 between them."""

    def __init__(self, network: nn.Module, place: OneProcess) -> None:
        super().__init__()
        self.network, self.place = network, place

    def forward(self, x: Tensor) -> Tensor:
        x = x.to(torch.bfloat16 if self.place.bf16 else torch.float32) if x.is_floating_point() else x
        with self.place.autocast():
            y: Tensor = self.network(x)
        return y.to(torch.get_default_dtype())
