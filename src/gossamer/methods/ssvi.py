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
from gossamer.types import Criterion, Method, Mode, Noise, Task

__all__ = ["ssvi"]

REFERENCE = (0.01, 0.01)  # lr and kl_weight of the released code
# Chosen on held-out digits, an MLP and a conv net at densities 1 and 0.05: the ELBO itself (weight 1) underfits there,
# a dense MLP by six points of accuracy, because every weight pays for a posterior of its own.
DEFAULT = (0.02, 0.02)


def ssvi(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
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
    """SSVI: variational inference in a moving subspace of ``density`` times the weights.

    Args:
        task: The task; its number of training examples scales the KL.
        steps: Length of the training.
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.02 for Adam, 0.01 for SGD in reference mode.
        std_lr: Learning rate of the raw σ; ``None`` is ``lr``. Their gradient is of the order of ``kl_weight`` over the
            number of examples, so with SGD (reference mode) they hardly move unless it is orders of magnitude larger.
        removal: Score of the active entries; the lowest are removed.
        addition: Score of the inactive entries; the highest are added.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: Share of the active weights replaced at the first update; it falls to 0 along a cosine.
        until: Share of the training after which the subspace stays as it is.
        kl_weight: β of the KL; 1 is the ELBO. 0.02, and 0.01 in reference mode.
        kl_warmup: Share of the training over which β rises from 0.
        prior_std: Standard deviation of the prior; ``None`` scales it by the active fan-in.
        init_std: Initial standard deviation; ``None`` scales it by the active fan-in.
        allocation: How the active weights are spread over the layers; ``None`` is ``"erk"``, which had the better NLL
            on held-out digits, or ``"uniform"`` in reference mode.
        noise: ``"local"`` draws one value per output in a training step (local reparameterization), ``"weights"`` one
            per weight for the whole batch (the released ``same_noise``): half the products, noisier gradients.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        mode: ``"reference"`` for the released code's behaviour.
    """
    is_reference = mode == "reference"
    rate, beta = map(first_given, (lr, kl_weight), REFERENCE if is_reference else DEFAULT)

    def optimizer_of(model: nn.Module) -> Optimizer:
        """SGD as in the released code, with which σ hardly moves; otherwise Adam, whose step in log σ is free of N."""
        if is_reference:
            return SGD(param_groups(model, weight_decay=5e-4, std_lr=std_lr), lr=rate, momentum=0.9)
        return Adam(param_groups(model, std_lr=std_lr), lr=rate)

    return Method(
        prepare=partial(
            bayesianize,
            density=density,
            prior_std=prior_std,
            init_std=init_std,
            allocation=allocation or ("uniform" if is_reference else "erk"),
            mode=mode,
            noise=noise,
        ),
        optimizer=optimizer_of,
        lr=cosine(rate, steps),
        penalty=WeightedKL(warmup(beta, int(kl_warmup * steps)), task.n_data),
        rules=lambda model, optimizer: [
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
        ],
        collector=lambda: InLayers(refresh=refresh_of(task, refresh_batchnorm)),
    )
