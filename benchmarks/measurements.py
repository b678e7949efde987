"""What the benchmarks measure: raw samples and their environment. Tables, bars and plots are made from this alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from benchmarks.timing import THREAD, Spread, Stopwatch, speedup, spread
from gossamer.files import schema
from gossamer.files.atomic import json_by_rows, read_file
from gossamer.lab.record import RecordError, write_atomically

__all__ = [
    "DENSE",
    "DRAWN",
    "EAGER",
    "GRADIENT",
    "MASKED",
    "PLAIN",
    "RELEASED",
    "SSVI",
    "VI",
    "Effort",
    "Footprint",
    "Measurements",
    "Timing",
    "TrainingCost",
    "UpdateCost",
    "density_of",
    "sparse",
]


class Effort(NamedTuple):
    """How much is measured of each row: densities, rounds, clock, and whether masks take part."""

    densities: tuple[float, ...] = (0.2, 0.1, 0.05, 0.02, 0.01)
    rival_densities: tuple[float, ...] = (0.1, 0.05)
    rounds: int = 7
    clock: Stopwatch = THREAD
    with_masked: bool = True


FORMAT = 1

EXAMPLES = 50_000  # per epoch of CIFAR
UPDATES_A_STEP = 0.75 / 100  # as in the paper: one every 100 steps, for three quarters of a training

DENSE = "dense LRT"
MASKED = "masked"
PLAIN = "deterministic"
GRADIENT = "gradient"  # sparse, with stds that are parameters and the KL in the loss (std="gradient")

# Ways to train on a GPU, beside the deterministic one.
RELEASED = "released style"
VI = "dense VI"
SSVI = "SSVI 5 %"
DRAWN = "SSVI 5 %, weights drawn"
EAGER = "SSVI 5 %, not captured"


def sparse(density: float, by: str = "sparse") -> str:
    """The name of a way that depends on the density.

    Example:
        >>> sparse(0.05), sparse(0.1, "torch CSR")
        ('sparse 0.05', 'torch CSR 0.1')
    """
    return f"{by} {density:g}"


def density_of(way: str) -> float:
    """The density in the name of a way.

    Example:
        >>> density_of("torch CSR 0.1")
        0.1
    """
    return float(way.split()[-1])


@dataclass(frozen=True)
class Timing:
    """One piece of work done in several ways, in turns: milliseconds of each way in each round.

    Example:
        >>> row = Timing("linear 8x8", "linear", "forward", 4, {DENSE: [4.0, 4.0], "sparse 0.1": [2.0, 1.0]})
        >>> row.median(DENSE), row.speedup("sparse 0.1").median
        (4.0, 3.0)
    """

    subject: str
    family: str
    work: str
    batch: int
    ms: Mapping[str, Sequence[float]]

    def median(self, way: str) -> float:
        """Typical milliseconds of a way."""
        return statistics.median(self.ms[way])

    def speedup(self, way: str, over: str = DENSE) -> Spread:
        """How many times faster one way is than another."""
        return speedup(self.ms[over], self.ms[way])


@dataclass(frozen=True)
class Footprint:
    """Bytes of a network in training and on disk, and the peaks of resident memory of whole processes."""

    subject: str
    way: str
    training_bytes: int  # parameters, gradients, curvatures, optimizer state
    index_bytes: int  # positions and the kernels' plans of them, or a mask
    checkpoint_bytes: int  # the file with model and optimizer
    model_bytes: int  # the file with the model alone
    peak_bytes: Sequence[int]  # above what the process held before there was a network
    state_bytes: float = 0.0  # of an active entry between two steps, its position aside; 0 if it was not counted

    @property
    def peak(self) -> float:
        """Median of the peaks."""
        return statistics.median(self.peak_bytes)


@dataclass(frozen=True)
class UpdateCost:
    """Milliseconds of ordinary training steps, and what an update of the subspace took beyond them.

    Example:
        >>> UpdateCost("MLP", 128, 0.05, 100, ordinary_ms=[5.0, 5.0], extra_ms=[10.0, 20.0]).share.median
        0.03
    """

    subject: str
    batch: int
    density: float
    period: int
    ordinary_ms: Sequence[float]
    extra_ms: Sequence[float]

    @property
    def share(self) -> Spread:
        """Time of an update over the time of the steps between two updates."""
        pairs = zip(self.ordinary_ms, self.extra_ms, strict=True)
        return spread([extra / (self.period * ordinary) for ordinary, extra in pairs])


@dataclass(frozen=True)
class TrainingCost:
    """A way to train a network on a device: times round by round, what it holds, and what setting it up took.

    Example:
        >>> row = TrainingCost("ResNet-18", "SSVI 5 %", 128, [4.0, 4.0], [8.0, 8.0], 30.0, 10, 10, 10, 10, 10)
        >>> round(row.epoch_seconds, 4), round(row.images_per_second)
        (1.5875, 31497)
    """

    subject: str
    way: str
    batch: int
    ms: Sequence[float]  # per step
    update_ms: Sequence[float]  # extra time of an update; empty where nothing moves
    setup_seconds: float  # until the first step is done
    training_bytes: int  # parameters, gradients, curvatures, optimizer state
    working_bytes: int  # dense copies to compute with, or masks
    checkpoint_bytes: int
    peak_bytes: int  # in tensors, setting up included
    held_bytes: int  # taken from the device in training, captured graphs included

    @property
    def update_share(self) -> Spread:
        """Time of the updates over that of a training, round by round."""
        pairs = zip(self.ms, self.update_ms, strict=True)
        return spread([UPDATES_A_STEP * update / (step + UPDATES_A_STEP * update) for step, update in pairs])

    @property
    def epoch_seconds(self) -> float:
        """Seconds for 50,000 examples, including updates at their average rate."""
        update = UPDATES_A_STEP * statistics.median(self.update_ms) if self.update_ms else 0.0
        return math.ceil(EXAMPLES / self.batch) * (statistics.median(self.ms) + update) / 1e3

    @property
    def images_per_second(self) -> float:
        """Images per second in such an epoch."""
        return EXAMPLES / self.epoch_seconds


@dataclass(frozen=True)
class Measurements:
    """Everything measured on a device, by section, and the environment."""

    device: str
    rounds: int
    environment: Mapping[str, Any]
    layers: list[Timing] = field(default_factory=list)
    networks: list[Timing] = field(default_factory=list)
    memory: list[Footprint] = field(default_factory=list)
    updates: list[UpdateCost] = field(default_factory=list)
    training: list[TrainingCost] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def to_json(self) -> str:
        """JSON with one line per row, so that a diff of two files can be read."""
        return json_by_rows({"format": FORMAT} | asdict(self))

    def write(self, path: Path) -> None:
        """Write the JSON file atomically."""
        write_atomically(path, self.to_json())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """From the object that :meth:`to_json` writes; anything else is a ``ValueError`` that says what is wrong."""
        found = content.get("format")
        if found != FORMAT:
            raise ValueError(f"its format is {found!r}, this version of gossamer reads {FORMAT}")
        plain = {key: value for key, value in content.items() if key != "format"}
        for key, kind in _ROWS.items():
            rows: Any = list[kind]  # type: ignore[valid-type]
            plain[key] = schema.made(rows, plain.get(key, []), key, "make the file again")
        try:
            return cls(**plain)
        except TypeError as error:
            raise ValueError(str(error).replace(f"{cls.__name__}.__init__() ", "")) from error

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a JSON file that the benchmark wrote."""
        content = read_file(path, "give a file that python -m benchmarks wrote")
        if content is None:
            raise RecordError(f"{path} does not exist: python -m benchmarks cpu --json {path} makes it")
        try:
            return cls.from_dict(content)
        except ValueError as error:
            raise RecordError(f"{path} is no result of the benchmarks: {error}") from error


_ROWS: dict[str, type[Any]] = {
    "layers": Timing,
    "networks": Timing,
    "memory": Footprint,
    "updates": UpdateCost,
    "training": TrainingCost,
}
