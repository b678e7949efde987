"""IVON (Shen et al., ICML 2024): variational inference by a natural-gradient optimizer, dense or in a moving subspace.

The network keeps its parameters as means, and the optimizer holds σ² = T / N(h + δ) of each (:mod:`gossamer.optim.ivon`
has the equations). With a density below 1 only the active weights are stored, with their h, and move as in RigL: the
smallest |m| leave, the largest gradients at the drawn weights come in, and start with the first curvature.
"""

from functools import partial
from typing import Any

from gossamer.methods._parts import noise_of_all_ranks, refresh_of, with_options_of
from gossamer.methods.rigl import moves, rigl
from gossamer.optim import IVON
from gossamer.posterior import AroundMeans
from gossamer.schedules import cosine, rising
from gossamer.sparsity.convert import sparsify
from gossamer.types import Method, Task

__all__ = ["ivon"]


@with_options_of(rigl)
def ivon(
    task: Task,
    steps: int,
    *,
    density: float = 1.0,
    lr: float | None = None,
    temperature: float = 1.0,
    init_curvature: float = 0.5,
    momentum: float = 0.9,
    curvature_momentum: float = 0.99999,
    weight_decay: float = 2e-4,
    lr_warmup: float = 0.025,
    refresh_batchnorm: bool = False,
    **moving: Any,
) -> Method:
    """IVON: a Gaussian over every active parameter, held by the optimizer.

    Args:
        density: Share of active weights; 1 leaves the network as it is.
        lr: Learning rate at the start of a cosine; the paper has 0.2 for 200 epochs of CIFAR, shorter trainings want
            more: 0.5 was better on held-out digits.
        temperature: T of the posterior; 1 is that of the ELBO.
        init_curvature: h before the first step; it hardly changes in fewer than 1/(1 - ``curvature_momentum``) steps.
        momentum: Momentum of the gradients.
        curvature_momentum: Weight of the past in h.
        weight_decay: δ, the weight decay of the means and the curvature of the prior.
        lr_warmup: Share of the training over which the learning rate rises; five of the paper's 200 epochs.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    rate = 0.5 if lr is None else lr
    allocation = moving.pop("allocation")
    # h differs little between weights, so their size is their signal-to-noise ratio.
    rules = moves(steps, "magnitude", "sampled_gradient", **moving)
    return Method(
        prepare=partial(sparsify, density=density, allocation=allocation) if density < 1 else lambda model: model,
        optimizer=lambda model: IVON(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=temperature,
            init_curvature=init_curvature,
            momentum=momentum,
            curvature_momentum=curvature_momentum,
            weight_decay=weight_decay,
            generator=noise_of_all_ranks(),
        ),
        lr=rising(cosine(rate, steps), int(lr_warmup * steps)),
        rules=rules if density < 1 else lambda model, optimizer: [],
        collector=lambda: AroundMeans(refresh_of(task, refresh_batchnorm)),
        lr_is_given=lr is not None,
    )
