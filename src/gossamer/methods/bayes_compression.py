"""Bayesian compression with the group Normal-Jeffreys prior (Louizos, Ullrich and Welling, NeurIPS 2017).

The weights of a group share a scale z: input units of linear layers, output channels of convolutions. With a prior
p(z) ∝ 1/|z| and p(w | z) = N(0, z²), and

    q(z) = N(μ_z, σ_z²),    q(w | z) = N(z μ_w, z² σ_w²)

the divergence is that of variational dropout for the scales, α_z = σ_z²/μ_z², and that of a standard normal prior for
the weights, whatever the scale (eq. 8):

    KL = Σ_z [ k₁ s(-k₂ - k₃ log α_z) + ½ log(1 + 1/α_z) ] + Σ_w ½ ( σ_w² + μ_w² - 1 - log σ_w² )

Groups with log α_z above a threshold are removed at the end, with all their weights: :func:`gossamer.compact` of a draw
is a smaller network. A training pass draws a scale per example and noise per output. Departures: biases have no
distribution, and a scale multiplies the kernel of its channel but not the bias; σ_w is not clamped.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.optim import Adam

from gossamer import kernels
from gossamer.kernels import ConvMap, LinearMap, WeightMap
from gossamer.layers import DenseWeight, GaussianWeight, SparseWeight, Support, inverse_softplus, param_groups
from gossamer.layers.gaussian import std_of
from gossamer.layers.support import spread
from gossamer.layers.weight import Pass, without_autocast
from gossamer.methods._parts import OwnKL, refresh_of
from gossamer.posterior import InLayers
from gossamer.priors import log_noise, log_uniform_kl
from gossamer.schedules import linear, warmup
from gossamer.sparsity import Cut
from gossamer.sparsity.convert import convert
from gossamer.types import Method, Task

__all__ = ["bayes_compression"]

INIT_STD = math.exp(-4.5)  # of scales and weights: the tutorial of the authors has log-variances of -9
FIRST_SCALES = 0.01  # std of the first means of the scales around 1, as in that tutorial


def bayes_compression(
    task: Task,
    steps: int,
    *,
    lr: float = 0.01,
    threshold: float = 0.0,
    kl_weight: float | None = None,
    kl_warmup: float = 0.1,
    refresh_batchnorm: bool = False,
) -> Method:
    """Bayesian compression: Gaussian weights with a shared scale per unit or channel, of which the noisy ones go.

    Args:
        lr: Learning rate of Adam; it falls along a line over the second half. The tutorial of the authors has 0.001 for
            a long training; in 900 steps on digits that removed hardly anything.
        threshold: log α of a scale above which its group is removed, at the last step: at 0 the noise of a scale is as
            large as its mean. The authors chose one per layer by looking at histograms.
        kl_weight: β, the weight of the KL; 1 is the ELBO, and the paper's. ``None`` is min(1, 4N / number of weights).
        kl_warmup: Share of the training over which β rises from 0.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """

    def margin(weight: SparseWeight) -> Tensor:
        assert isinstance(weight, ScaledWeight)
        return weight.spread(threshold - log_noise(weight.scale_mean, weight.scale_std))

    return Method(
        prepare=lambda model: convert(model, _scaled),
        optimizer=lambda model: Adam(param_groups(model), lr=lr),
        lr=linear(lr, steps // 2, steps),
        penalty=OwnKL(kl_weight, task.n_data, warmup(1.0, round(kl_warmup * steps))),
        rules=lambda model, optimizer: [Cut(model, optimizer, margin, at=steps)],
        collector=lambda: InLayers(refresh=refresh_of(task, refresh_batchnorm)),
        one_rate=False,  # Adam
    )


def _scaled(dense: DenseWeight, support: Support) -> ScaledWeight:
    mean = support.gather(dense.values)
    n_groups = support.shape[group_dim(support.shape)]
    scale = torch.normal(1.0, FIRST_SCALES, (n_groups,)).to(mean)
    return ScaledWeight(support, mean.clone(), torch.full_like(mean, INIT_STD), scale, torch.full_like(scale, INIT_STD))


def group_dim(shape: Sequence[int]) -> int:
    """The dimension of a weight along which its groups are: input units of matrices, output channels of kernels."""
    return 1 if len(shape) == 2 else 0


class ScaledWeight(GaussianWeight):
    """A Gaussian weight times a Gaussian scale per group: w = z (μ_w + σ_w ε), z = μ_z + σ_z ε'."""

    def __init__(self, support: Support, mean: Tensor, std: Tensor, scale_mean: Tensor, scale_std: Tensor) -> None:
        super().__init__(support, mean, std, prior_std=1.0)
        self.scale_mean = nn.Parameter(scale_mean)
        self.scale_raw_std = nn.Parameter(inverse_softplus(scale_std))

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        ones, groups = like.new_ones(support.n_active), like.new_ones(support.shape[group_dim(support.shape)])
        return cls(support, torch.zeros_like(ones), ones, torch.zeros_like(groups), groups)

    @property
    def scale_std(self) -> Tensor:
        """σ_z."""
        return std_of(self.scale_raw_std) * math.sqrt(self.width)

    @property
    def std(self) -> Tensor:
        """Standard deviation of the weights as they multiply inputs: √(μ_z² σ_w² + σ_z² μ_w² + σ_z² σ_w²)."""
        mean, variance = self.spread(self.scale_mean.square()), self.spread(self.scale_std.square())
        own = self.learnt_std(self.width).square()
        return (mean * own + variance * self.mean.square() + variance * own).sqrt()

    def spread(self, values: Tensor) -> Tensor:
        """A number per group -> one per active entry."""
        return spread(self.support, values, group_dim(self.support.shape))

    def expected(self) -> Tensor:
        """μ_z μ_w."""
        return self.mean * self.spread(self.scale_mean)

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """One draw of scales and weights; ``std``, that of their product, is of no use for it."""
        noise = torch.empty_like(self.scale_mean).normal_(generator=generator)
        weights = super().sample(generator, self.learnt_std(self.width))
        return weights * self.spread(self.scale_mean + self.scale_std * noise)

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of weights and scales, up to a constant."""
        return super().kl() + log_uniform_kl(self.scale_mean, self.scale_std).sum()

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        """Linear maps scale each input, convolutions each output, with noise per example; other maps draw weights."""
        if isinstance(weight_map, LinearMap):
            return super().multiply(x * self._scales(x.shape).to(x), bias, weight_map)
        if isinstance(weight_map, ConvMap) and not weight_map.transposed:
            y = super().multiply(x, None, weight_map)
            channels = (-1, *[1] * (y.dim() - 2))
            y = y * self._scales(y.shape[:2]).view(len(y), *channels).to(y)
            return y if bias is None else y + bias.view(channels).to(y)
        x, plain = without_autocast(x)
        with plain:
            return kernels.product(
                x, self.this_pass(drawn=True).values, bias, self.support.position, self.support.shape, weight_map
            )

    def this_pass(self, *, drawn: bool = False) -> Pass:
        """The weights alone, unless they are drawn: their scales multiply inputs or outputs."""
        return super().this_pass(drawn=drawn) if self.is_noisy or drawn else Pass(self.mean)

    def _scales(self, shape: torch.Size) -> Tensor:
        mean = self.scale_mean.expand(shape)
        return mean + self.scale_std * torch.randn_like(mean) if self.is_noisy else mean
