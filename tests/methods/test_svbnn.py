"""SVBNN: the divergence of spike and slab, its draws, and the support of a sparse linear model."""

import math

import mpmath
import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.layers import Support
from gossamer.likelihoods import Gaussian
from gossamer.methods.svbnn import SpikeSlabWeight
from gossamer.models import mlp
from gossamer.train import fit
from gossamer.types import Task


def a_weight(mean, std, inclusion, slab_std=1.5, prior=0.01):
    mean, std, inclusion = (torch.tensor([value], dtype=torch.float64) for value in (mean, std, inclusion))
    weight = SpikeSlabWeight(Support((1, 1)), mean, std, inclusion.logit(), slab_std)
    weight.log_prior = math.log(prior)
    return weight


@pytest.mark.parametrize("inclusion", [0.001, 0.3, 0.99])
@pytest.mark.parametrize(("mean", "std"), [(0.0, 0.01), (-2.0, 0.5), (0.7, 3.0)])
def test_the_divergence_is_the_integral(mean, std, inclusion):
    """Over the atom at zero and the density of the slab."""
    atom = (1 - inclusion) * mpmath.log((1 - inclusion) / 0.99)

    def integrand(w):
        density = inclusion * mpmath.npdf(w, mean, std)
        return density * (mpmath.log(density) - mpmath.log(0.01 * mpmath.npdf(w, 0, 1.5)))

    exact = atom + mpmath.quad(integrand, [mean + k * std for k in (-25, -5, 0, 5, 25)])
    assert a_weight(mean, std, inclusion).kl().item() == pytest.approx(float(exact), rel=1e-9)


def test_moments_of_draws():
    n, weight = 100_000, a_weight(1.0, 0.5, 0.3)
    wide = SpikeSlabWeight(
        Support((1, n)), torch.ones(n), torch.full((n,), 0.5), torch.full((n,), weight.logit.item()), 1.5
    )
    with torch.no_grad():
        draws = wide.sample(torch.Generator().manual_seed(0))
    error = weight.std.item() / n**0.5
    assert float(draws.mean()) == pytest.approx(weight.expected().item(), abs=4.5 * error)
    assert float(draws.var()) == pytest.approx(weight.std.item() ** 2, abs=4.5 * float(draws.square().std()) / n**0.5)
    assert float((draws == 0).float().mean()) == pytest.approx(0.7, abs=4.5 * (0.21 / n) ** 0.5)


def test_the_gradient_is_that_of_the_concrete_distribution():
    weight = a_weight(2.0, 1e-9, 0.4)
    weight.sample(torch.Generator().manual_seed(0)).sum().backward()
    uniform = torch.empty(1, dtype=torch.float64).uniform_(generator=torch.Generator().manual_seed(0))
    soft = ((weight.logit + uniform.logit()) / 0.5).sigmoid().detach()
    torch.testing.assert_close(weight.logit.grad, 2.0 * soft * (1 - soft) / 0.5, rtol=1e-6, atol=0)


def test_it_finds_the_support_of_a_sparse_linear_model():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(300, 40, generator=generator)
    truth = torch.zeros(40)
    truth[[3, 17, 31]] = torch.tensor([1.0, -2.0, 0.7])
    y = (x @ truth + torch.randn(300, generator=generator)).unsqueeze(1)
    task = Task((x, y), (x, y), (x, y), Gaussian(noise_std=1.0), n_outputs=1)
    posterior = fit(methods.build("svbnn", task, 1500, lr=0.02), nn.Linear(40, 1), task, 1500, batch_size=300)
    model = posterior.model
    assert model.support.position.tolist() == [3, 17, 31]
    assert (model.weight.logit.sigmoid() > 0.95).all()
    # Given the support the slab hardly shrinks: least squares, with a standard error of 1/√300 each.
    solution = torch.linalg.lstsq(x[:, [3, 17, 31]], y).solution[:, 0]
    assert (model.mean - solution).abs().max() < 300**-0.5
    torch.testing.assert_close(model.weight.learnt_std(), torch.full((3,), 300**-0.5), rtol=0.25, atol=0)


def test_the_rest_is_stored_alone_and_compacts():
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("svbnn", task, 300, lr=0.01), mlp(64, (64, 64)), task, 300)
    active = gossamer.active_parameters(posterior.model)
    assert active < 0.5 * (64 * 64 * 2 + 640)
    assert posterior.n_bytes < 16 * active + 4 * 200
    means = gossamer.draw(posterior.model, at_mean=True).eval()
    small, x = gossamer.compact(means), task.test[0][:50]
    before, after = small.compaction.n_weights
    assert after < before
    torch.testing.assert_close(small(x), means(x), rtol=1e-4, atol=1e-4)
