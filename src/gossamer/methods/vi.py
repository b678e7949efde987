"""Dense mean-field variational inference: every weight is active, with a mean and a standard deviation.

The dense baseline of SSVI (Li et al., ICLR 2024): the same layers, objective and schedules at density 1.
"""

from __future__ import annotations

from gossamer.methods.ssvi import OptimizerName, ssvi
from gossamer.types import Method, Mode, Noise, Std, Task

__all__ = ["vi"]


def vi(
    task: Task,
    steps: int,
    *,
    lr: float | None = None,
    optimizer: OptimizerName | None = None,
    temperature: float | None = None,
    weight_decay: float = 5e-4,
    prior_std: float | None = None,
    init_std: float | None = None,
    noise: Noise | None = None,
    refresh_batchnorm: bool = False,
    average: float | None = None,
    std: Std | None = None,
    std_lr: float | None = None,
    kl_weight: float | None = None,
    kl_warmup: float | None = None,
    mode: Mode = "default",
) -> Method:
    """Dense VI: a Gaussian over every weight.

    Args:
        task: The task, with N training examples.
        steps: Length of the training.
        lr: Learning rate at the start of a cosine; 0.1 for SGD and 0.02 for Adam, 0.01 in reference mode.
        optimizer: What trains the means, ``"sgd"`` (momentum 0.9) or ``"adam"``; ``None`` is SGD for networks with
            batch normalisation, Adam for others.
        temperature: T of the posterior, σ² = T / N(h + δ); 1 is that of the ELBO. ``None`` is chosen by the number
            of examples for each weight.
        weight_decay: δ, the weight decay of the means and the curvature of the prior.
        prior_std: Standard deviation s of the prior instead of ``weight_decay``: δ = T / N s².
        init_std: Initial standard deviation; ``None`` is scaled by the fan-in.
        noise: ``"local"`` draws one value per output in a training step (local reparameterization), ``"weights"`` one
            per weight for the whole batch (the released ``same_noise``): half the products, noisier gradients.
            ``None`` is the second for networks with batch normalisation, the first for others and in reference mode.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        average: Share of the training, at its end, over which the network is averaged (SWA). The learning rate falls to
            a tenth until then and stays there, and batch normalisation is refreshed for each draw. ``None`` is 0.25
            for networks with batch normalisation in 5,000 steps or more, otherwise 0.
        std: How the standard deviations learn: from ``"curvature"``, or by ``"gradient"``, as in the paper. ``None`` is
            the second in reference mode and where one of the next three options is given.
        std_lr: Learning rate of the raw σ, for ``std="gradient"``; ``None`` is ``lr``. Their gradient is of the order
            of ``kl_weight`` over the number of examples, so with SGD (reference mode) they hardly move unless it is
            orders of magnitude larger.
        kl_weight: β of the KL, for ``std="gradient"``; 1 is the ELBO. 0.02, and 0.01 in reference mode.
        kl_warmup: Share of the training over which β rises from 0, for ``std="gradient"``; 0.5.
        mode: ``"reference"`` for the released code's behaviour.
    """
    return ssvi(
        task,
        steps,
        density=1.0,
        lr=lr,
        optimizer=optimizer,
        temperature=temperature,
        weight_decay=weight_decay,
        prior_std=prior_std,
        init_std=init_std,
        noise=noise,
        refresh_batchnorm=refresh_batchnorm,
        average=average,
        std=std,
        std_lr=std_lr,
        kl_weight=kl_weight,
        kl_warmup=kl_warmup,
        mode=mode,
    )
