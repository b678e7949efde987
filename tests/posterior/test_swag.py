"""SWAG: moments of a path against those of NumPy, and draws against the covariance that they are meant to have."""

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer.posterior import SingleNetwork, Swag

N, SIZE = 30, 4


@pytest.fixture(scope="module")
def path():
    """Parameters along a path: correlated, and far from zero compared with their spread."""
    generator = np.random.default_rng(0)
    return 3 + 0.01 * generator.normal(size=(N, SIZE)) @ generator.normal(size=(SIZE, SIZE))


def collected(path, **options):
    network, collector = nn.Linear(SIZE - 1, 1).double(), Swag(begin=1, every=1, **options)
    for step, weights in enumerate(torch.from_numpy(path), 1):
        nn.utils.vector_to_parameters(weights, network.parameters())
        collector.observe(network, step)
    return collector, network


def test_mean_and_variances_are_those_of_the_path(path):
    posterior = (lambda collector, network: collector.posterior(network))(*collected(path))
    np.testing.assert_allclose(posterior.mean, path.mean(0), rtol=1e-13)
    np.testing.assert_allclose(posterior.var, path.var(0), rtol=1e-9)
    assert torch.equal(nn.utils.parameters_to_vector(posterior.model.parameters()), posterior.mean)


def test_the_deviations_hold_the_sample_covariance(path):
    """Welford: deviations d from the mean at their time satisfy Σ n/(n - 1) d dᵀ = (N - 1) · sample covariance."""
    deviations = collected(path, rank=N)[0].deviations.numpy()
    n = np.arange(1, N + 1)
    weighted = deviations[1:] * np.sqrt(n[1:] / (n[1:] - 1))[:, None]
    np.testing.assert_allclose(weighted.T @ weighted / (N - 1), np.cov(path.T), rtol=1e-9)
    # What is drawn has no such weights, as in the paper; the last ones are 1 in all but name.
    assert not deviations[0].any()


def test_the_last_deviations_are_kept(path):
    few, all_of_them = (collected(path, rank=rank)[0].deviations for rank in (5, N))
    assert torch.equal(few, all_of_them[-5:])


@pytest.mark.parametrize("scale", [0.5, 1.0])
def test_draws_have_the_mean_and_the_covariance(path, scale):
    collector, network = collected(path, rank=3, scale=scale, generator=torch.Generator().manual_seed(0))
    posterior, n = collector.posterior(network), 40_000
    drawn = torch.stack([posterior.sample() for _ in range(n)])
    d = posterior.deviations
    expected = scale * (posterior.var.diag() + d.T @ d / 2)
    std = expected.diag().sqrt()
    assert bool(((drawn.mean(0) - posterior.mean).abs() < 4.5 * std / n**0.5).all())
    # Var of a sample covariance of Gaussians: (Σii Σjj + Σij²)/n.
    error = ((std[:, None] * std).square() + expected.square()).div(n).sqrt()
    assert bool(((drawn.T.cov() - expected).abs() < 4.5 * error).all())


def test_draws_are_networks_with_these_parameters(path):
    collector, network = collected(path)
    posterior = collector.posterior(network)
    torch.manual_seed(0)
    weights = [nn.utils.parameters_to_vector(drawn.parameters()).clone() for drawn in posterior.draws(2)]
    torch.manual_seed(0)
    assert torch.equal(weights[0], posterior.sample())
    assert torch.equal(weights[1], posterior.sample())


def test_before_its_first_network_it_is_the_network():
    assert isinstance(Swag(begin=5, every=1).posterior(nn.Linear(2, 2)), SingleNetwork)


def test_a_moving_network_is_refused():
    model = gossamer.sparsify(nn.Linear(10, 10), density=0.2)
    with pytest.raises(ValueError, match="SWAG takes plain networks; of a converted one, InAverage takes the mean"):
        Swag(begin=1, every=1).observe(model, 1)


@pytest.mark.parametrize("options", [{"rank": 1}, {"scale": -1.0}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match="rank must be at least 2 and scale at least 0"):
        Swag(begin=1, every=1, **options)
