"""Sparse variational Bayesian networks (Bai, Song and Cheng, NeurIPS 2020): spike and slab for every weight.

    q(w) = φ N(μ, σ²) + (1 - φ) δ₀,    prior λ N(0, s²) + (1 - λ) δ₀

    KL = φ log(φ/λ) + (1 - φ) log((1 - φ)/(1 - λ)) + φ [ log(s/σ) + (σ² + μ²)/2s² - ½ ]
    log 1/λ = log T + 0.1 [ (L + 1) log H + log(√N p) ]

with T weights, L hidden layers of width H, and p inputs. A training pass draws the weights once for the batch,
w = γ (μ + σε), with γ from a binary Concrete of temperature ½: 1[y > ½] forward and the gradient of y backward, where
y = s((logit φ + logit u)/½). Weights with φ < ½ are removed at the end.

Departures: biases have no distribution; means start from the network's own weights, not from U(-0.6, 0.6); the logits
have a learning rate of their own in short trainings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Adam

from gossamer.layers import DenseWeight, GaussianWeight, SparseWeight, Support, sparse_weights
from gossamer.layers.weight import RegrowStd
from gossamer.methods._parts import OwnKL, apart, refresh_of
from gossamer.posterior import InLayers
from gossamer.schedules import linear, warmup
from gossamer.sparsity import Cut
from gossamer.sparsity.convert import convert
from gossamer.types import Method, Task

__all__ = ["svbnn"]

SLAB_STD = math.log1p(math.exp(1.3))  # s, softplus(1.3) in the released code
INIT_STD = math.log1p(math.exp(-6))
INIT_INCLUSION = 0.99  # φ before the first step
TEMPERATURE = 0.5  # of the Concrete distribution
TRAVEL = 40.0  # how far logits can get in a training, at least: from logit 0.99 = 4.6 they have to pass 0


def svbnn(
    task: Task,
    steps: int,
    *,
    lr: float = 0.02,
    inclusion_lr: float | None = None,
    slab_std: float = SLAB_STD,
    prior_inclusion: float | None = None,
    kl_weight: float | None = None,
    kl_warmup: float = 0.25,
    refresh_batchnorm: bool = False,
) -> Method:
    """Spike-and-slab variational inference: every weight is zero with a probability that is learnt.

    Args:
        lr: Learning rate of Adam; it falls along a line over the second half. 0.02 is from held-out digits; the paper
            has 5e-3 for 42,000 steps.
        inclusion_lr: Learning rate of the logits of φ; ``None`` is ``lr``, or more in a training of less than 2,000
            steps, in which the logits would not get past 0.
        slab_std: s, the standard deviation of the slab.
        prior_inclusion: λ, the prior probability of a weight; ``None`` is that of the paper, see above.
        kl_weight: β, the weight of the KL; 1 is the ELBO, and the paper's. ``None`` is min(1, N / number of weights).
        kl_warmup: Share of the training over which β rises from 0; in the paper it does not.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    logit_lr = max(lr, TRAVEL / steps) if inclusion_lr is None else inclusion_lr

    def prepare(model: nn.Module) -> nn.Module:
        model = convert(model, lambda dense, support: _spike_slab(dense, support, slab_std))
        weights = sparse_weights(model)
        log_prior = log_inclusion(weights, task.n_data) if prior_inclusion is None else math.log(prior_inclusion)
        for weight in weights.values():
            _checked(weight).log_prior = log_prior
        return model

    def optimizer(model: nn.Module) -> Adam:
        rest, logits = apart(model, (_checked(weight).logit for weight in sparse_weights(model).values()))
        return Adam([rest, logits | {"lr": logit_lr}], lr=lr)

    return Method(
        prepare=prepare,
        optimizer=optimizer,
        lr=linear(lr, steps // 2, steps),
        penalty=OwnKL(kl_weight, task.n_data, warmup(1.0, round(kl_warmup * steps)), most=1),
        rules=lambda model, optimizer: [Cut(model, optimizer, lambda weight: _checked(weight).logit, at=steps)],
        collector=lambda: InLayers(refresh=refresh_of(task, refresh_batchnorm)),
        chosen={"inclusion_lr": logit_lr},
        one_rate=False,  # Adam
    )


def log_inclusion(weights: Mapping[str, SparseWeight], n_data: int) -> float:
    """Logarithm of λ: -log T - 0.1 [ (L + 1) log H + log(√N p) ], with H the largest width.

    Example:
        >>> model = convert(nn.Sequential(nn.Linear(200, 7), nn.Linear(7, 1)), lambda d, s: _spike_slab(d, s, 1.0))
        >>> round(log_inclusion(sparse_weights(model), 3000), 3)
        -8.569
    """
    shapes = [weight.shape for weight in weights.values()]
    total, inputs = sum(shape.numel() for shape in shapes), shapes[0][1:].numel()
    width = max((shape[0] for shape in shapes[:-1]), default=1)
    return -math.log(total) - 0.1 * (len(shapes) * math.log(width) + math.log(math.sqrt(n_data) * inputs))


def _spike_slab(dense: DenseWeight, support: Support, slab_std: float) -> SpikeSlabWeight:
    mean = support.gather(dense.values)
    logit = torch.full_like(mean, math.log(INIT_INCLUSION / (1 - INIT_INCLUSION)))
    return SpikeSlabWeight(support, mean.clone(), torch.full_like(mean, INIT_STD), logit, slab_std)


def _checked(weight: SparseWeight) -> SpikeSlabWeight:
    assert isinstance(weight, SpikeSlabWeight)
    return weight


class SpikeSlabWeight(GaussianWeight):
    """Entries that are N(μ, σ²) with probability φ = s(logit) and zero otherwise."""

    vectors = ("mean", "raw_std", "logit")
    noises_outputs = False

    def __init__(self, support: Support, mean: Tensor, std: Tensor, logit: Tensor, slab_std: float) -> None:
        super().__init__(support, mean, std, slab_std)
        self.logit = nn.Parameter(logit)
        self.log_prior = math.log(0.5)  # log λ

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        ones = like.new_ones(support.n_active)
        return cls(support, torch.zeros_like(ones), ones, torch.zeros_like(ones), slab_std=1.0)

    @property
    def std(self) -> Tensor:
        """√(φ(σ² + μ²) - φ²μ²), of spike and slab together."""
        inclusion = self.logit.sigmoid()
        return (inclusion * (self.learnt_std(self.width).square() + (1 - inclusion) * self.mean.square())).sqrt()

    def expected(self) -> Tensor:
        """φ μ."""
        return self.mean * self.logit.sigmoid()

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """γ (μ + σε); ``std``, that of spike and slab together, is of no use for it."""
        uniform = torch.empty_like(self.mean).uniform_(generator=generator).clamp_min(torch.finfo(self.mean.dtype).tiny)
        soft = ((self.logit + uniform.logit(eps=1e-7)) / TEMPERATURE).sigmoid()
        hard = (soft > 0.5).to(soft.dtype)
        included = hard + (soft - soft.detach())  # the value of one, the gradient of the other
        return included * super().sample(generator, self.learnt_std(self.width))

    def kl(self) -> Tensor:
        inclusion, std, slab = self.logit.sigmoid(), self.learnt_std(), self.prior_std
        log_rest = math.log(-math.expm1(self.log_prior))  # log(1 - λ)
        spike = inclusion * (F.logsigmoid(self.logit) - self.log_prior)
        spike = spike + (1 - inclusion) * (F.logsigmoid(-self.logit) - log_rest)
        normal = math.log(slab) - std.log() + (std.square() + self.mean.square()) / (2 * slab**2) - 0.5
        return (spike + inclusion * normal).sum()

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry is in the slab as likely as not."""
        return super().regrown(kept, regrow_std) | {"logit": self.logit.detach().new_zeros(())}
