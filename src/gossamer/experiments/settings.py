"""What a run is told: everything that ``config.toml`` holds."""

from __future__ import annotations

import difflib
import inspect
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import nn

from gossamer import data, methods, models
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["Settings"]

PRECISIONS = {"32": "32-true", "bf16": "bf16-mixed"}


@dataclass(frozen=True)
class Settings:
    """A run in full: the same settings on the same machine give the same numbers to the bit.

    Args:
        method: Name of the method.
        data: Name of the data set.
        model: Name of the network; ``None`` fits one to the data.
        epochs: Passes over the training data.
        batch_size: Examples per step.
        seed: Of the order of the examples, the first active weights and all noise.
        device: ``"cpu"``, ``"cuda"`` or ``"auto"``.
        precision: ``"32"`` or ``"bf16"``.
        ranks: Processes that train together.
        data_dir: Folder of the data files.
        n_draws: Networks drawn for the final numbers.
        options: Of the method.
    """

    method: str
    data: str
    model: str | None = None
    epochs: int = 100
    batch_size: int = 64
    seed: int = 0
    device: str = "auto"
    precision: str = "32"
    ranks: int = 1
    data_dir: str | None = None
    n_draws: int = 20
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything is loaded or written."""
        for name in ("epochs", "batch_size", "ranks", "n_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}; got {self.precision!r}")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device must be auto, cpu or cuda; got {self.device!r}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda was asked for, but torch sees no CUDA device: use --device cpu")
        known = [
            name for name in inspect.signature(methods.find(self.method)).parameters if name not in ("task", "steps")
        ]
        for name in self.options:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"method {self.method} has no option {name!r}{hint} Known: {', '.join(known)}")

    def to_config(self) -> dict[str, Any]:
        """As a dictionary for ``config.toml``."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Settings:
        """From the dictionary of a ``config.toml``; an unknown key is an error that names the nearest."""
        known = list(cls.__dataclass_fields__)
        for key in config:
            if key not in known:
                near = difflib.get_close_matches(key, known, n=1)
                hint = f"; did you mean {near[0]!r}?" if near else "."
                raise ValueError(f"unknown key {key!r}{hint} Known: {', '.join(known)}")
        return cls(**config)

    def load_task(self) -> Task:
        """The data."""
        return data.load(self.data, self.data_dir)

    def build_model(self, task: Task) -> nn.Module:
        """The plain network, with weights drawn from the seed."""
        torch.manual_seed(self.seed)
        return models.build(self.model_name(task), task.input_shape, task.n_outputs)

    def model_name(self, task: Task) -> str:
        """The network asked for; otherwise a residual network for colour images, an MLP for the rest."""
        is_colour_image = len(task.input_shape) == 3 and task.input_shape[0] == 3
        return self.model or ("resnet18" if is_colour_image else "mlp")

    def start(self, task: Task) -> Training:
        """The training, before its first step."""
        fabric = Fabric(accelerator=self.device, devices=self.ranks, precision=PRECISIONS[self.precision])  # type: ignore[arg-type]
        if self.ranks > 1:
            fabric.launch()
        steps = self.epochs * -(-task.n_data // self.batch_size)
        method = methods.build(self.method, task, steps, **self.options)
        model = self.build_model(task)
        return Training(method, model, task, steps, fabric, batch_size=self.batch_size, seed=self.seed)
