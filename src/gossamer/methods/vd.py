"""Sparse variational dropout (Molchanov, Ashukha and Vetrov, ICML 2017).

Every weight is N(θ, σ²) and its prior log-uniform, p(w) ∝ 1/|w|. The divergence depends on the noise alone, α = σ²/θ²:
it falls to zero as α grows, so that weights the data do not need drown in their own noise (eq. 14):

    KL = k₁ s(-k₂ - k₃ log α) + ½ log(1 + 1/α)        k = (0.63576, 1.87320, 1.48695), s the logistic function

At the end weights with log α > 3 are removed: what is stored and predicts is the rest. θ and softplus⁻¹(σ) are trained
(the paper's additive noise, there with log σ), through the noise of the outputs (local reparameterization). Biases and
normalisation stay as they are. The released code clips log α to [-8, 8], which also stops the gradient there; here
nothing is clipped.
"""

import math

import torch
from torch import Tensor
from torch.optim import Adam

from gossamer.layers import DenseWeight, GaussianWeight, SparseWeight, Support, param_groups
from gossamer.methods._parts import OwnKL, refresh_of
from gossamer.posterior import InLayers
from gossamer.priors import log_noise, log_uniform_kl
from gossamer.schedules import linear, warmup
from gossamer.sparsity import Cut
from gossamer.sparsity.convert import convert
from gossamer.types import Method, Task

__all__ = ["vd"]

KL_FROM, KL_FULL = 0.025, 0.1  # shares of the training: epochs 5 and 20 of 200 in the paper's runs on CIFAR


def vd(
    task: Task,
    steps: int,
    *,
    lr: float = 0.01,
    threshold: float = 3.0,
    init_std: float = math.exp(-5),
    kl_weight: float | None = None,
    refresh_batchnorm: bool = False,
) -> Method:
    """Sparse variational dropout: a Gaussian over every weight, of which the noisy ones are removed.

    Args:
        lr: Learning rate of Adam; it falls along a line over the second half. 0.01 is from held-out digits; the paper
            has 1e-5 for networks that are trained already.
        threshold: log α above which a weight is removed, at the last step.
        init_std: Standard deviation before the first step; the paper has exp(-7.5) for networks that are trained
            already.
        kl_weight: β, the weight of the KL, which rises from 0 over the first tenth of the training; 1 is the ELBO, and
            the paper's. ``None`` is min(1, 4N / number of weights).
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """

    def noisy(dense: DenseWeight, support: Support) -> LogUniformWeight:
        mean = support.gather(dense.values)
        return LogUniformWeight(support, mean.clone(), torch.full_like(mean, init_std), prior_std=math.inf)

    begin = round(KL_FROM * steps)
    rise = warmup(1.0, round(KL_FULL * steps) - begin)
    return Method(
        prepare=lambda model: convert(model, noisy),
        optimizer=lambda model: Adam(param_groups(model), lr=lr),
        lr=linear(lr, steps // 2, steps),
        penalty=OwnKL(kl_weight, task.n_data, lambda step: rise(max(0, step - begin))),
        rules=lambda model, optimizer: [Cut(model, optimizer, lambda weight: threshold - _log_noise(weight), at=steps)],
        collector=lambda: InLayers(refresh=refresh_of(task, refresh_batchnorm)),
        one_rate=False,  # Adam
    )


class LogUniformWeight(GaussianWeight):
    """A Gaussian weight with a log-uniform prior."""

    def kl(self) -> Tensor:
        """KL(q ‖ prior), summed over the active entries, up to a constant."""
        return log_uniform_kl(self.mean, self.learnt_std()).sum()


def _log_noise(weight: SparseWeight) -> Tensor:
    assert isinstance(weight, GaussianWeight)
    return log_noise(weight.mean, weight.learnt_std())
