"""Criteria: scores that decide which entries stay in the subspace and which are added (SSVI, section 3.3).

For θ ~ N(μ, σ²): a removal criterion is a score, higher is kept, and only its order matters. Scores come in float32 at
least, because bfloat16 would round different weights into ties, and in float64 for the ratio |μ|/σ, whose order must be
exact.
"""

import math
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from gossamer._text.names import lookup
from gossamer.sparsity.values import expected_abs_value, log_expected_exp_value, log_snr_exp_value
from gossamer.types import Criterion, WeightStats

__all__ = [
    "ADDITION",
    "ENTRYWISE",
    "REMOVAL",
    "GradientCriterion",
    "addition_criterion",
    "entrywise",
    "expected_abs",
    "expected_abs_value",
    "expected_exp",
    "log_expected_exp_value",
    "log_snr_exp_value",
    "magnitude",
    "mean_gradient",
    "multi_sample_gradient",
    "random",
    "removal_criterion",
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
    return _ratio(stats, "snr")


@entrywise
def expected_abs(stats: WeightStats) -> Tensor:
    """Criterion 3: E|θ|.

    >>> expected_abs(WeightStats(torch.tensor([0.0, 3.0]), torch.tensor([1.0, 0.1])))
    tensor([0.7979, 3.0000])
    """
    return expected_abs_value(*_mean_std(stats, "expected_abs"))


@entrywise
def snr_abs(stats: WeightStats) -> Tensor:
    """Criterion 4, the default: SNR(|θ|), by the score of ``snr``.

    SNR(|θ|) depends on a = |μ|/σ alone and increases with it, so the two orders are one. SNR(|θ|) itself is no score:
    near 0 it is 1.3236 + 0.3 a⁴, constant in float32 for a < 0.02.

    >>> snr_abs(WeightStats(torch.tensor([1e-4, 2e-4]), torch.tensor([1.0, 1.0])))
    tensor([1.0000e-04, 2.0000e-04], dtype=torch.float64)
    """
    return _ratio(stats, "snr_abs")


@entrywise
def expected_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 5: log E e^{λ|θ|}, with λ = ``rate``.

    >>> expected_exp(WeightStats(torch.tensor([1e-9, 1e4]), torch.tensor([1e-12, 1.0])))
    tensor([1.0000e-09, 1.0000e+04])
    """
    return log_expected_exp_value(*_mean_std(stats, "expected_exp"), rate)


@entrywise
def snr_exp(stats: WeightStats, rate: float = 1.0) -> Tensor:
    """Criterion 6: log SNR(e^{λ|θ|}), with λ = ``rate``. For λσ << 1 it keeps the smallest σ, whatever μ is.

    >>> snr_exp(WeightStats(torch.tensor([0.0, 9.0]), torch.tensor([1e-9, 1e-3])))
    tensor([21.2294,  6.9078])
    """
    return log_snr_exp_value(*_mean_std(stats, "snr_exp"), rate)


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


def _mean_std(stats: WeightStats, name: str) -> tuple[Tensor, Tensor]:
    """Mean and std in float32 at least, the dtype of a score."""
    if stats.std is None:
        raise ValueError(f"{name} needs a std; use removal='magnitude' for point weights")
    dtype = torch.promote_types(stats.mean.dtype, torch.float32)
    return stats.mean.to(dtype), stats.std.to(dtype)


def _ratio(stats: WeightStats, name: str) -> Tensor:
    mean, std = (x.to("cpu" if x.device.type == "mps" else x.device, torch.float64) for x in _mean_std(stats, name))
    return torch.where(mean == 0, 0.0, mean.abs() / std)
