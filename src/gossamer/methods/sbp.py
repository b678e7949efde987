"""Structured Bayesian pruning (Neklyudov, Molchanov, Ashukha and Vetrov, NeurIPS 2017).

Each input unit of a linear layer and each input channel of a convolution has a noise z that multiplies its weights:
log z is normal, N(μ, σ²), truncated to [a, b] = [-20, 0], and its prior uniform there. With α = (a - μ)/σ,
β = (b - μ)/σ and Z = Φ(β) - Φ(α) (eqs. 9, 11, 12):

    KL = log(b - a) - log(√(2πe) σ Z) - (α φ(α) - β φ(β)) / 2Z
    E zᵏ = exp(kμ + k²σ²/2) [Φ(β - kσ) - Φ(α - kσ)] / Z

Groups whose signal-to-noise ratio E z / √Var z is below 1 are removed at the end with all their weights:
:func:`gossamer.compact` of a draw is a smaller network. The weights themselves have no distribution. As in the paper,
a training pass draws one z per unit, shared by the batch; the released code clips Φ⁻¹ and so leaves [a, b] where
μ > b. Departure: batch normalisation is trained on, not frozen, and would divide the noise of an output channel out
again, so the noise of convolutions is that of their inputs, where the paper has it at their outputs. As in the paper
the network at E z predicts. Its statistics of batch normalisation are made anew: those of the training are of networks
whose channels have other scales. Held-out digits and Fashion-MNIST chose this: with batch normalisation the NLL of
draws as they are was 3 to 26 times as high.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.special import erfc, erfcx, ndtri

from gossamer.layers import DenseWeight, SparseWeight, Support, sparse_weights
from gossamer.layers.support import spread
from gossamer.layers.weight import RegrowStd
from gossamer.methods._parts import OwnKL, apart, refresh_of
from gossamer.posterior import InLayers, Last
from gossamer.schedules import linear, warmup
from gossamer.sparsity import Cut
from gossamer.sparsity.convert import convert
from gossamer.types import Method, Task

__all__ = ["sbp"]

INPUTS = 1  # the dimension of a weight along which its groups lie
LOW, HIGH = -20.0, 0.0  # a and b
MEANS, LOG_STDS = (-20.0, 5.0), (-20.0, 5.0)  # the ranges in which the released code keeps μ and log σ
FAR = 30.0  # stds: beyond it a normal tail is an exponential one to nine digits
NOISE_LR = 10.0  # of the learning rate of the weights, as released


def sbp(
    task: Task,
    steps: int,
    *,
    lr: float = 3e-3,
    threshold: float = 1.0,
    kl_weight: float = 1.0,
    kl_warmup: float = 0.1,
    predict_by: Literal["mean", "draws"] = "mean",
    refresh_batchnorm: bool = True,
) -> Method:
    """Structured Bayesian pruning: log-normal noise per unit and channel, of which the noisy ones are removed.

    Args:
        lr: Learning rate of Adam; that of μ and log σ is ten times as large. It stays for five sixths of the training,
            then falls along a line. The paper has 1e-5 for networks that are trained already.
        threshold: Signal-to-noise ratio below which a group is removed, at the last step.
        kl_weight: Weight of the KL; 1 is the ELBO.
        kl_warmup: Share of the training over which the weight of the KL rises from 0; the paper's networks are trained
            already and need none.
        predict_by: ``"mean"`` predicts by the one network at E z, as the paper does; ``"draws"`` by draws of z, for
            which the uncertainty of the prediction is more than that of one network.
        refresh_batchnorm: Recompute the batch-norm statistics of what predicts, by a pass over the training data.
    """
    kinds: dict[str, type[Last | InLayers]] = {"mean": Last, "draws": InLayers}
    if predict_by not in kinds:
        raise ValueError(f"predict_by must be 'mean' or 'draws'; got {predict_by!r}")

    def margin(weight: SparseWeight) -> Tensor:
        assert isinstance(weight, GatedWeight)
        return weight.spread(weight.snr() - threshold)

    def optimizer(model: nn.Module) -> Adam:
        rest, gates = apart(model, (gate for weight in sparse_weights(model).values() for gate in _gates(weight)))
        return Adam([rest, gates | {"lr": NOISE_LR * lr}], lr=lr, betas=(0.95, 0.999))

    return Method(
        prepare=lambda model: convert(model, _gated),
        optimizer=optimizer,
        lr=linear(lr, steps * 5 // 6, steps),
        penalty=OwnKL(kl_weight, task.n_data, warmup(1.0, round(kl_warmup * steps))),
        rules=lambda model, optimizer: [Cut(model, optimizer, margin, at=steps)],
        collector=lambda: kinds[predict_by](refresh=refresh_of(task, refresh_batchnorm)),
        one_rate=False,  # Adam
    )


def _gated(dense: DenseWeight, support: Support) -> GatedWeight:
    mean = support.gather(dense.values)
    n_groups = support.shape[INPUTS]
    return GatedWeight(support, mean.clone(), mean.new_zeros(n_groups), mean.new_full((n_groups,), -5.0))


def _gates(weight: SparseWeight) -> tuple[nn.Parameter, nn.Parameter]:
    assert isinstance(weight, GatedWeight)
    return weight.log_mean, weight.log_std


class GatedWeight(SparseWeight):
    """Point weights times truncated log-normal noise per group: w = z θ, log z ~ N(μ, σ²) on [-20, 0]."""

    def __init__(self, support: Support, mean: Tensor, log_mean: Tensor, log_std: Tensor) -> None:
        super().__init__(support, mean)
        self.log_mean, self.log_std = nn.Parameter(log_mean), nn.Parameter(log_std)

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        groups = like.new_zeros(support.shape[INPUTS])
        return cls(support, like.new_zeros(support.n_active), groups, groups.clone())

    @property
    def std(self) -> Tensor:
        """|θ| √Var z of each active entry."""
        first, second = moments(*self._gate())
        return self.mean.abs() * self.spread((second - first.square()).clamp_min(0).sqrt())

    def spread(self, values: Tensor) -> Tensor:
        """A number per group -> one per active entry."""
        return spread(self.support, values.to(self.mean.dtype), INPUTS)

    def snr(self) -> Tensor:
        """E z / √Var z of each group; float64 cannot tell more than about 10⁸ from infinity."""
        first, second = moments(*self._gate())
        tiny = torch.finfo(first.dtype).eps * second
        return first / (second - first.square()).maximum(tiny).sqrt()

    def kl(self) -> Tensor:
        """KL(q ‖ prior), summed over the groups, in nats."""
        return divergence(*self._gate()).sum()

    def expected(self) -> Tensor:
        """θ E z."""
        return self.mean * self.spread(moments(*self._gate())[0])

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """One draw of z per group, times the weights; ``std`` is of no use for it."""
        mean, scale = self._gate()
        uniform = torch.empty_like(mean).uniform_(generator=generator)
        return self.mean * self.spread(drawn(mean, scale, uniform).exp())

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry starts at zero; its group has the noise that it has."""
        return {"mean": self.mean.detach().new_zeros(())}

    def _gate(self) -> tuple[Tensor, Tensor]:
        """μ and σ, in float64: there are few of them, and E z² - (E z)² needs the digits."""
        return self.log_mean.double().clamp(*MEANS), self.log_std.double().clamp(*LOG_STDS).exp()


