"""The settings of Ke and Fan (arXiv 2210.12957): named presets, and the cycles of their released code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from gossamer.schedules import cyclical
from gossamer.types import Schedule

__all__ = ["PRESETS", "Preset", "PresetName", "released_rate", "released_snapshots"]

PresetName = Literal["paper_cifar", "paper_example1", "paper_example2", "paper_example3"]


@dataclass(frozen=True)
class Preset:
    """Values of the released scripts. All have momentum 0.1 and scale_lr 0.1, and k = 1/√N but for the images' 1/N."""

    lr: float
    cycles: int
    epochs: int
    weight_decay: float
    published_temperature: Callable[[int], float] = lambda n_data: n_data**-0.5
    momentum: float = 0.1
    scale_lr: float = 0.1


PRESETS: dict[str, Preset] = {
    "paper_cifar": Preset(1.0, 4, 200, 5e-4, lambda n_data: 1 / n_data),  # batch 64, ResNet-18 and WRN-28-10
    "paper_example1": Preset(0.01, 6, 3000, 2e-4),  # the regressions and the classification of section 4.1, batch 1024
    "paper_example2": Preset(0.01, 6, 6000, 5e-4),
    "paper_example3": Preset(0.1, 6, 3000, 5e-4),
}


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
    """Steps after which the released code keeps a network: epochs 46, 47, 48 of 49, where its cycles have 50.

    Example:
        >>> [step // 10 - 1 for step in released_snapshots(steps=2000, cycles=4, epochs=200)]
        [46, 47, 48, 95, 96, 97, 144, 145, 146, 193, 194, 195]
    """
    period = epochs // cycles - 1
    kept = [epoch for epoch in range(epochs) if epoch % period >= period - 3]
    return sorted({max(1, (epoch + 1) * steps // epochs) for epoch in kept})
