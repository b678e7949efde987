"""The settings of Ke and Fan (arXiv 2210.12957): named presets, and the cycles of their released code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gossamer.schedules import cyclical
from gossamer.types import Mode, Schedule

__all__ = ["PRESETS", "Preset", "PresetName", "preset_of", "released_rate", "released_snapshots"]

PresetName = Literal["paper_cifar", "paper_example1", "paper_example2", "paper_example3"]


@dataclass(frozen=True)
class Preset:
    """Values of one experiment."""

    lr: float
    weight_decay: float = 5e-4
    cycles: int = 4
    momentum: float = 0.1
    scale_lr: float = 0.1
    k_power: float = -1.0  # the paper's k is this power of N
    epochs: int = 200  # what the released code counts its cycles and snapshots in


# The released scripts: CIFAR-10 and -100 with a batch of 64; the three simulated examples with 1024.
PRESETS: dict[str, Preset] = {
    "paper_cifar": Preset(lr=1.0),
    "paper_example1": Preset(lr=0.01, weight_decay=2e-4, cycles=6, k_power=-0.5, epochs=3000),
    "paper_example2": Preset(lr=0.01, cycles=6, k_power=-0.5, epochs=6000),
    "paper_example3": Preset(lr=0.1, cycles=6, k_power=-0.5, epochs=3000),
}


def preset_of(name: str | None, mode: Mode, default: Preset) -> Preset:
    """The preset asked for; without one that of the images in reference mode, and otherwise the method's own.

    Example:
        >>> own = Preset(lr=0.2)
        >>> [preset_of(name, mode, own).lr for name, mode in (("paper_example3", "default"), (None, "reference"))]
        [0.1, 1.0]
    """
    if name is None:
        return PRESETS["paper_cifar"] if mode == "reference" else default
    if name not in PRESETS:
        raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
    return PRESETS[name]


def released_rate(lr: float, steps: int, cycles: int, epochs: int) -> Schedule:
    """The released code's learning rate: its cycles are an epoch ahead, so each ends in an epoch at the highest rate.

    Example:
        >>> rate = released_rate(1.0, steps=2000, cycles=4, epochs=200)
        >>> round(rate(0), 3), round(rate(489), 3), rate(490), rate(1990)
        (0.999, 0.0, 1.0, 1.0)
    """
    rate, ahead = cyclical(lr, steps, cycles), round(steps / epochs)
    return lambda step: rate(step + ahead)


def released_snapshots(steps: int, cycles: int, epochs: int) -> list[int]:
    """Steps after which the released code keeps a network: epochs 46, 47, 48 of each 49, where its cycles have 50.

    Example:
        >>> [step // 10 - 1 for step in released_snapshots(steps=2000, cycles=4, epochs=200)]
        [46, 47, 48, 95, 96, 97, 144, 145, 146, 193, 194, 195]
    """
    period = epochs // cycles - 1
    kept = [epoch for epoch in range(epochs) if epoch % period >= period - 3]
    return sorted({max(1, (epoch + 1) * steps // epochs) for epoch in kept})