def divergence(mean: Tensor, std: Tensor) -> Tensor:
    """KL of the truncated normal distribution of log z from the uniform one, in nats, for μ from -20 on.

    Where μ > b, Φ(β) and φ(β) underflow together: with t = -β and erfcx their ratio does not.
    """
    low, high = (LOW - mean) / std, (HIGH - mean) / std
    constant = math.log(HIGH - LOW) - 0.5 * math.log(2 * math.pi * math.e) - std.log()
    body_low, body_high = low.clamp_max(0), high.clamp_min(0)  # arguments of the branch that is not taken are safe
    mass = _cdf(body_high) - _cdf(body_low)
    body = -mass.log() - (body_low * _density(body_low) - body_high * _density(body_high)) / (2 * mass)
    t = (-high).clamp_min(0)
    ratio, rest = _tail(t, (HIGH - LOW) / std)
    # β²/2 + β φ(β)/2Z, two numbers that cancel where t is large: by the series of t·φ(t)/Φ(-t) - t² = 1 - 2/t² + …
    near = t.clamp_max(FAR)
    excess = near * math.sqrt(2 / math.pi) / ratio - near.square()
    far = t.clamp_min(FAR).square().reciprocal()
    excess = torch.where(t > FAR, 1 - far * (2 - far * (10 - 74 * far)), excess)
    tail = -(ratio / 2).log() - 0.5 * excess - low * rest / (2 * ratio) * math.sqrt(2 / math.pi)
    return constant + torch.where(high < 0, tail, body)


