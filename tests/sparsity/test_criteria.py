"""Criteria against mpmath, exact rationals and Monte Carlo, over the whole range of (mean, std)."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import mpmath  # type: ignore[import-untyped]
import pytest
import torch
from torch import Tensor

from gossamer._text.names import lookup
from gossamer.sparsity import criteria
from gossamer.sparsity.criteria import ADDITION, REMOVAL, GradientCriterion
from gossamer.types import WeightStats

RATES = (0.01, 1.0, 100.0)
TOLERANCE = 1e-5
FLOAT32_MAX = torch.finfo(torch.float32).max


def grid(n: int, seed: int, ratio: tuple[float, float] = (1e-6, 1e6)) -> tuple[Tensor, Tensor]:
    """Float32 (mean, std): std log-uniform in [1e-12, 1e3], |mean|/std log-uniform in ``ratio``, every tenth mean 0."""
    generator = torch.Generator().manual_seed(seed)

    def log_uniform(low: float, high: float) -> Tensor:
        uniform = torch.rand(n, generator=generator, dtype=torch.float64)
        return torch.exp(math.log(low) + uniform * math.log(high / low))

    std = log_uniform(1e-12, 1e3)
    mean = log_uniform(*ratio) * std * (2.0 * torch.randint(0, 2, (n,), generator=generator) - 1)
    mean[::10] = 0
    return mean.float(), std.float()


def crossover_grid(n: int, seed: int) -> tuple[Tensor, Tensor]:
    """Float32 (mean, std) where the formulas change over: |mean|/std in [0, 40], std in [1e-6, 1]."""
    generator = torch.Generator().manual_seed(seed)
    std = 10 ** (-6 + 6 * torch.rand(n, generator=generator))
    return 40 * torch.rand(n, generator=generator) ** 3 * std, std


def expected_exp_exact(mean: mpmath.mpf, std: mpmath.mpf, rate: mpmath.mpf) -> mpmath.mpf:
    a, t = mean / std, rate * std
    tilt = mpmath.exp(t**2 / 2)
    return tilt * (mpmath.exp(rate * mean) * mpmath.ncdf(a + t) + mpmath.exp(-rate * mean) * mpmath.ncdf(t - a))


def expected_abs_exact(mean: mpmath.mpf, std: mpmath.mpf, rate: mpmath.mpf) -> mpmath.mpf:
    a = mean / std
    return mean * mpmath.erf(a / mpmath.sqrt(2)) + std * mpmath.sqrt(2 / mpmath.pi) * mpmath.exp(-(a**2) / 2)


def snr_abs_exact(mean: mpmath.mpf, std: mpmath.mpf, rate: mpmath.mpf) -> mpmath.mpf:
    expected = expected_abs_exact(mean, std, rate)
    return expected / mpmath.sqrt(std**2 + mean**2 - expected**2)


def snr_exp_exact(mean: mpmath.mpf, std: mpmath.mpf, rate: mpmath.mpf) -> mpmath.mpf:
    first, second = expected_exp_exact(mean, std, rate), expected_exp_exact(mean, std, 2 * rate)
    return first / mpmath.sqrt(second - first**2)


Value = Callable[..., Tensor]
Exact = Callable[[mpmath.mpf, mpmath.mpf, mpmath.mpf], mpmath.mpf]

VALUES: dict[str, tuple[Value, Exact]] = {
    "expected_abs": (criteria.expected_abs, expected_abs_exact),
    "log_expected_exp": (criteria.expected_exp, lambda *x: mpmath.log(expected_exp_exact(*x))),
    "log_snr_exp": (criteria.snr_exp, lambda *x: mpmath.log(snr_exp_exact(*x))),
}


def exact_values(exact: Exact, mean: Tensor, std: Tensor, rate: float) -> list[mpmath.mpf]:
    # 80 digits: Var e^{λ|θ|} is 1e-28 of its terms at λσ = 1e-14.
    with mpmath.workdps(80):
        return [
            exact(abs(mpmath.mpf(m)), mpmath.mpf(s), mpmath.mpf(rate))
            for m, s in zip(mean.tolist(), std.tolist(), strict=True)
        ]


def assert_close(got: Tensor, exact: list[mpmath.mpf]) -> None:
    for value, reference in zip(got.tolist(), exact, strict=True):
        if abs(reference) > FLOAT32_MAX:
            assert value == math.inf
        elif 0 < abs(reference) < torch.finfo(torch.float32).tiny:
            assert abs(value) <= torch.finfo(torch.float32).tiny
        else:
            assert abs(value - reference) <= TOLERANCE * abs(reference), (value, float(reference))


@pytest.mark.parametrize("name", VALUES)
def test_value_matches_mpmath(name: str) -> None:
    value, exact = VALUES[name]
    for options in [{"rate": rate} for rate in RATES] if name.endswith("exp") else [{}]:
        rate = options.get("rate", 1.0)
        for mean, std in (grid(150, seed=1), crossover_grid(100, seed=2)):
            chosen = rate * mean.abs() <= 1e4
            got = value(WeightStats(mean[chosen], std[chosen]), **options)
            assert got.dtype == torch.float32
            assert_close(got, exact_values(exact, mean[chosen], std[chosen], rate))


def test_float64_values_are_better_than_float32_rounding() -> None:
    mean, std = (x.double() for x in crossover_grid(200, seed=3))
    for name in ("expected_abs", "log_expected_exp", "log_snr_exp"):
        value, exact = VALUES[name]
        for got, reference in zip(
            value(WeightStats(mean, std)).tolist(), exact_values(exact, mean, std, 1.0), strict=True
        ):
            assert abs(got - reference) <= 1e-8 * abs(reference)


@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.7), (-0.4, 0.5), (1.2, 0.4)])
def test_value_matches_monte_carlo(name: str, mean: float, std: float) -> None:
    generator = torch.Generator().manual_seed(4)
    draws = (mean + std * torch.randn(100, 10_000, generator=generator, dtype=torch.float64)).abs()
    draws = draws.exp() if name.endswith("exp") else draws
    estimates = draws.mean(1) / draws.std(1) if "snr" in name else draws.mean(1)
    estimates = estimates.log() if name.startswith("log") else estimates
    standard_error = estimates.std().item() / math.sqrt(len(estimates))
    got = VALUES[name][0](WeightStats(torch.tensor(mean), torch.tensor(std))).item()
    assert abs(got - estimates.mean().item()) < 4 * standard_error


def order_is_exact(score: Tensor, exact: list[Fraction] | list[mpmath.mpf]) -> bool:
    """The scores increase, and strictly, along the exact order."""
    order = sorted(range(len(exact)), key=exact.__getitem__)
    return bool((score[order].diff() > 0).all())


@pytest.mark.parametrize("ratio", [(1e-12, 0.03), (1e-6, 1e6), (1e20, 1e40)])
def test_snr_and_snr_abs_are_one_exact_order(ratio: tuple[float, float]) -> None:
    mean, std = grid(500, seed=5, ratio=ratio)
    chosen = (mean != 0) & mean.isfinite()
    mean, std = mean[chosen], std[chosen]
    stats = WeightStats(mean, std)
    exact = [Fraction(abs(m)) / Fraction(s) for m, s in zip(mean.tolist(), std.tolist(), strict=True)]
    assert len(exact) > 250
    assert torch.equal(criteria.snr(stats), criteria.snr_abs(stats))
    assert order_is_exact(criteria.snr_abs(stats), exact)


def test_snr_abs_score_has_the_order_of_its_value() -> None:
    mean, std = grid(150, seed=6, ratio=(1e-6, 0.03))
    mean, std = mean[mean != 0], std[mean != 0]
    assert order_is_exact(criteria.snr_abs(WeightStats(mean, std)), exact_values(snr_abs_exact, mean, std, 1.0))


def test_snr_at_the_ends_of_float32() -> None:
    tiny, huge = 2.0**-149, FLOAT32_MAX  # the smallest subnormal and the largest number
    stats = WeightStats(torch.tensor([0.0, tiny, 2 * tiny, 1.0, -huge]), torch.tensor([1.0, huge, huge, 1.0, tiny]))
    score = criteria.snr(stats)
    assert score[0] == 0
    assert score[1:].isfinite().all()
    assert (score.diff() > 0).all()


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("name", ["expected_exp", "snr_exp"])
def test_exp_scores_have_the_exact_order(name: str, rate: float) -> None:
    generator = torch.Generator().manual_seed(7)
    n = 60
    small = 1e-9 * torch.rand(n, generator=generator), 1e-10 * torch.rand(n, generator=generator)
    large = 1e4 / rate * torch.rand(n, generator=generator), 0.1 + torch.rand(n, generator=generator)
    mean, std = (torch.cat(pair) for pair in zip(small, large, strict=True))
    exact = exact_values(VALUES[f"log_{name}"][1], mean, std, rate)
    score = partial(getattr(criteria, name), rate=rate)(WeightStats(mean, std))
    # What float32 cannot tell apart may tie; nothing may be the wrong way round.
    order = sorted(range(len(exact)), key=exact.__getitem__)
    assert (score[order].diff() >= 0).all()
    assert score[:n].unique().numel() == n


def test_reference_orders_close_to_chance_near_zero() -> None:
    """With |mean|/std < 0.01 a pair is in the right order half of the time; 0.004 is the standard error."""
    generator = torch.Generator().manual_seed(8)
    n = 40_000
    std = 1e-4 + 1e-2 * torch.rand(n, generator=generator)
    stats = WeightStats(0.01 * torch.rand(n, generator=generator) * std, std)

    def agreement(score: Tensor) -> float:
        first, second = (stats.mean / std).double().view(2, -1)
        score_first, score_second = score.view(2, -1)
        told_apart = score_first != score_second
        right = (first > second) == (score_first > score_second)
        return float(right[told_apart].double().mean())

    assert agreement(criteria.snr_abs(stats)) == 1
    unfairness = 0.02  # round-off is not quite independent of the mean
    assert abs(agreement(criteria.snr_abs_reference(stats)) - 0.5) < unfairness + 4 * 0.004
    assert criteria.snr_abs_reference(stats).unique().numel() < 30


def test_reference_is_right_where_float32_allows() -> None:
    mean, std = torch.linspace(0.5, 50, 100), torch.full((100,), 0.3)
    got = criteria.snr_abs_reference(WeightStats(mean, std))
    exact = torch.tensor([float(value) for value in exact_values(snr_abs_exact, mean, std, 1.0)])
    torch.testing.assert_close(got, exact, rtol=3e-3, atol=0)
    assert criteria.snr_abs_reference(WeightStats(torch.zeros(1), torch.zeros(1))).item() == 0


@pytest.mark.parametrize("name", REMOVAL)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_scores_are_never_nan(name: str, dtype: torch.dtype) -> None:
    levels = torch.tensor([0.0, 1e-45, 1e-12, 1e-3, 1.0, 1e3]).to(dtype)
    mean, std = torch.cartesian_prod(torch.cat([-levels, levels]), levels).T
    score = REMOVAL[name](WeightStats(mean, std))
    assert score.shape == mean.shape
    assert not score.isnan().any()
    assert score[std > 0].isfinite().all()
    assert torch.equal(score, REMOVAL[name](WeightStats(-mean, std)))


STATS = WeightStats(torch.tensor([0.0, -0.5, 2.0]), torch.tensor([1.0, 2.0, 0.5]), torch.tensor([0.25, -3.0, 0.0]))
KNOWN = {  # scores of STATS: every criterion has a row here
    "magnitude": [0.0, 0.5, 2.0],
    "snr": [0.0, 0.25, 4.0],
    "expected_abs": [0.79788456, 1.64537879, 2.00000715],
    "snr_abs": [0.0, 0.25, 4.0],
    "expected_exp": [1.02039340, 2.79335448, 2.12500086],
    "snr_exp": [0.06597445, -1.75538126, 0.62934930],
    "sampled_gradient": [0.25, 3.0, 0.0],
    "mean_gradient": [0.25, 3.0, 0.0],
    "multi_sample_gradient": [0.25, 3.0, 0.0],
    "random": [0.49625659, 0.76822180, 0.08847743],  # with seed 0
}


@pytest.mark.parametrize("name", [*REMOVAL, *ADDITION])
def test_every_criterion_has_a_row_of_known_values(name: str) -> None:
    assert name in KNOWN, f"add a row for {name!r} to KNOWN: its scores of STATS, computed by hand or by mpmath"
    torch.manual_seed(0)
    score = {**REMOVAL, **ADDITION}[name](STATS)
    torch.testing.assert_close(score.double(), torch.tensor(KNOWN[name], dtype=torch.float64), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", REMOVAL)
def test_an_entrywise_criterion_scores_an_entry_the_same_in_any_company(name: str) -> None:
    mean, std = grid(40, seed=9)
    alone = [REMOVAL[name](WeightStats(mean[i : i + 1], std[i : i + 1])) for i in range(len(mean))]
    is_entrywise = torch.equal(torch.cat(alone), REMOVAL[name](WeightStats(mean, std)))
    assert is_entrywise or REMOVAL[name] not in criteria.ENTRYWISE


def test_bfloat16_scores_keep_the_order_of_their_inputs() -> None:
    mean = torch.arange(128, 256).to(torch.bfloat16)  # neighbours in bfloat16: their logs tie there
    std = torch.full_like(mean, 3.0)
    stats = WeightStats(mean, std)
    for name, criterion in REMOVAL.items():
        if name != "snr_exp":  # which ignores a mean so far from 0
            assert (criterion(stats).diff() > 0).all(), name


def test_point_mass_values() -> None:
    stats = WeightStats(torch.tensor([0.0, -2.0]), torch.zeros(2))
    assert criteria.expected_abs(stats).tolist() == [0, 2]
    assert criteria.expected_exp(stats).tolist() == [0, 2]


@pytest.mark.parametrize("name", REMOVAL)
def test_without_std_a_criterion_scores_by_the_mean_or_names_the_fix(name: str) -> None:
    """One that reads σ must not score without it; one that gives the same scores for any σ needs none."""
    mean = torch.tensor([0.5, -1.0, 2.0])
    narrow, wide = (REMOVAL[name](WeightStats(mean, torch.full_like(mean, std))) for std in (0.1, 3.0))
    if torch.equal(narrow, wide):
        assert torch.equal(REMOVAL[name](WeightStats(mean)), narrow)
    else:
        with pytest.raises(ValueError, match=f"{name} needs a std; use removal='magnitude'"):
            REMOVAL[name](WeightStats(mean))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.nan])
def test_rate_must_be_positive(rate: float) -> None:
    for criterion in (criteria.expected_exp, criteria.snr_exp):
        with pytest.raises(ValueError, match="rate"):
            criterion(WeightStats(torch.ones(1), torch.ones(1)), rate=rate)


def test_gradient_criteria_say_what_they_want() -> None:
    stats = WeightStats(torch.zeros(1), grad=torch.tensor([-3.0, 1.0]))
    for criterion in (criteria.sampled_gradient, criteria.mean_gradient, criteria.multi_sample_gradient(4)):
        assert criterion(stats).tolist() == [3, 1]
    assert criteria.mean_gradient.noise_free
    assert not criteria.sampled_gradient.noise_free
    assert criteria.multi_sample_gradient(4) == GradientCriterion("multi_sample_gradient", n_draws=4)
    with pytest.raises(ValueError, match="sampled_gradient needs stats"):
        criteria.sampled_gradient(WeightStats(torch.zeros(1)))


@pytest.mark.parametrize("n_draws", [0, -1, 2.0, True, "3", WeightStats(torch.zeros(1))])
def test_number_of_draws_is_checked(n_draws: object) -> None:
    with pytest.raises(ValueError, match="int >= 1"):
        criteria.multi_sample_gradient(n_draws)  # type: ignore[arg-type]


def test_random_follows_its_generator() -> None:
    stats = WeightStats(torch.zeros(3), grad=torch.zeros(7))
    first, second = (criteria.random(stats, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(first, second)
    assert first.shape == (7,)
    assert criteria.random(stats._replace(grad=None)).shape == (3,)


@pytest.mark.parametrize("known", [REMOVAL, ADDITION], ids=["removal", "addition"])
def test_lookup(known: dict[str, Callable[..., object]]) -> None:
    find = partial(lookup, "criterion", known=known)
    for name, criterion in known.items():
        assert find(name) is criterion
    own = partial(criteria.expected_exp, rate=2.0)
    assert find(own) is own
    with pytest.raises(ValueError, match="criterion 'nothing'. Known: .*" + ".*".join(known)):
        find("nothing")
    nearest = next(iter(known))
    with pytest.raises(ValueError, match=f"did you mean '{nearest}'"):
        find(nearest[:-2] + nearest[-1])
