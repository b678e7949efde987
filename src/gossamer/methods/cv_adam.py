"""Constrained variational Adam (Ke and Fan, arXiv 2210.12957, Algorithm 1): mean-field VI by the optimizer alone.

The network stays plain: its parameters are the means, the optimizer holds the standard deviations. In the default mode
they are learnt; ``mode="reference"`` takes the paper's steps, by which they hardly move.
"""

from typing import Any

from gossamer.methods._parts import first_given, noise_of_all_ranks, refresh_of
from gossamer.methods.cv_sghmc import PRESETS, Preset, PresetName, preset_of, released_rate
from gossamer.optim import CVAdam
from gossamer.posterior import AroundMeans
from gossamer.schedules import cosine
from gossamer.types import Method, Mode, Task

__all__ = ["cv_adam"]

# Chosen on held-out digits, an MLP, four seeds, together with the temperature of 0.02 and the scale_lr of 0.03.
DEFAULT = Preset(lr=0.3, momentum=0.9)


def cv_adam(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    temperature: float | None = None,
    momentum: float | None = None,
    weight_decay: float | None = None,
    scale_lr: float | None = None,
    init_std: float | None = None,
    refresh_batchnorm: bool = False,
    preset: PresetName | None = None,
    mode: Mode = "default",
) -> Method:
    """CV-Adam: a Gaussian over every parameter, held by the optimizer.

    Args:
        lr: Learning rate at the start of a cosine; 0.3. In reference mode 1, at the start of each cycle.
        temperature: Weight of the KL: 1 is the ELBO, which underfits on digits as it does with ``vi``; 0.02 had the
            best NLL on held-out digits. In reference mode it is the paper's k, 1/N or 1/√N by preset.
        momentum: Momentum of the gradients; 0.9, and 0.1 in reference mode.
        weight_decay: Precision of the normal prior over the number of examples; 5e-4.
        scale_lr: Rate of the local scales; 0.03, and 0.1 in reference mode, where it is divided by N.
        init_std: Standard deviation of every weight before the first step; fixed in reference mode.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        preset: The paper's hyper-parameters for one of its experiments; other options override it.
        mode: ``"reference"`` for the paper's update, by default with its preset for images.
    """
    chosen, is_reference = preset_of(preset, mode, DEFAULT, PRESETS), mode == "reference"
    rate = first_given(lr, chosen.lr)
    options: dict[str, Any] = {
        "lr": rate,
        "temperature": first_given(temperature, task.n_data**chosen.k_power if is_reference else 0.02),
        "momentum": first_given(momentum, chosen.momentum),
        "weight_decay": first_given(weight_decay, chosen.weight_decay),
        "scale_lr": first_given(scale_lr, 0.1 if is_reference else 0.03),
    }
    return Method(
        optimizer=lambda model: CVAdam(
            model.parameters(),
            n_data=task.n_data,
            init_std=init_std,
            mode=mode,
            generator=noise_of_all_ranks(),
            **options,
        ),
        lr=released_rate(rate, steps, chosen.cycles, chosen.epochs) if is_reference else cosine(rate, steps),
        collector=lambda: AroundMeans(refresh_of(task, refresh_batchnorm)),
        chosen=options,
        calibrates=preset is None and not is_reference,
        lr_is_given=lr is not None or chosen is not DEFAULT,
        share_for_numbers=0.1,  # as chosen on these tables
    )
