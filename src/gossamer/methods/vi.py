"""Dense mean-field variational inference: every weight is active, with a mean and a standard deviation.

The dense baseline of SSVI (Li et al., ICLR 2024): the same layers, objective and schedules at density 1.
"""

from __future__ import annotations

from functools import partial

from gossamer.convert import bayesianize
from gossamer.layers import WeightedKL
from gossamer.methods._parts import refresh_of, variational_defaults, variational_optimizer
from gossamer.posterior import InLayers
from gossamer.schedules import cosine, warmup
from gossamer.types import Method, Mode, Noise, Task

__all__ = ["vi"]


def vi(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    std_lr: float | None = None,
    kl_weight: float | None = None,
    kl_warmup: float = 0.5,
    prior_std: float | None = None,
    init_std: float | None = None,
    noise: Noise = "local",
    refresh_batchnorm: bool = False,
    mode: Mode = "default",
) -> Method:
    """Dense VI: a Gaussian over every weight.

    Args:
        task: The task; its number of training examples scales the KL.
        steps: Length of the training.
        lr: Learning rate at the start of a cosine; 0.02 for Adam, 0.01 for SGD in reference mode.
        std_lr: Learning rate of the raw σ; ``None`` is ``lr``. Their gradient is of the order of ``kl_weight`` over the
            number of examples, so with SGD (reference mode) they hardly move unless it is orders of magnitude larger.
        kl_weight: β of the KL; 1 is the ELBO. 0.02, and 0.01 in reference mode.
        kl_warmup: Share of the training over which β rises from 0.
        prior_std: Standard deviation of the prior; ``None`` scales it by the fan-in.
        init_std: Initial standard deviation; ``None`` scales it by the fan-in.
        noise: ``"local"`` draws one value per output in a training step (local reparameterization), ``"weights"`` one
            per weight for the whole batch (the released ``same_noise``): half the products, noisier gradients.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        mode: ``"reference"`` for the released code's behaviour.
    """
    rate, beta = variational_defaults(mode, lr, kl_weight)
    return Method(
        prepare=partial(bayesianize, density=1.0, prior_std=prior_std, init_std=init_std, mode=mode, noise=noise),
        optimizer=variational_optimizer(mode, rate, std_lr),
        lr=cosine(rate, steps),
        penalty=WeightedKL(warmup(beta, int(kl_warmup * steps)), task.n_data),
        collector=lambda: InLayers(refresh=refresh_of(task) if refresh_batchnorm else None),
    )
