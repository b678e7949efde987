"""Criteria: a score per entry that says who stays in the subspace and who is taken in (SSVI, section 3.3).

For θ ~ N(μ, σ²): a removal criterion is a score, higher is kept, and only its order matters; a ``*_value`` function is
the paper's number itself. Both work in float64 inside, at a cost linear in the entries. Values come back in the dtype
of ``mean``; scores in float32 at least, because bfloat16 would round different weights into ties.

Throughout a = |μ|/σ, t = λσ, φ and Q are the density and the upper tail of N(0, 1), and
δ(a) = 2(φ(a) - a Q(a)), so that E|θ| = |μ| + σδ.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.sparsity.selection import lookup
from gossamer.types import Criterion, WeightStats

__all__ = [
    "ADDITION",
    "REMOVAL",
    "GradientCriterion",
    "addition_criterion",
    "expected_abs",
    "expected_abs_value",
    "expected_exp",
    "expected_exp_value",
    "log_expected_exp_value",
    "log_snr_exp_value",
    "magnitude",
    "magnitude_value",
    "mean_gradient",
    "momentum",
    "multi_sample_gradient",
    "random",
    "removal_criterion",
    "sampled_gradient",
    "snr",
    "snr_abs",
    "snr_abs_reference",
    "snr_abs_value",
    "snr_exp",
    "snr_exp_value",
    "snr_value",
]


def magnitude(stats: WeightStats) -> Tensor:
    """Criterion 1: |μ|, the only one for point weights.

    >>> magnitude(WeightStats(torch.tensor([-2.0, 0.5])))
    tensor([2.0000, 0.5000])
    """
    return stats.mean.abs()


def snr(stats: WeightStats) -> Tensor:
    """Criterion 2: log|μ| - log σ, the order of |μ|/σ without its overflow.

    >>> snr(WeightStats(torch.tensor([0.0, 1.0, 1e30]), torch.tensor([1.0, 1.0, 1e-30])))
    tensor([    -inf,   0.0000, 138.1551])
    """
    return _log_snr(*_mean_std(stats, "snr"))


def expected_abs(stats: WeightStats) -> Tensor:
    """Criterion 3: E|θ|.

    >>> expected_abs(WeightStats(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.1])))
    tensor([0.7979, 3.0000])
    """
    return expected_abs_value(*_mean_std(stats, "expected_abs"))


def snr_abs(stats: WeightStats) -> Tensor:
    """Criterion 4, the default: SNR(|θ|), by the score of ``snr``.

    SNR(|θ|) depends on a = |μ|/σ alone and increases with it, so the two orders are one. The value itself is no score:
    near 0 it is 1.3236 + 0.3 a⁴, constant in float32 for a < 0.02.

    >>> stats = WeightStats(torch.tensor([1e-4, 2e-4]), torch.tensor([1.0, 1.0]))
    >>> snr_abs(stats), snr_abs_value(stats.mean, stats.std)
    (tensor([-9.2103, -8.5172]), tensor([1.3236, 1.3236]))
    """
    return _log_snr(*_mean_std(stats, "snr_abs"))


def expected_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 5: log E e^{λ|θ|}, with λ = ``rate``.

    >>> expected_exp(WeightStats(torch.tensor([1e-9, 1e4]), torch.tensor([1e-12, 1.0])))
    tensor([1.0000e-09, 1.0000e+04])
    """
    return log_expected_exp_value(*_mean_std(stats, "expected_exp"), rate)


