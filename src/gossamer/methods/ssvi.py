"""Sparse subspace variational inference (Li, Miao, Qiu and Zhang, ICLR 2024), Algorithm 1.

Mean-field Gaussian variational inference in a subspace of fixed size whose axes change during training. By default the
standard deviations follow from the curvature of the loss (:class:`gossamer.Curvature`), and SGD trains the means. With
``std="gradient"`` they are parameters that Adam trains, with the KL in the loss. ``mode="reference"`` takes the released
code's hyper-parameters and arithmetic, with which they do not learn.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from gossamer.convert import bayesianize
from gossamer.layers import WeightedKL, param_groups
from gossamer.methods._parts import first_given, only_with, refresh_of, update_period_for
from gossamer.optim import Curvature
from gossamer.posterior import InAverage, InLayers
from gossamer.schedules import cosine, warmup
from gossamer.sparsity import Subspace
from gossamer.types import Collector, Criterion, Method, Mode, Noise, Penalty, Rule, Std, Task, no_penalty

__all__ = ["ssvi"]

OptimizerName = Literal["sgd", "adam"]

REFERENCE = {"lr": 0.01, "kl_weight": 0.01, "weight_decay": 5e-4}  # of the released code
GRADIENT = {"lr": 0.02, "kl_weight": 0.02}  # of Adam, chosen on held-out digits
LR = {"sgd": 0.1, "adam": 0.02}  # of the means
SWA_RATE = 0.1  # of the first learning rate, while averaging
LR_WARMUP = 0.025  # share of the training: at full rate from the first step, networks with attention diverge


def ssvi(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    optimizer: OptimizerName = "sgd",
    temperature: float | None = None,
    weight_decay: float = 5e-4,
    removal: str | Criterion = "snr_abs",
    addition: str | Criterion = "sampled_gradient",
    update_period: int | None = None,
    replacement_rate: float = 0.3,
    until: float = 0.75,
    prior_std: float | None = None,
    init_std: float | None = None,
    allocation: str | None = None,
    noise: Noise = "local",
    refresh_batchnorm: bool = False,
    average: float = 0.0,
    std: Std | None = None,
    std_lr: float | None = None,
    kl_weight: float | None = None,
    kl_warmup: float | None = None,
    mode: Mode = "default",
) -> Method:
    """SSVI: variational inference in a moving subspace of ``density`` times the weights.

    Args:
        task: The task, with N training examples.
        steps: Length of the training.
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.1 for SGD and 0.02 for Adam, 0.01 in reference mode.
        optimizer: What trains the means, ``"sgd"`` (momentum 0.9) or ``"adam"``.
        temperature: T of the posterior, σ² = T / N(h + δ); 1 is that of the ELBO. ``None`` chooses it by the number of
            examples for each active weight.
        weight_decay: δ, the weight decay of the means and the curvature of the prior.
        removal: Score of the active entries; the lowest are removed.
        addition: Score of the inactive entries; the highest are added.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: Share of the active weights replaced at the first update; it falls to 0 along a cosine.
        until: Share of the training after which the subspace stays as it is.
        prior_std: Standard deviation s of the prior instead of ``weight_decay``: δ = T / N s².
        init_std: Initial standard deviation; ``None`` scales it by the active fan-in.
        allocation: How the active weights are spread over the layers; ``None`` is ``"erk"``, which had the better NLL
            on held-out digits, or ``"uniform"`` in reference mode.
        noise: ``"local"`` draws one value per output in a training step (local reparameterization), ``"weights"`` one
            per weight for the whole batch (the released ``same_noise``): half the products, noisier gradients.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        average: Share of the training, at its end, over which the network is averaged (SWA). The learning rate falls to a
            tenth until then and stays there; batch normalisation is always refreshed.
        std: How the standard deviations learn: from ``"curvature"``, or by ``"gradient"``, as in the paper.
        std_lr: Learning rate of the raw σ, for ``std="gradient"``; ``None`` is ``lr``. Their gradient is of the order of
            ``kl_weight`` over the number of examples, so with SGD (reference mode) they hardly move unless it is orders
            of magnitude larger.
        kl_weight: β of the KL, for ``std="gradient"``; 1 is the ELBO. 0.02, and 0.01 in reference mode.
        kl_warmup: Share of the training over which β rises from 0, for ``std="gradient"``; 0.5.
        mode: ``"reference"`` for the released code's behaviour.
    """
    is_reference = mode == "reference"
    std = std or ("gradient" if is_reference else "curvature")
    convert = partial(
        bayesianize,
        density=density,
        prior_std=prior_std,
        init_std=init_std,
        allocation=allocation or ("uniform" if is_reference else "erk"),
        mode=mode,
        noise=noise,
        std=std,
    )
    penalty: Penalty
    if std == "curvature":
        only_with("std='gradient'", std_lr=std_lr, kl_weight=kl_weight, kl_warmup=kl_warmup)
        rate, penalty = first_given(lr, LR[optimizer]), no_penalty
        falling = steps - int(average * steps)
        schedule = warmup(cosine(rate, falling, SWA_RATE * rate if average else 0.0), int(LR_WARMUP * steps))
    else:
        only_with("std='curvature'", temperature=temperature)
        defaults = REFERENCE if is_reference else GRADIENT
        rate, beta = first_given(lr, defaults["lr"]), first_given(kl_weight, defaults["kl_weight"])
        penalty = WeightedKL(warmup(beta, int(first_given(kl_warmup, 0.5) * steps)), task.n_data)
        schedule = cosine(rate, steps)

    def optimizer_of(model: nn.Module) -> Optimizer:
        if std == "curvature":
            groups = param_groups(model)
            return Adam(groups, lr=rate) if optimizer == "adam" else SGD(groups, lr=rate, momentum=0.9)
        if is_reference:
            return SGD(param_groups(model, REFERENCE["weight_decay"], std_lr), lr=rate, momentum=0.9)
        return Adam(param_groups(model, std_lr=std_lr), lr=rate)

    def rules(model: nn.Module, trained_by: Optimizer) -> list[Rule]:
        subspace = Subspace(
            model,
            trained_by,
            total_steps=steps,
            removal=removal,
            addition=addition,
            update_period=update_period_for(steps, update_period),
            replacement_rate=replacement_rate,
            until=until,
        )
        if std == "gradient":
            return [subspace]
        decay = None if prior_std is not None else weight_decay
        return [Curvature(model, trained_by, task.n_data, temperature=temperature, weight_decay=decay), subspace]

    def collector() -> Collector:
        if average:
            begin = max(1, steps - int(average * steps))
            return InAverage(begin, max(1, steps // 1000), refresh_of(task))
        return InLayers(refresh=refresh_of(task, refresh_batchnorm))

    return Method(
        prepare=convert,
        optimizer=optimizer_of,
        lr=schedule,
        penalty=penalty,
        rules=rules,
        collector=collector,
    )
