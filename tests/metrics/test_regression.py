"""Metrics of numbers and intervals: closed forms against integrals and samples."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats

from gossamer import metrics


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def integral(means: list[float], stds: list[float], y: float) -> float:
    """∫ (F(t) − 1[t ≥ y])² dt by quadrature."""

    def distribution(t: float) -> float:
        return float(stats.norm.cdf(t, means, stds).mean())

    reach = max(map(abs, [*means, y])) + 10 * max(stds)
    below = integrate.quad(lambda t: distribution(t) ** 2, -reach, y, limit=200)[0]
    above = integrate.quad(lambda t: (1 - distribution(t)) ** 2, y, reach, limit=200)[0]
    return below + above


@pytest.mark.parametrize("y", [-4.0, 0.3, 2.5])
@pytest.mark.parametrize(("means", "stds"), [([0.0], [1.0]), ([-1.0, 2.0], [0.5, 1.5]), ([0.0, 0.1, 3.0], [1.0] * 3)])
def test_crps_is_its_integral(means: list[float], stds: list[float], y: float):
    columns = [torch.tensor(values, dtype=torch.float64)[:, None] for values in (means, stds)]
    value = metrics.gaussian_mixture_crps(*columns, torch.tensor([y], dtype=torch.float64))
    assert value == pytest.approx(integral(means, stds, y), abs=1e-7)  # quad's own tolerance is 1.5e-8


@given(st.floats(-5, 5), st.floats(0.01, 10), st.floats(-5, 5))
@settings(max_examples=50, deadline=None)
def test_crps_of_one_gaussian(mean: float, std: float, y: float):
    z = (y - mean) / std
    expected = std * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    columns = (torch.tensor([[value]], dtype=torch.float64) for value in (mean, std))
    assert metrics.gaussian_mixture_crps(*columns, torch.tensor([y], dtype=torch.float64)) == pytest.approx(
        expected, abs=1e-12
    )


def test_crps_without_noise_is_that_of_an_ensemble():
    means, y = normal(6, 20), torch.zeros(20)
    pairs = (means[:, None] - means[None]).abs().mean()
    expected = float(means.abs().mean() - pairs / 2)
    assert metrics.gaussian_mixture_crps(means, torch.zeros(6, 20), y) == pytest.approx(expected, rel=1e-12)
    assert metrics.gaussian_mixture_crps(torch.ones(3, 2), torch.zeros(3, 2), torch.ones(2)) == 0
    # One number: the absolute error.
    assert metrics.gaussian_mixture_crps(means[:1], torch.zeros(1, 20), y) == pytest.approx(
        float(means[0].abs().mean())
    )


def test_crps_of_equal_components_is_that_of_one():
    mean, std, y = normal(3, 7, 2)
    one = metrics.gaussian_mixture_crps(mean[None], std.abs()[None], y)
    assert metrics.gaussian_mixture_crps(mean.expand(5, 7, 2), std.abs().expand(5, 7, 2), y) == pytest.approx(one)


def test_crps_grows_with_the_units():
    means, stds, y = normal(4, 9), normal(4, 9).abs().flip(1), normal(9)
    value = metrics.gaussian_mixture_crps(means, stds, y)
    assert metrics.gaussian_mixture_crps(3 * means, 3 * stds, 3 * y) == pytest.approx(3 * value, rel=1e-12)
    assert metrics.gaussian_mixture_crps(means + 5, stds, y + 5) == pytest.approx(value, rel=1e-9)


def test_crps_takes_one_noise_for_all_and_targets_with_their_dimension():
    means, y = normal(4, 9, 1), normal(9)
    whole = metrics.gaussian_mixture_crps(means, torch.full((4, 9, 1), 0.5), y)
    assert metrics.gaussian_mixture_crps(means, torch.tensor(0.5), y[:, None]) == whole


def test_crps_refuses_negative_stds_and_other_targets():
    with pytest.raises(ValueError, match=r"stds must not be negative; got -1\.0"):
        metrics.gaussian_mixture_crps(torch.zeros(2, 1), -torch.ones(2, 1), torch.zeros(1))
    with pytest.raises(RuntimeError, match="shape"):
        metrics.gaussian_mixture_crps(torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(4))


def test_intervals_of_a_gaussian_cover_what_they_say():
    """4 standard errors of a share of 0.9 among 20 000."""
    y = normal(20_000)
    half = torch.full_like(y, float(stats.norm.ppf(0.95)))
    assert metrics.coverage(-half, half, y) == pytest.approx(0.9, abs=4 * math.sqrt(0.9 * 0.1 / 20_000))
    assert metrics.mean_width(-half, half) == pytest.approx(2 * float(half[0]))


def test_interval_edges():
    low, high, y = torch.zeros(3), torch.ones(3), torch.tensor([0.0, 1.0, 0.5])
    assert metrics.coverage(low, high, y) == 1
    assert metrics.coverage(high, low, y) == 0
    assert metrics.coverage(low[:1], high[:1], y[:1]) == 1
    assert metrics.mean_width(low, low) == 0
    assert metrics.mean_width(low[:, None], high) == 1  # never broadcast to (3, 3)


def test_rmse_of_one_and_of_columns():
    assert metrics.rmse(torch.tensor([3.0]), torch.tensor([1.0])) == 2
    assert metrics.rmse(torch.zeros(4, 1), torch.arange(4.0)) == pytest.approx(math.sqrt(14 / 4))
