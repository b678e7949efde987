"""Criteria: scores that decide which entries stay in the subspace and which are added (SSVI, section 3.3).

For θ ~ N(μ, σ²): a removal criterion is a score, higher is kept, and only its order matters. Scores come in float32 at
least, because bfloat16 would round different weights into ties, and in float64 for the ratio |μ|/σ, whose order must be
exact.

Notation: a = |μ|/σ, t = λσ, φ and Q are the density and the upper tail of N(0, 1), and δ(a) = 2(φ(a) - a Q(a)), so that
E|θ| = |μ| + σδ. Everything is computed in float64, accurate over the whole range of floats.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from gossamer.types import Criterion, WeightStats

__all__ = [
    "ADDITION",
    "ENTRYWISE",
    "REMOVAL",
    "GradientCriterion",
    "entrywise",
    "expected_abs",
    "expected_exp",
    "magnitude",
    "mean_gradient",
    "multi_sample_gradient",
    "random",
    "sampled_gradient",
    "snr",
    "snr_abs",
    "snr_abs_reference",
    "snr_exp",
]


Own = TypeVar("Own", bound=Criterion)

ENTRYWISE: set[Criterion] = set()


def entrywise(criterion: Own) -> Own:
    """Declares that a criterion scores an entry the same whatever other entries it is given: all weights in one call.

    Without it a criterion is called once per weight, and may compare the entries of that weight (LAMP does).

    >>> @entrywise
    ... def smallest(stats):
    ...     return -stats.mean.abs()
    >>> smallest in ENTRYWISE
    True
    """
    ENTRYWISE.add(criterion)
    return criterion


@entrywise
def magnitude(stats: WeightStats) -> Tensor:
    """Criterion 1: |μ|, the only one for point weights.

    >>> magnitude(WeightStats(torch.tensor([-2.0, 0.5])))
    tensor([2.0000, 0.5000])
    """
    return stats.mean.abs()


@entrywise
def snr(stats: WeightStats) -> Tensor:
    """Criterion 2: |μ|/σ, in float64: no two different ratios of float32 numbers overflow or round into a tie there.

    >>> snr(WeightStats(torch.tensor([0.0, 1.0, 1e30]), torch.tensor([1.0, 1.0, 1e-30])))
    tensor([0.0000e+00, 1.0000e+00, 1.0000e+60], dtype=torch.float64)
    """
    return _terms(*_mean_std(stats, "snr"))[2]


@entrywise
def expected_abs(stats: WeightStats) -> Tensor:
    """Criterion 3: E|θ| = |μ| + σδ(a) (SSVI, eq. 6); both terms are positive.

    >>> expected_abs(WeightStats(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.1])))
    tensor([0.7979, 3.0000])
    """
    mean, std = _mean_std(stats, "expected_abs")
    size, spread, a = _terms(mean, std)
    return (size + spread * _excess(a)).to(mean)


@entrywise
def snr_abs(stats: WeightStats) -> Tensor:
    """Criterion 4, the default: SNR(|θ|), by the score of ``snr``.

    SNR(|θ|) depends on a = |μ|/σ alone and increases with it, so the two orders are one. SNR(|θ|) itself is no score:
    near 0 it is 1.3236 + 0.3 a⁴, constant in float32 for a < 0.02.

    >>> snr_abs(WeightStats(torch.tensor([1e-4, 2e-4]), torch.tensor([1.0, 1.0])))
    tensor([1.0000e-04, 2.0000e-04], dtype=torch.float64)
    """
    return _terms(*_mean_std(stats, "snr_abs"))[2]


@entrywise
def expected_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 5: log E e^{λ|θ|} with λ = ``rate``.

    It is λ|μ| + t²/2 + log(1 + g) with g = e^{-2λ|μ|} Q(a - t) - Q(a + t) in [0, 1). All terms are positive, so nothing
    cancels, and no exponential overflows.

    >>> expected_exp(WeightStats(torch.tensor([1e-9, 1e4]), torch.tensor([1e-12, 1.0])))
    tensor([1.0000e-09, 1.0000e+04])
    """
    mean, std = _mean_std(stats, "expected_exp")
    size, spread, a = _terms(mean, std)
    t = _check_rate(rate) * spread
    return (rate * size + t**2 / 2 + _reflection(a, t).log1p()).to(mean)


