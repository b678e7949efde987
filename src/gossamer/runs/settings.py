"""What a run is told: everything that ``config.toml`` holds."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Literal, get_type_hints

import torch

from gossamer import data, methods, models
from gossamer.kernels.fused import Fused
from gossamer.names import unknown
from gossamer.runs.checking import check_type
from gossamer.types import Task

__all__ = ["CHECKPOINT_SECONDS", "Device", "Precision", "Settings", "options_of", "with_defaults"]

Device = Literal["auto", "cpu", "cuda"]
Precision = Literal["auto", "32", "bf16"]

MAX_SEED = 2**32  # the order of an epoch multiplies it, and must stay a number that torch takes
CHECKPOINT_SECONDS = 30.0


@dataclass(frozen=True)
class Settings:
    """A run in full: the same settings on the same machine give the same numbers to the bit, on a CPU.

    On a GPU convolutions, and with ``fused="auto"`` what draws the noise, are chosen by measurement, which may come out
    differently.

    Args:
        method: Name of the method.
        data: Name of the data set.
        model: Name of the network; without one, a network that fits the data.
        epochs: Passes over the training data.
        batch_size: Examples per step.
        seed: Of the order of the examples, the first active weights and all noise.
        device: Where to train; auto is a GPU where there is one.
        precision: Of the arithmetic; bf16 is mixed with float32, auto is that on a GPU and 32 elsewhere.
        capture: Whether the steps of a single GPU are captured as CUDA graphs, which they are where they can be.
        fused: Whether captured steps compute mean and variance of a layer in one kernel: auto where that is measured to
            be faster, always wherever it can be, never.
        ranks: Processes that train together. All but the first run the calling program again, as torchrun does.
        data_dir: Folder of the data files; without one, $GOSSAMER_DATA, then data/.
        n_val: Training examples held out for choices; without, what the data set holds out. With 0 all are trained on.
        n_draws: Networks drawn for the final numbers.
        options: Of the method; what is left out is added, at its default.

    Example:
        >>> Settings("ssvi", "digits", epochs=5, options={"density": 0.1}).epochs
        5
    """

    method: str
    data: str
    model: str | None = None
    epochs: int = 100
    batch_size: int = 64
    seed: int = 0
    device: Device = "auto"
    precision: Precision = "auto"
    capture: bool = True
    fused: Fused = "auto"
    ranks: int = 1
    data_dir: str | None = None
    n_val: int | None = None
    n_draws: int = 20
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what cannot work before anything is loaded or written."""
        for name, hint in get_type_hints(Settings).items():
            check_type(name, getattr(self, name), hint)
        for name in ("epochs", "batch_size", "ranks", "n_draws"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")
        if not 0 <= self.seed < MAX_SEED:
            raise ValueError(f"seed must be from 0 to {MAX_SEED - 1}; got {self.seed}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device cuda was asked for, but torch sees no CUDA device: use device cpu")
        if self.method not in methods.names():
            raise ValueError(unknown("method", self.method, methods.names()))
        data.find(self.data)  # an unknown set is an error that names the nearest
        if self.model is not None and self.model not in models.names():
            raise ValueError(unknown("model", self.model, models.names()))
        known = options_of(self.method)
        for name, value in self.options.items():
            if name not in known:
                raise ValueError(unknown(f"option of {self.method}", name, known))
            check_type(f"{name} of {self.method}", value, known[name][0])
        # A run records them all: a default may be another one in the next version.
        object.__setattr__(self, "options", with_defaults(self.method, self.options))

    def to_config(self) -> dict[str, Any]:
        """As a dictionary for ``config.toml``."""
        return asdict(self)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Settings:
        """From the dictionary of a ``config.toml``; an unknown key is an error that names the nearest."""
        known = [item.name for item in fields(cls)]
        for key in config:
            if key not in known:
                raise ValueError(unknown("key", key, known))
        for key in ("method", "data"):
            if key not in config:
                raise ValueError(f"the key {key!r} is missing")
        return cls(**config)

    def load_task(self) -> Task:
        """The data."""
        if self.n_val is None:
            return data.load(self.data, self.data_dir)
        if "n_val" not in inspect.signature(data.find(self.data)).parameters:
            raise ValueError(f"{self.data} has a validation split of its own: leave n_val out")
        return data.load(self.data, self.data_dir, n_val=self.n_val)

    def is_on_gpu(self) -> bool:
        """Whether the device asked for is a GPU here."""
        return self.device == "cuda" or (self.device == "auto" and torch.cuda.is_available())

    def is_bf16(self) -> bool:
        """Whether the precision asked for is bfloat16 here."""
        return self.precision == "bf16" or (self.precision == "auto" and self.is_on_gpu())

    def model_name(self, task: Task) -> str:
        """The network asked for; otherwise a residual network for colour images, an MLP for the rest."""
        is_colour_image = len(task.input_shape) == 3 and task.input_shape[0] == 3
        return self.model or ("resnet18" if is_colour_image else "mlp")


def with_defaults(method: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method, those that were not given at their defaults.

    Example:
        >>> with_defaults("rigl", {"lr": 0.5})["density"]
        0.05
    """
    return {name: default for name, (_, default) in options_of(method).items()} | dict(options)


def options_of(method: str) -> dict[str, tuple[Any, Any]]:
    """The options of a method: type and default by name, from its signature.

    Example:
        >>> options_of("rigl")["density"]
        (<class 'float'>, 0.05)
    """
    function = methods.find(method)
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    return {name: (hints[name], item.default) for name, item in parameters.items() if name not in ("task", "steps")}
