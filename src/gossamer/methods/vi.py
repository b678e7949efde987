"""Dense mean-field variational inference: every weight is active, with a mean and a standard deviation.

The dense baseline of SSVI (Li et al., ICLR 2024): the same layers, objective and schedules at density 1.
"""

from __future__ import annotations

from dataclasses import replace

from gossamer.methods.ssvi import ssvi
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
    dense = ssvi(
        task,
        steps,
        density=1.0,
        lr=lr,
        std_lr=std_lr,
        kl_weight=kl_weight,
        kl_warmup=kl_warmup,
        prior_std=prior_std,
        init_std=init_std,
        noise=noise,
        refresh_batchnorm=refresh_batchnorm,
        mode=mode,
    )
    return replace(dense, rules=lambda model, optimizer: ())  # there is nothing to move
