"""Sparse variational dropout: its divergence, and what it leaves."""

import mpmath
import pytest
import torch
from scipy.optimize import minimize
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.likelihoods import Gaussian
from gossamer.models import conv_net, mlp
from gossamer.priors import log_uniform_kl
from gossamer.train import fit
from gossamer.types import Task


def exact_kl(log_alpha):
    """E log|w| under N(1, α) minus ½ log α, by quadrature, with the constant that makes it 0 as α → ∞."""
    std = mpmath.exp(log_alpha / 2)
    places = sorted([-mpmath.inf, -1 / std, 0, mpmath.inf])  # the integrand is infinite where w = 0
    expected = mpmath.quad(lambda e: mpmath.npdf(e) * mpmath.log(abs(1 + std * e)), places)
    return float(expected - log_alpha / 2 + (mpmath.euler + mpmath.log(2)) / 2)


@pytest.mark.parametrize("log_alpha", range(-8, 9))
def test_the_divergence_is_the_integral(log_alpha):
    """The paper's approximation is off by up to 0.01 nats around α = 1; the exact one has no closed form."""
    kl = log_uniform_kl(torch.tensor(-2.0, dtype=torch.float64), 2 * torch.tensor(log_alpha / 2).double().exp())
    assert float(kl) == pytest.approx(exact_kl(log_alpha), abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_divergence_has_finite_gradients_everywhere(dtype):
    mean = torch.tensor([0.0, 1e-30, -1e-15, 1e-6, 1.0, 1e10], dtype=dtype).repeat_interleave(5).requires_grad_()
    std = torch.tensor([1e-30, 1e-10, 1.0, 1e5, 1e10], dtype=dtype).repeat(6).requires_grad_()
    kl = log_uniform_kl(mean, std)
    assert torch.isfinite(kl).all()
    kl.sum().backward()
    assert torch.isfinite(mean.grad).all()
    assert torch.isfinite(std.grad).all()


def test_weights_of_an_orthogonal_regression_are_where_one_dimension_puts_them():
    """With XᵀX = N·I each weight minimises ½((θ - m)² + σ²)/s² + KL(σ²/θ²) on its own, where s² = noise²/N."""
    noise, ratio = 0.3, torch.tensor([0.0, 0.1, 0.3, 0.5, 4.0, 6.0, 12.0, 40.0])  # of m and s
    x = torch.linalg.qr(torch.randn(200, 8, generator=torch.Generator().manual_seed(0)))[0] * 200**0.5
    s = noise / 200**0.5
    y = x @ (ratio * s).unsqueeze(1)
    task = Task((x, y), (x, y), (x, y), Gaussian(noise_std=noise), n_outputs=1)
    posterior = fit(methods.build("vd", task, 1500, kl_weight=1.0), nn.Linear(8, 1, False), task, 1500, batch_size=200)
    assert posterior.model.support.position.tolist() == [4, 5, 6, 7]
    for mean, m in zip(posterior.model.mean.tolist(), ratio[4:].tolist(), strict=True):

        def objective(point, m=m):
            theta, log_std = torch.tensor(point)
            return float(0.5 * ((theta - m) ** 2 + (2 * log_std).exp()) + log_uniform_kl(theta, log_std.exp()))

        theta = minimize(objective, [m, 0.0], method="Nelder-Mead").x[0]
        assert mean / s == pytest.approx(theta, abs=0.2)  # in posterior stds: the last steps are still noisy


@pytest.mark.parametrize("network", [lambda: mlp(64, (64, 64)), conv_net])
def test_the_rest_is_stored_alone_and_compacts(network):
    task = digits.load()
    torch.manual_seed(0)
    model = network()
    dense = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    posterior = fit(methods.build("vd", task, 150), model, task, 150)
    active = gossamer.active_parameters(posterior.model)
    assert active < 0.5 * dense
    assert posterior.n_bytes < 12 * active + 4 * 1000  # a mean, a raw std, a position; biases
    means = gossamer.draw(posterior.model, at_mean=True).eval()
    small = gossamer.compact(means)
    before, after = small.compaction.n_weights
    assert after < before
    x = task.test[0][:50]
    torch.testing.assert_close(small(x), means(x), rtol=1e-4, atol=1e-4)
