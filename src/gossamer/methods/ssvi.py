"""Sparse subspace variational inference (Li, Miao, Qiu and Zhang, ICLR 2024), Algorithm 1.

Mean-field Gaussian variational inference in a subspace of fixed size whose axes change during training.
``mode="reference"`` takes the released code's hyper-parameters and arithmetic, with which σ does not learn; the
default therefore uses Adam, whose step in log σ does not depend on the size of the gradient.
"""

from __future__ import annotations

from functools import partial

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from gossamer.convert import bayesianize
from gossamer.layers import WeightedKL, param_groups
from gossamer.methods._parts import first_given, refresh_of, update_period_for
from gossamer.posterior import InLayers
from gossamer.schedules import cosine, warmup
from gossamer.sparsity import Subspace
from gossamer.optim import Curvature
from gossamer.optim.curvature import WEIGHT_DECAY
from gossamer.types import Criterion, Method, Mode, Noise, Rule, Std, Task, no_penalty

__all__ = ["ssvi"]

REFERENCE = (0.01, 0.01)  # lr and kl_weight of the released code
GRADIENT = (0.02, 0.02)  # lr of Adam and kl_weight with std="gradient", chosen on held-out digits
LR = 0.1


def ssvi(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    momentum: float = 0.9,
    means: str = "sgd",
    std: Std | None = None,
    temperature: float | None = None,
    weight_decay: float | None = WEIGHT_DECAY,
    memory: float = 0.1,
    lr_warmup: float = 0.025,
    std_lr: float | None = None,
    removal: str | Criterion = "snr_abs",
    addition: str | Criterion = "sampled_gradient",
    update_period: int | None = None,
    replacement_rate: float = 0.3,
    until: float = 0.75,
    kl_weight: float | None = None,
    kl_warmup: float = 0.5,
    prior_std: float | None = None,
    init_std: float | None = None,
    allocation: str | None = None,
    noise: Noise = "local",
    refresh_batchnorm: bool = False,
    mode: Mode = "default",
) -> Method:
    """TODO."""
    is_reference = mode == "reference"
    std = std or ("gradient" if is_reference else "curvature")
    rate, beta = map(first_given, (lr, kl_weight), REFERENCE if is_reference else GRADIENT)
    if std == "curvature":
        rate = first_given(lr, LR)

    def optimizer_of(model: nn.Module) -> Optimizer:
        """SGD as in the released code, with which σ hardly moves; otherwise Adam, whose step in log σ is free of N."""
        if std == "curvature":
            groups = param_groups(model)
            return SGD(groups, lr=rate, momentum=momentum) if means == "sgd" else Adam(groups, lr=rate)
        if is_reference:
            return SGD(param_groups(model, weight_decay=5e-4, std_lr=std_lr), lr=rate, momentum=0.9)
        return Adam(param_groups(model, std_lr=std_lr), lr=rate)

    def rules(model: nn.Module, optimizer: Optimizer) -> list[Rule]:
        found: list[Rule] = []
        if std == "curvature":
            found.append(Curvature(model, optimizer, task.n_data, temperature=temperature, weight_decay=weight_decay, memory=memory))
        found.append(
            Subspace(
                model,
                optimizer,
                total_steps=steps,
                removal=removal,
                addition=addition,
                update_period=update_period_for(steps, update_period),
                replacement_rate=replacement_rate,
                until=until,
            )
        )
        return found

    schedule = cosine(rate, steps)
    if std == "curvature" and lr_warmup:
        up = warmup(1.0, max(1, int(lr_warmup * steps)))
        cos = schedule
        schedule = lambda step: up(step + 1) * cos(step)
    return Method(
        prepare=partial(
            bayesianize,
            density=density,
            prior_std=prior_std,
            init_std=init_std,
            allocation=allocation or ("uniform" if is_reference else "erk"),
            mode=mode,
            noise=noise,
            std=std,
        ),
        optimizer=optimizer_of,
        lr=schedule,
        penalty=no_penalty if std == "curvature" else WeightedKL(warmup(beta, int(kl_warmup * steps)), task.n_data),
        rules=rules,
        collector=lambda: InLayers(refresh=refresh_of(task, refresh_batchnorm)),
    )
