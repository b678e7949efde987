"""Ways to train one network on a GPU, each a row of ``python -m benchmarks gpu``.

Ours go through :class:`gossamer.train.Training` as any training does, with the settings of the released code
(``mode="reference"``); the released style is ``released.py``, with images that are on the device already and
convolutions chosen by measurement, as ours.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.place import Place
from benchmarks.released import ReleasedSteps, released
from benchmarks.resident import training_bytes
from benchmarks.results import DRAWN, EAGER, PLAIN, RELEASED, SSVI, VI
from gossamer import checkpoint, methods
from gossamer.convert import bayesianize
from gossamer.data import CropFlip, Normalize
from gossamer.likelihoods import Categorical
from gossamer.train import Batches, Training
from gossamer.types import Task

__all__ = ["CASES", "Case", "Contender", "build", "bytes_in_training", "checkpoint_bytes", "random_images"]

DENSITY = 0.05
EPOCHS = 200  # of the paper: the share replaced at an update falls to zero over three quarters of them


class Case(NamedTuple):
    """A method of ours with its options; the released style where there is no method."""

    way: str
    method: str | None = None
    options: Mapping[str, Any] = {}
    captures: bool = True

    @property
    def moves(self) -> bool:
        """Whether a subspace moves."""
        return self.method in (None, "ssvi")


_SSVI = {"mode": "reference", "density": DENSITY}
CASES = (
    Case(SSVI, "ssvi", _SSVI),  # first, so that the time of its set-up finds nothing that others have compiled
    Case(PLAIN, "sgd"),
    Case(VI, "vi", {"mode": "reference"}),
    Case(DRAWN, "ssvi", _SSVI | {"noise": "weights"}),
    Case(EAGER, "ssvi", _SSVI, captures=False),
    Case(RELEASED),
)


class Contender(Protocol):
    """A training before its first step."""

    model: nn.Module
    optimizer: Optimizer

    def step(self) -> None:
        """The next one; every ``period``-th moves the subspace."""
        ...

    @property
    def is_captured(self) -> bool:
        """Whether steps are what they were meant to be."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        ...

    def working_bytes(self) -> int:
        """Of dense copies to compute with, and of what says where their entries are."""
        ...


def build(case: Case, task: Task, network: Callable[[], nn.Module], batch: int, period: int, place: Place) -> Contender:
    """The training of a case.

    Example:
        >>> from benchmarks.place import CPU
        >>> contender = build(CASES[1], random_images(64), lambda: nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)), 8,
        ...                   period=5, place=CPU)
        >>> contender.step()
        >>> contender.is_captured
        True
    """
    torch.manual_seed(0)
    return (_Released if case.method is None else _Ours)(case, task, network(), batch, period, place)


def random_images(n: int, device: torch.device | str = "cpu") -> Task:
    """Bytes in the shape of CIFAR, cropped and flipped as there."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(256, (n, 3, 32, 32), dtype=torch.uint8, generator=generator).to(device)
    split = (x, torch.randint(10, (n,), generator=generator).to(device))
    transform = Normalize(mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
    return Task(split, split, split, Categorical(), 10, "random images", transform, CropFlip(padding=4))


def checkpoint_bytes(contender: Contender) -> int:
    """Size of the file that :func:`gossamer.checkpoint.save` writes."""
    with tempfile.TemporaryDirectory() as folder:
        return checkpoint.save(Path(folder) / "checkpoint", contender.state_dict(), 1).stat().st_size


def bytes_in_training(contender: Contender) -> int:
    """Of parameters, their gradients and the optimizer's state."""
    return training_bytes(contender.model, contender.optimizer)


class _Ours:
    def __init__(self, case: Case, task: Task, model: nn.Module, batch: int, period: int, place: Place) -> None:
        steps = EPOCHS * -(-task.n_data // batch)
        options = dict(case.options) | ({"update_period": period} if case.moves else {})
        assert case.method is not None
        method = methods.build(case.method, task, steps, **options)
        self.captures = case.captures and place.captures
        self.training = Training(method, model, task, steps, place.fabric(), batch_size=batch, captures=self.captures)
        self.model, self.optimizer = self.training.model, self.training._inner_optimizer

    def step(self) -> None:
        self.training.advance()

    @property
    def is_captured(self) -> bool:
        return self.training.captures == self.captures

    def state_dict(self) -> dict[str, Any]:
        return self.training.state_dict()

    def working_bytes(self) -> int:
        captured = self.training._captured
        if captured is None or captured.working is None:
            return 0
        held = [value for value in vars(captured.working).values() if isinstance(value, Tensor)]
        return sum(value.nbytes for value in held) - _flat_bytes(captured.working)


class _Released:
    is_captured = True

    def __init__(self, case: Case, task: Task, model: nn.Module, batch: int, period: int, place: Place) -> None:
        self.task, self.device = task, place.device
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
    """Of the flat buffers that hold the parameters and their gradients: they are counted as such."""
    names = ("mean", "mean_grad", "raw_std", "raw_std_grad")
    return sum(getattr(working, name).nbytes for name in names if hasattr(working, name))
