"""Where a training runs: one process on one device, noise apart from the caller's, and means over several ranks.

Without a process group there is one rank; several are started by torchrun or Lightning Fabric.
"""

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

__all__ = ["OneProcess", "OwnNoise", "is_bf16"]

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
    backward = staticmethod(Tensor.backward)

    def __init__(self, device: str = "cpu", *, bf16: bool = False) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = torch.device("cuda", 0) if device == "cuda" else torch.device(device)
        self.bf16 = bf16

    def setup(self, model: nn.Module, optimizer: Optimizer) -> tuple[nn.Module, Optimizer]:
        """The network on the device, behind the precision of its passes, and its optimizer."""
        return _InPrecision(model.to(self.device), self), optimizer

    def autocast(self) -> AbstractContextManager[Any]:
        """The context of a pass in the precision of the training."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16)

    def broadcast(self, value: Value) -> Value:
        """The value of the first process, which is this one."""
        return value

    def barrier(self) -> None:
        """There is nobody to wait for."""


def is_bf16(fabric: Any) -> bool:
    """Whether passes are computed in bfloat16, here or by Lightning Fabric."""
    return fabric.bf16 if isinstance(fabric, OneProcess) else "bf16" in str(fabric._precision.precision)


class OwnNoise:
    """A random state of its own: in its block torch draws from it, on the CPU and on ``device``.

    The caller's generators are the same before and after the block, and the next block goes on where this one ended. A
    block inside a block of the same noise changes nothing. All threads of a process draw from one generator, so that a
    block of another thread waits until this one ends.

    Example:
        >>> noise, before = OwnNoise(seed=0), torch.get_rng_state()
        >>> with noise:
        ...     drawn = torch.rand(2)
        >>> with OwnNoise(seed=0):
        ...     torch.equal(torch.rand(2), drawn), torch.equal(torch.get_rng_state(), before)
        (True, False)
        >>> torch.equal(torch.get_rng_state(), before)
        True
    """

    _in_turn = threading.RLock()

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self.device, self._blocks = torch.device(device), 0
        # What torch does not draw from: this noise's states, or within a block the caller's.
        self._kept = [torch.Generator(one.device).manual_seed(seed).get_state() for one in self._generators]

    @property
    def states(self) -> list[Tensor]:
        """The state of the CPU, and of ``device`` if that is a GPU."""
        return [one.get_state() for one in self._generators] if self._blocks else self._kept

    @states.setter
    def states(self, states: list[Tensor]) -> None:
        if self._blocks:
            self._set(states)
        else:
            self._kept = states

    def state_dict(self, world_size: int = 1) -> dict[str, Tensor]:
        """The states of every rank, ``(ranks, n)``: each continues with its own noise. All ranks must call this."""
        cpu, *on_device = self.states
        state = {"cpu": cpu, "device": on_device[0] if on_device else torch.empty(0, dtype=torch.uint8)}

        def of_ranks(own: Tensor) -> Tensor:
            return from_every_rank(own.to(self.device)) if world_size > 1 and len(own) else own.expand(world_size, -1)

        return {name: of_ranks(own) for name, own in state.items()}

    def load_state_dict(self, state: dict[str, Tensor], rank: int, seed: int) -> None:
        """Go on as a rank did; one that was not there before begins with the noise of ``seed``."""
        if rank >= len(state["cpu"]):
            self.states = OwnNoise(seed, self.device).states
            return
        # Copies, because torch reads the state of a view from the wrong place in memory.
        cpu, device = (state[name][rank].cpu().clone() for name in ("cpu", "device"))
        on_device = self.states[1:]  # a GPU run may be read on a machine without one
        self.states = [cpu, *([device] if len(device) and on_device else on_device)]

    def __enter__(self) -> None:
        self._in_turn.acquire()
        if not self._blocks:
            self._swap()
        self._blocks += 1

    def __exit__(self, *error: object) -> None:
        self._blocks -= 1
        if not self._blocks:
            self._swap()
        self._in_turn.release()

    def _swap(self) -> None:
        """Exchange torch's states for those that are kept here."""
        kept, self._kept = self._kept, [one.get_state() for one in self._generators]
        self._set(kept)

    def _set(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)

    @property
    def _generators(self) -> list[torch.Generator]:
        """Torch's own, on the CPU and on ``device``."""
        if self.device.type != "cuda":
            return [torch.default_generator]
        torch.cuda.init()  # type: ignore[no-untyped-call]
        index = torch.cuda.current_device() if self.device.index is None else self.device.index
        return [torch.default_generator, torch.cuda.default_generators[index]]


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


def world_size() -> int:
    """Number of processes that train together; 1 when there is no process group."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def average_over_ranks(tensor: Tensor) -> Tensor:
    """The mean of ``tensor`` over all processes, in place."""
    if world_size() > 1:
        dist.all_reduce(tensor)
        tensor /= world_size()
    return tensor


class Message:
    """Tensors that all processes average in one message, where they are.

    Between :meth:`pack` and :meth:`unpack`, which move numbers within a device and may be parts of CUDA graphs, stands
    :meth:`average`, which may not: a lost process is an error there, and would be a wait without end inside a graph.

    Example:
        >>> message = Message([torch.ones(2), torch.zeros(())])
        >>> message.pack(), message.average(), message.unpack()
        (None, None, None)
        >>> message.tensors
        [tensor([1., 1.]), tensor(0.)]
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.tensors = list(tensors)
        self.flat = torch.cat([tensor.detach().flatten() for tensor in self.tensors])
        parts = self.flat.split([tensor.numel() for tensor in self.tensors])
        self._parts = [part.view(tensor.shape) for part, tensor in zip(parts, self.tensors, strict=True)]

    @torch.no_grad()
    def pack(self) -> None:
        """Write the tensors into the message."""
        torch._foreach_copy_(self._parts, self.tensors)

    def average(self) -> None:
        """Exchange the message for the mean of all."""
        average_over_ranks(self.flat)

    @torch.no_grad()
    def unpack(self) -> None:
        """Write the means into the tensors."""
        torch._foreach_copy_(self.tensors, self._parts)


def from_first_rank(tensor: Tensor) -> Tensor:
    """The first process's ``tensor``, in place: for scores that are drawn at random."""
    if world_size() > 1:
        dist.broadcast(tensor, src=0)
    return tensor


def from_every_rank(tensor: Tensor) -> Tensor:
    """``tensor`` of each process, stacked: shape ``(ranks, …)``. There must be a process group."""
    gathered = [torch.empty_like(tensor) for _ in range(world_size())]
    dist.all_gather(gathered, tensor)
    return torch.stack(gathered)


def sum_over_ranks(number: int, device: torch.device | None = None) -> int:
    """The sum of a number over all processes."""
    return _reduced([number], dist.ReduceOp.SUM, device)[0]


def largest_over_ranks(number: int, device: torch.device | None = None) -> int:
    """The largest of the numbers of all processes."""
    return _reduced([number], dist.ReduceOp.MAX, device)[0]


def on_any_rank(flags: list[bool], device: torch.device | None = None) -> list[bool]:
    """Flag by flag, whether it is true on some process."""
    return [bool(vote) for vote in _reduced(flags, dist.ReduceOp.MAX, device)]


def _reduced(numbers: Sequence[int], how: dist.ReduceOp.RedOpType, device: torch.device | None) -> list[int]:
    if world_size() == 1:
        return list(numbers)
    total = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_reduce(total, how)
    return [int(one) for one in total.tolist()]
