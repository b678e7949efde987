"""SGHMC in cycles, with snapshots (Ke and Fan, arXiv 2210.12957, Algorithm 2; Zhang et al., ICLR 2020).

Each cycle takes the learning rate from its highest value to zero; the networks at the end of the cycles are the draws.
``mode="reference"`` takes the paper's noise, whose temperature is not what it is called, with the released code's
hyper-parameters, cycles and snapshots.
"""

from __future__ import annotations

from gossamer.methods._cyclical import PRESETS, PresetName, released_rate, released_snapshots
from gossamer.methods._parts import noise_of_all_ranks, refresh_of
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots, ends_of_cycles
from gossamer.schedules import cyclical, phases
from gossamer.types import Method, Mode, Task

__all__ = ["cv_sghmc"]


def cv_sghmc(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    temperature: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    scale_lr: float | None = None,
    cycles: int | None = None,
    per_cycle: int = 3,
    hot: float = 1.0,
    refresh_batchnorm: bool = False,
    preset: PresetName | None = None,
    mode: Mode = "default",
) -> Method:
    """Cyclical SGHMC on the plain network; its posterior are snapshots.

    Args:
        task: The task; its number of training examples scales the noise.
        steps: Length of the training.
        lr: Learning rate at the start of each cycle.
        temperature: 1 samples the posterior. In reference mode it is the paper's k, 1/N for images and 1/√N for tables.
        momentum: Of the velocity.
        weight_decay: Precision of the normal prior over the number of examples.
        scale_lr: Rate at which each weight's own step size is learnt.
        cycles: Of the learning rate.
        per_cycle: Snapshots a cycle, the last at its end; three in reference mode.
        hot: Share of each cycle, at its end, that has noise; before it the sampler is SGD with momentum.
        refresh_batchnorm: Whether each draw gets statistics of batch normalisation of its own, by a pass over the data.
        preset: The paper's hyper-parameters for one of its experiments; what else is given comes first.
        mode: ``"reference"`` for the paper's noise and the released code's cycles.
    """
    chosen = PRESETS[preset or "paper_cifar"] if preset or mode == "reference" else DEFAULT
