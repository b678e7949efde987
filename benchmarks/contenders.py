"""Ways to train one network on a GPU, each a row of ``python -m benchmarks gpu``, and the device they run on.

Ours go through :class:`gossamer.train.Training` like any training, with the library's defaults and both kinds of noise.
The released style (``released.py``) gets the same advantages: images that are already on the
device, and convolutions chosen by measurement.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.measurements import DRAWN, EAGER, PLAIN, RELEASED, SSVI, VI
from benchmarks.memory import training_bytes
from benchmarks.released import ReleasedSteps, released
from benchmarks.timing import WALL, Stopwatch
from gossamer import methods
from gossamer.data import CropFlip, Normalize
from gossamer.likelihoods import Categorical
from gossamer.sparsity.convert import bayesianize
from gossamer.train import Batches, Training, checkpoint
from gossamer.train.capture import CapturedSteps
from gossamer.types import Task

__all__ = [
    "CASES",
    "CPU",
    "GPU",
    "Contender",
    "ContenderCase",
    "Device",
    "build",
    "bytes_in_training",
    "checkpoint_bytes",
    "random_images",
]


def _when_all_is_done() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()


@dataclass(frozen=True)
class Device:
    """A device to train on, with its precision and its clock.

    Args:
        accelerator: ``"cuda"`` or ``"cpu"``.
        precision: Precision of Lightning Fabric.
        clock: A clock that waits for the device.
        captures: Whether steps are captured as CUDA graphs.
    """

    accelerator: str
    precision: str
    clock: Stopwatch
    captures: bool

    def fabric(self) -> Fabric:
        """Fabric with one process on this device."""
        return Fabric(accelerator=self.accelerator, devices=1, precision=self.precision)  # type: ignore[arg-type]

    @property
    def device(self) -> torch.device:
        """The device as torch names it."""
        return torch.device(self.accelerator)

    def tidy(self) -> None:
        """Free cached memory and reset the peak counters."""
        gc.collect()
        if self.accelerator == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def allocated(self) -> int:
        """Peak bytes in tensors since :meth:`tidy`; 0 on a CPU."""
        return torch.cuda.max_memory_allocated() if self.accelerator == "cuda" else 0

    def reserved(self) -> int:
        """Peak bytes taken from the device since :meth:`tidy`, including captured graphs; 0 on a CPU."""
        return torch.cuda.max_memory_reserved() if self.accelerator == "cuda" else 0


GPU = Device("cuda", "bf16-mixed", Stopwatch("wall time, the GPU waited for", _when_all_is_done), captures=True)
CPU = Device("cpu", "32-true", WALL, captures=False)  # for tests without a GPU


DENSITY = 0.05
EPOCHS = 200  # as in the paper: the share replaced at an update falls to zero over three quarters of them


class ContenderCase(NamedTuple):
    """A method of ours with its options, or the released style (``method=None``)."""

    way: str
    method: str | None = None
    options: Mapping[str, Any] = {}
    captures: bool = True

    @property
    def moves(self) -> bool:
        """Whether a subspace moves."""
        return self.method in (None, "ssvi")


_LOCAL = {"noise": "local", "optimizer": "sgd"}  # as in a long training
_SSVI = _LOCAL | {"density": DENSITY}
CASES = (
    ContenderCase(SSVI, "ssvi", _SSVI),  # first, so that its set-up time does not profit from what others have compiled
    ContenderCase(PLAIN, "sgd"),
    ContenderCase(VI, "vi", _LOCAL),
    ContenderCase(DRAWN, "ssvi", _SSVI | {"noise": "weights"}),
    ContenderCase(EAGER, "ssvi", _SSVI, captures=False),
    ContenderCase(RELEASED),
)


class Contender(Protocol):
    """A training before its first step."""

    model: nn.Module
    optimizer: Optimizer

    def step(self) -> None:
        """Take the next step; every ``period``-th moves the subspace."""
        ...

    @property
    def is_captured(self) -> bool:
        """Whether steps are captured as asked for."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        ...

    def working_bytes(self) -> int:
        """Bytes of dense working copies and of the indices of their entries, or of masks."""
        ...


def build(
    case: ContenderCase, task: Task, network: Callable[[], nn.Module], batch: int, period: int, device: Device
) -> Contender:
    """The training of a case.

    Example:
        >>> from benchmarks.contenders import CPU
        >>> contender = build(CASES[1], random_images(64), lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), 8,
        ...                   period=5, device=CPU)
        >>> contender.step()
        >>> contender.is_captured
        True
    """
    torch.manual_seed(0)
    return (_Released if case.method is None else _Ours)(case, task, network(), batch, period, device)


def random_images(n: int, device: torch.device | str = "cpu") -> Task:
    """Random images of CIFAR's shape, cropped and flipped like CIFAR."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator).to(device)
    split = (x, torch.randint(10, (n,), generator=generator).to(device))
    transform = Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Task(split, split, split, Categorical(), 10, "random images", transform, CropFlip(padding=4))


def checkpoint_bytes(contender: Contender) -> int:
    """Size of the file that :func:`gossamer.train.checkpoint.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return checkpoint.save(Path(folder) / "checkpoint", contender.state_dict(), 1).stat().st_size


def bytes_in_training(contender: Contender) -> int:
    """Bytes of parameters, their gradients and the optimizer's state."""
    return training_bytes(contender.model, contender.optimizer)


class _Ours:
    def __init__(
        self, case: ContenderCase, task: Task, model: nn.Module, batch: int, period: int, device: Device
    ) -> None:
        steps = EPOCHS * -(-task.n_data // batch)
        options = dict(case.options) | ({"update_period": period} if case.moves else {})
        assert case.method is not None
        method = methods.build(case.method, task, steps, **options)
        self.captures = case.captures and device.captures
        self.training = Training(method, model, task, steps, device.fabric(), batch_size=batch, captures=self.captures)
        self.model, self.optimizer = self.training.model, self.training.inner_optimizer

    def step(self) -> None:
        self.training.advance()

    @property
    def is_captured(self) -> bool:
        return (self.training.taking is not self.training.eager) == self.captures

    def state_dict(self) -> dict[str, Any]:
        return self.training.state_dict()

    def working_bytes(self) -> int:
        captured = self.training.taking
        if not isinstance(captured, CapturedSteps) or captured.working is None:
            return 0
        held = [value for value in vars(captured.working).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in held) - _flat_bytes(captured.working)


class _Released:
    is_captured = True

    def __init__(
        self, case: ContenderCase, task: Task, model: nn.Module, batch: int, period: int, device: Device
    ) -> None:
        self.task, self.device = task, device.device
        self.model = released(bayesianize(model, density=DENSITY, mode="reference")).to(self.device).train()
        total_steps = EPOCHS * -(-task.n_data // batch)
        self.steps = ReleasedSteps(self.model, task.n_data, total_steps, period)
        self.optimizer: Optimizer = self.steps.optimizer
        self.batches = Batches(task.train, batch, seed=0, device=self.device, augment=task.augment)

    def step(self) -> None:
        x, y = self.batches[self.steps.index]
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            self.steps.step(self.task.transform(x), y)

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def working_bytes(self) -> int:
        return sum(layer.mask.nbytes for layer in self.steps.layers)


def _flat_bytes(working: Any) -> int:
    """Bytes of the flat buffers that hold parameters and gradients, which are counted elsewhere."""
    names = ("mean", "mean_grad", "raw_std", "raw_std_grad", "curvature", "grad_square")
    return sum(getattr(working, name).nbytes for name in names if hasattr(working, name))
