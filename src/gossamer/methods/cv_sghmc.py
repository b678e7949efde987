"""SGHMC in cycles, with snapshots (Ke and Fan, arXiv 2210.12957, Algorithm 2; Zhang et al., ICLR 2020).

Each cycle takes the learning rate from its highest value to a thousandth of it, and stays low for long enough that the
noise of mini-batches cools; the networks at the end of the cycles are the draws. (``csghmc`` has noise in the last part
of each cycle alone.) ``mode="reference"`` takes the paper's noise, whose "temperature" is not a temperature, and the
released code's hyper-parameters, cycles and snapshots.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

from gossamer.methods._parts import first_given, given, noise_of_all_ranks, refresh_of
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots, ends_of_cycles
from gossamer.schedules import cyclical
from gossamer.types import Method, Mode, Schedule, Task

__all__ = ["cv_sghmc"]

PresetName = Literal["paper_cifar", "paper_example1", "paper_example2", "paper_example3"]
Values = TypeVar("Values")


@dataclass(frozen=True)
class Preset:
    """Sampler settings of one experiment."""

    lr: float
    weight_decay: float = 5e-4
    cycles: int = 4
    momentum: float = 0.1
    tail: float = 0.0  # share of each cycle in which the noise of mini-batches cools; not in reference mode
    k_power: float = -1.0  # the paper's k is this power of N
    epochs: int = 200  # the unit in which the released code counts its cycles and snapshots


# The released scripts: CIFAR-10 and -100 with a batch of 64; the three simulated examples with 1024.
PRESETS: dict[str, Preset] = {
    "paper_cifar": Preset(lr=1.0),
    "paper_example1": Preset(lr=0.01, weight_decay=2e-4, cycles=6, k_power=-0.5, epochs=3000),
    "paper_example2": Preset(lr=0.01, cycles=6, k_power=-0.5, epochs=6000),
    "paper_example3": Preset(lr=0.1, cycles=6, k_power=-0.5, epochs=3000),
}
# Chosen on held-out digits, an MLP and a conv net, three seeds, together with the temperature of 0.1. At twice the rate
# the conv net takes a cycle longer to train; with a third of the decay some of its trainings fall back to chance.
DEFAULT = Preset(lr=0.1, weight_decay=1.5e-3, momentum=0.9, tail=0.25)


def cv_sghmc(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    temperature: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    cycles: int | None = None,
    refresh_batchnorm: bool = False,
    preset: PresetName | None = None,
    mode: Mode = "default",
) -> Method:
    """Cyclical SGHMC on the plain network; its posterior is a set of snapshots.

    Args:
        lr: Learning rate at the start of each cycle; 0.1, and 1 in reference mode.
        temperature: 1 samples the posterior, and needs a rate of 0.1 or less. For numbers it is 1, for classes 0.1,
            which had the better NLL on held-out digits. In reference mode it is the paper's k: 1/N for images, 1/√N in
            the other presets.
        momentum: Momentum of the sampler; 0.9, and 0.1 in reference mode.
        weight_decay: Precision of the normal prior over the number of examples; 1.5e-3, and 5e-4 in reference mode.
        cycles: Number of cycles of the learning rate; 4. The network at the end of each is a draw.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        preset: The paper's hyper-parameters for one of its experiments; other options override it.
        mode: ``"reference"`` for the paper's noise, by default with its preset for images.
    """
    is_reference = mode == "reference"
    known = preset_of(preset, mode, DEFAULT, PRESETS)
    chosen = replace(known, **given(lr=lr, cycles=cycles))
    usual = 1.0 if task.has_numbers else 0.1
    heat = first_given(temperature, task.n_data**chosen.k_power if is_reference else usual)
    schedule, at = cycles_of(mode, chosen, steps)
    options: dict[str, Any] = {
        "lr": chosen.lr,
        "momentum": first_given(momentum, chosen.momentum),
        "weight_decay": first_given(weight_decay, chosen.weight_decay),
    }
    return Method(
        optimizer=lambda model: SGHMC(
            model.parameters(),
            n_data=task.n_data,
            temperature=heat,
            mode=mode,
            generator=noise_of_all_ranks(),
            **options,
        ),
        lr=schedule,
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
        chosen=options | {"temperature": heat, "cycles": chosen.cycles},
        calibrates=preset is None and not is_reference,
        lr_is_given=lr is not None or known is not DEFAULT,
    )


def preset_of(name: str | None, mode: Mode, default: Values, known: Mapping[str, Values]) -> Values:
    """The preset called ``name``; by default that of the images in reference mode, and otherwise the method's own."""
    if name is None:
        return known["paper_cifar"] if mode == "reference" else default
    if name not in known:
        raise ValueError(f"preset must be one of {', '.join(known)}; got {name!r}")
    return known[name]


def cycles_of(mode: Mode, sampler: Preset, steps: int) -> tuple[Schedule, list[int]]:
    """Learning rate and steps of the snapshots: the ends of cycles, or in reference mode those of the released code."""
    lr, cycles, epochs = sampler.lr, sampler.cycles, sampler.epochs
    if mode == "reference":
        return released_rate(lr, steps, cycles, epochs), released_snapshots(steps, cycles, epochs)
    return cyclical(lr, steps, cycles, tail=sampler.tail), ends_of_cycles(steps, cycles)


def released_rate(lr: float, steps: int, cycles: int, epochs: int) -> Schedule:
    """The released learning rate: its cycles are an epoch ahead, so each ends in an epoch at the highest rate."""
    rate, ahead = cyclical(lr, steps, cycles), round(steps / epochs)
    return lambda step: rate(step + ahead)


def released_snapshots(steps: int, cycles: int, epochs: int) -> list[int]:
    """Steps after which the released code keeps a network: epochs 46, 47, 48 of each 49, where its cycles have 50."""
    period = max(1, epochs // cycles - 1)
    kept = [epoch for epoch in range(epochs) if epoch % period >= period - 3]
    return sorted({max(1, (epoch + 1) * steps // epochs) for epoch in kept})