def moments(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
    """E z and E z², without overflow for any μ from -20 on and any σ."""
    return _moment(mean, std, 1), _moment(mean, std, 2)


def _moment(mean: Tensor, std: Tensor, k: int) -> Tensor:
    """E zᵏ. exp(kμ + k²σ²/2) Φ(β - kσ) = exp(kb - β²/2) · ½ erfcx((kσ - β)/√2), for use where β < kσ."""
    low, high = (LOW - mean) / std, (HIGH - mean) / std
    width, t = (HIGH - LOW) / std, k * std - high
    # Where μ > b the factors exp(-β²/2) of numerator and denominator cancel.
    shifted = _tail(t.clamp_min(0), width)[0]
    in_tail = shifted / _tail((-high).clamp_min(0), width)[0]
    mass = _cdf(high) - _cdf(low)
    mass = torch.where(high < 0, torch.ones_like(mass), mass)
    narrow = (k * mean + 0.5 * k**2 * std.square()).clamp_max(0).exp() * (_cdf(-t) - _cdf(low - k * std)) / mass
    wide = 0.5 * (-0.5 * high.clamp_min(0).square()).exp() * shifted / mass
    return math.exp(k * HIGH) * torch.where(high < 0, in_tail, torch.where(t > 0, wide, narrow))


def _tail(t: Tensor, width: Tensor) -> tuple[Tensor, Tensor]:
    """2 exp(t²/2) [Φ(-t) - Φ(-t - width)] for t ≥ 0, and φ(t + width)/φ(t)."""
    rest = (-width * (t + 0.5 * width)).exp()
    return erfcx(t / math.sqrt(2)) - rest * erfcx((t + width) / math.sqrt(2)), rest


def drawn(mean: Tensor, std: Tensor, uniform: Tensor) -> Tensor:
    """Value of log z by the inverse of its distribution function at ``uniform``; always inside [a, b]."""
    low, high = (LOW - mean) / std, (HIGH - mean) / std
    uniform = uniform.clamp(torch.finfo(uniform.dtype).tiny, 1.0)
    near = high.clamp_min(-FAR)
    below = _cdf(low)
    p = below + uniform * (_cdf(near) - below)
    inside = ndtri(p.clamp(torch.finfo(p.dtype).tiny, 1 - torch.finfo(p.dtype).eps))
    # Far in the tail distances from b are exponential, with rate -β.
    tail = high + uniform.log() / (-high).clamp_min(FAR)
    return (mean + std * torch.where(high < -FAR, tail, inside)).clamp(LOW, HIGH)


def _cdf(x: Tensor) -> Tensor:
    """Φ, with the digits of its lower tail, which ``torch.special.ndtr`` rounds to zero."""
    cdf: Tensor = 0.5 * erfc(-x / math.sqrt(2))
    return cdf


def _density(x: Tensor) -> Tensor:
    return (-0.5 * x.square()).exp() / math.sqrt(2 * math.pi)