def snr_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 6: log SNR(e^{λ|θ|}), with λ = ``rate``. For λσ << 1 it keeps the smallest σ, whatever μ is.

    >>> snr_exp(WeightStats(torch.tensor([0.0, 9.0]), torch.tensor([1e-9, 1e-3])))
    tensor([21.2294,  6.9078])
    """
    return log_snr_exp_value(*_mean_std(stats, "snr_exp"), rate)


def snr_abs_reference(stats: WeightStats) -> Tensor:
    """Criterion 4 as the released code computes it: E|θ| / sqrt(σ² + μ² - (E|θ|)²) in float32, NaN to 0.

    For ``mode="reference"``. For |μ|/σ < 0.02 it takes a dozen values, all round-off, and its order is close to chance;
    for |μ|/σ > 1000 it cancels.

    >>> snr_abs_reference(WeightStats(torch.tensor([0.0, 3.0]), torch.tensor([0.0, 1.0])))
    tensor([0.0000, 3.0077])
    """
    mean, std = (x.float() for x in _mean_std(stats, "snr_abs_reference"))
    expected = mean * torch.erf(mean / std / math.sqrt(2))
    expected = expected + 2 * std * torch.exp(-(mean**2) / (2 * std**2)) / math.sqrt(2 * math.pi)
    score = expected / torch.sqrt(std**2 + mean**2 - expected**2)
    return torch.where(score.isnan(), 0.0, score)


@dataclass(frozen=True)
class GradientCriterion:
    """Score by |gradient|, and what kind of dense gradient that is (SSVI, eq. 9).

    ``noise_free``: of the network at its mean. ``n_draws``: ``stats.grad`` is the mean of |gradient| over that many
    draws of (θ, batch). Without ``needs_grad`` no dense gradient is formed and the score is |momentum|.

    >>> GradientCriterion("mine", noise_free=True)(WeightStats(torch.zeros(2), grad=torch.tensor([-1.0, 0.5])))
    tensor([1.0000, 0.5000])
    """

    name: str
    noise_free: bool = False
    n_draws: int = 1
    needs_grad: bool = True

    def __post_init__(self) -> None:
        """Refuse a number of draws that is none."""
        if not isinstance(self.n_draws, int) or isinstance(self.n_draws, bool) or self.n_draws < 1:
            raise ValueError(f"{self.name} needs a number of draws, an int >= 1, got {self.n_draws!r}")

    def __call__(self, stats: WeightStats) -> Tensor:
        """|gradient|, or |momentum|."""
        source = stats.grad if self.needs_grad else stats.momentum
        if source is None:
            field = "grad" if self.needs_grad else "momentum"
            raise ValueError(f"{self.name} needs stats.{field}; use addition='random' where there is none")
        return source.abs()


sampled_gradient = GradientCriterion("sampled_gradient")
mean_gradient = GradientCriterion("mean_gradient", noise_free=True)
momentum = GradientCriterion("momentum", needs_grad=False)


def multi_sample_gradient(n_draws: int) -> GradientCriterion:
    """The criterion 1/K Σ_k |gradient of draw k| with K = ``n_draws``.

    >>> multi_sample_gradient(3).n_draws
    3
    """
    return GradientCriterion("multi_sample_gradient", n_draws=n_draws)


def random(stats: WeightStats, generator: torch.Generator | None = None) -> Tensor:
    """Uniform scores, one a dense entry.

    >>> random(WeightStats(torch.zeros(2), grad=torch.zeros(5))).shape
    torch.Size([5])
    """
    like = stats.mean if stats.grad is None else stats.grad
    # Drawn on the CPU, so that every device and rank with the same seed takes in the same entries.
    return torch.rand(like.shape, generator=generator).to(like.device)


REMOVAL: dict[str, Criterion] = {
    "magnitude": magnitude,
    "snr": snr,
    "expected_abs": expected_abs,
    "snr_abs": snr_abs,
    "expected_exp": expected_exp,
    "snr_exp": snr_exp,
}

ADDITION: dict[str, Criterion] = {
    "sampled_gradient": sampled_gradient,
    "mean_gradient": mean_gradient,
    "multi_sample_gradient": multi_sample_gradient(5),  # the paper leaves K open; 5 draws are what it predicts with
    "momentum": momentum,
    "random": random,
}


def removal_criterion(choice: str | Criterion) -> Criterion:
    """The removal criterion called ``choice``; a callable is its own criterion.

    >>> removal_criterion("snr_abs") is snr_abs
    True
    """
    return lookup("removal criterion", choice, REMOVAL)


def addition_criterion(choice: str | Criterion) -> Criterion:
    """The addition criterion called ``choice``; a callable is its own criterion.

    >>> addition_criterion("mean_gradient").noise_free
    True
    """
    return lookup("addition criterion", choice, ADDITION)


def magnitude_value(mean: Tensor, std: Tensor) -> Tensor:
    """|μ|.

    >>> magnitude_value(torch.tensor([-2.0]), torch.tensor([1.0]))
    tensor([2.])
    """
    return mean.abs()


def snr_value(mean: Tensor, std: Tensor) -> Tensor:
    """|μ|/σ.

    >>> snr_value(torch.tensor([-2.0]), torch.tensor([4.0]))
    tensor([0.5000])
    """
    _, _, a = _terms(mean, std)
    return a.to(mean)


def expected_abs_value(mean: Tensor, std: Tensor) -> Tensor:
    """E|θ| = |μ| + σδ(a) (SSVI, eq. 6); both terms are positive.

    >>> expected_abs_value(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.7979])
    """
    size, spread, a = _terms(mean, std)
    return (size + spread * _excess(a)).to(mean)


def snr_abs_value(mean: Tensor, std: Tensor) -> Tensor:
    """SNR(|θ|) = (a + δ) / sqrt(1 - 2aδ - δ²) (SSVI, eq. 7, without its cancellation).

    >>> snr_abs_value(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 1.0]))
    tensor([1.3236, 3.0077])
    """
    _, _, a = _terms(mean, std)
    variance, _ = _abs_cumulants(a)
    return ((a + _excess(a)) / variance.sqrt()).to(mean)


def log_expected_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """The log of E e^{λ|θ|}: λ|μ| + t²/2 + log(1 + g), g = e^{-2λ|μ|} Q(a - t) - Q(a + t) in [0, 1).

    Every term is positive, so neither e^{10000} nor 1 + 1e-12 loses digits.

    >>> log_expected_exp_value(torch.tensor([1e4]), torch.tensor([1e-3]))
    tensor([10000.])
    """
    size, spread, a = _terms(mean, std)
    t = _check_rate(rate) * spread
    return (rate * size + t**2 / 2 + _reflection(a, t).log1p()).to(mean)


def expected_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """E e^{λ|θ|}; infinite once its log passes 88.7 in float32.

    >>> expected_exp_value(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([2.7743])
    """
    return log_expected_exp_value(_float64(mean), _float64(std), rate).exp().to(mean)


def log_snr_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """The log of SNR(e^{λ|θ|}): -log(e^D - 1)/2, D = log E e^{2λ|θ|} - 2 log E e^{λ|θ|}.

    >>> log_snr_exp_value(torch.tensor([5.0]), torch.tensor([100.0]))
    tensor([-5000.])
    """
    _, spread, a = _terms(mean, std)
    gap = _log_moment_gap(a, _check_rate(rate) * spread)
    return (-(gap + (-torch.expm1(-gap)).log()) / 2).to(mean)


def snr_exp_value(mean: Tensor, std: Tensor, rate: float = 1.0) -> Tensor:
    """SNR(e^{λ|θ|}) = E e^{λ|θ|} / sqrt(Var e^{λ|θ|}); zero once λσ passes 14.4 in float32.

    >>> snr_exp_value(torch.tensor([5.0]), torch.tensor([1.0]))
    tensor([0.7629])
    """
    return log_snr_exp_value(_float64(mean), _float64(std), rate).exp().to(mean)


def _mean_std(stats: WeightStats, name: str) -> tuple[Tensor, Tensor]:
    """Mean and std in float32 at least, the dtype of a score."""
    if stats.std is None:
        raise ValueError(f"{name} needs a std; use removal='magnitude' for point weights")
    dtype = torch.promote_types(stats.mean.dtype, torch.float32)
    return stats.mean.to(dtype), stats.std.to(dtype)


def _check_rate(rate: float) -> float:
    if not rate > 0:
        raise ValueError(f"rate is the λ of e^(λ|θ|), a number > 0, got {rate}")
    return rate


def _float64(x: Tensor) -> Tensor:
    """In float64, on the CPU where the device has none."""
    return x.to("cpu" if x.device.type == "mps" else x.device, torch.float64)


def _terms(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|μ|, σ and a = |μ|/σ, which is 0 where both are 0."""
    size, spread = _float64(mean).abs(), _float64(std)
    return size, spread, torch.where(size == 0, 0.0, size / spread)


def _log_snr(mean: Tensor, std: Tensor) -> Tensor:
    size, spread, _ = _terms(mean, std)
    return torch.where(size == 0, -torch.inf, size.log() - spread.log()).to(mean)


_SURE = 40.0  # Q(40) is 0 in float64: beyond it |θ| is θ, and a finite bound keeps inf · 0 out


def _tail(z: Tensor) -> Tensor:
    """Q(z); ``torch.special.ndtr(-z)`` is exact only to 1e-16 of 1, and 0 from z = 9 on."""
    return torch.erfc(z / math.sqrt(2)) / 2


def _excess(a: Tensor) -> Tensor:
    """δ(a) = 2(φ(a) - a Q(a))."""
    a = a.clamp(max=_SURE)
    return 2 * (torch.exp(-(a**2) / 2) / math.sqrt(2 * math.pi) - a * _tail(a))


def _abs_cumulants(a: Tensor) -> tuple[Tensor, Tensor]:
    """κ₂ = 1 - 2aδ - δ² and κ₃ = (4a² - 1)δ + 6aδ² + 2δ³ - 2aQ(a) of |θ|/σ."""
    a = a.clamp(max=_SURE)
    excess = _excess(a)
    variance = 1 - 2 * a * excess - excess**2
    return variance, (4 * a**2 - 1) * excess + 6 * a * excess**2 + 2 * excess**3 - 2 * a * _tail(a)


def _reflection(a: Tensor, t: Tensor) -> Tensor:
    """g(a, t) = e^{-2at} Q(a - t) - Q(a + t), which is tδe^{-at}(1 + O(t²)) where the difference would cancel."""
    a = a.clamp(max=_SURE)
    exact = torch.exp(-2 * a * t) * _tail(a - t) - _tail(a + t)
    return torch.where(t < 1e-5, t * _excess(a) * torch.exp(-a * t), exact)


def _log_moment_gap(a: Tensor, t: Tensor) -> Tensor:
    """D = t² + log(1 + g(a, 2t)) - 2 log(1 + g(a, t)): λ|μ| has dropped out exactly.

    For small t that cancels to t² κ₂ + t³ κ₃ + O(t⁴), cumulants of |θ|/σ; both forms err by 1e-8 at the switch.
    """
    exact = t**2 + _reflection(a, 2 * t).log1p() - 2 * _reflection(a, t).log1p()
    variance, third = _abs_cumulants(a)
    return torch.where(t < 3e-4, t**2 * (variance + t * third), exact)