@entrywise
def snr_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 6: log SNR(e^{λ|θ|}) with λ = ``rate``. For λσ << 1 it keeps the smallest σ, whatever μ is.

    It is -log(e^D - 1)/2 with D = log E e^{2λ|θ|} - 2 log E e^{λ|θ|}.

    >>> snr_exp(WeightStats(torch.tensor([0.0, 9.0]), torch.tensor([1e-9, 1e-3])))
    tensor([21.2294,  6.9078])
    """
    mean, std = _mean_std(stats, "snr_exp")
    _, spread, a = _terms(mean, std)
    gap = _log_moment_gap(a, _check_rate(rate) * spread)
    return (-(gap + (-torch.expm1(-gap)).log()) / 2).to(mean)


@entrywise
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
    draws of θ on one batch.

    >>> GradientCriterion("mine", noise_free=True)(WeightStats(torch.zeros(2), grad=torch.tensor([-1.0, 0.5])))
    tensor([1.0000, 0.5000])
    """

    name: str
    noise_free: bool = False
    n_draws: int = 1

    def __post_init__(self) -> None:
        """Reject fewer than one draw."""
        if not isinstance(self.n_draws, int) or isinstance(self.n_draws, bool) or self.n_draws < 1:
            raise ValueError(f"{self.name} needs a number of draws, an int >= 1, got {self.n_draws!r}")

    def __call__(self, stats: WeightStats) -> Tensor:
        """|gradient|."""
        if stats.grad is None:
            raise ValueError(f"{self.name} needs stats.grad; use addition='random' where there is none")
        return stats.grad.abs()


sampled_gradient = GradientCriterion("sampled_gradient")
"""|gradient| of one draw of the network."""

mean_gradient = GradientCriterion("mean_gradient", noise_free=True)
"""|gradient| of the network at its means."""


def multi_sample_gradient(n_draws: int) -> GradientCriterion:
    """The criterion 1/K Σ_k |gradient of draw k| with K = ``n_draws``.

    >>> multi_sample_gradient(3).n_draws
    3
    """
    return GradientCriterion("multi_sample_gradient", n_draws=n_draws)


def random(stats: WeightStats, generator: torch.Generator | None = None) -> Tensor:
    """Uniform scores, one per dense entry.

    >>> random(WeightStats(torch.zeros(2), grad=torch.zeros(5))).shape
    torch.Size([5])
    """
    like = stats.mean if stats.grad is None else stats.grad
    # Drawn on the CPU, so that every device and rank with the same seed adds the same entries.
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
    "random": random,
}


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


def _terms(mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """|μ|, σ and a = |μ|/σ, which is 0 where both are 0, in float64; on the CPU if their device has none."""
    device = "cpu" if mean.device.type == "mps" else mean.device
    size, spread = mean.to(device, torch.float64).abs(), std.to(device, torch.float64)
    return size, spread, torch.where(size == 0, 0.0, size / spread)


_SURE = 40.0  # Q(40) is 0 in float64, so a larger a changes nothing, and an infinite one would give inf · 0


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
    """g(a, t) = e^{-2at} Q(a - t) - Q(a + t); for small t, where that cancels, tδe^{-at}(1 + O(t²))."""
    a = a.clamp(max=_SURE)
    exact = torch.exp(-2 * a * t) * _tail(a - t) - _tail(a + t)
    return torch.where(t < 1e-5, t * _excess(a) * torch.exp(-a * t), exact)


def _log_moment_gap(a: Tensor, t: Tensor) -> Tensor:
    """D = t² + log(1 + g(a, 2t)) - 2 log(1 + g(a, t)); the terms in λ|μ| cancel exactly.

    For small t these terms cancel too: there D = t² κ₂ + t³ κ₃ + O(t⁴), with the cumulants of |θ|/σ. Where the two
    forms meet, both are accurate to 1e-8.
    """
    exact = t**2 + _reflection(a, 2 * t).log1p() - 2 * _reflection(a, t).log1p()
    variance, third = _abs_cumulants(a)
    return torch.where(t < 3e-4, t**2 * (variance + t * third), exact)
