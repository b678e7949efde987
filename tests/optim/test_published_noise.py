"""What the published noise samples instead: documented here, so that nobody takes ``mode="reference"`` for a posterior.

On a quadratic of curvature λ, with v ← β1 v - l β2 λ w + n ε and w ← w + τ v, w is an autoregression of order two with
variance (τ n)² (1 + β1) / ((1 - β1) a (2 (1 + β1) - a)), a = l τ β2 λ. With n = √(2 + 2 β1²) k l^¾ and small a that is
τ (1 + β1²) k² √l / ((1 - β1) β2 λ), where the posterior has 1/(N λ).
"""

import math

import pytest
import torch

from gossamer.optim import SGHMC, CVAdam

CHAINS, STEPS = 20_000, 200
LIMIT = 4.5


def stationary_variance(curvature, dt, tau, k, beta1, beta2=1.0):
    a = dt**2 * tau * beta2 * curvature
    n = math.sqrt(2 + 2 * beta1**2) * k * dt**1.5
    return (tau * n) ** 2 * (1 + beta1) / ((1 - beta1) * a * (2 * (1 + beta1) - a))


def variance_of(sampler, w, curvature, steps=STEPS):
    for _ in range(steps):
        w.grad = curvature * w.detach()
        sampler.step()
    return float(w.detach().var())


def assert_variance(found, expected):
    """The variance of independent Gaussian chains has the standard error √(2/chains) of itself."""
    assert abs(found / expected - 1) < LIMIT * math.sqrt(2 / CHAINS)


@pytest.mark.parametrize(
    ("curvature", "dt", "tau", "k", "beta1"),
    [
        (1.0, 0.3, 0.5, 1.0, 0.1),
        (1.0, 0.3, 0.9, 1.0, 0.1),  # a larger τ: warmer
        (1.0, 0.6, 0.5, 1.0, 0.1),  # a larger step: warmer
        (1.0, 0.3, 0.5, 1.0, 0.8),
        (4.0, 0.3, 0.5, 0.2, 0.1),
    ],
)
def test_the_variance_is_the_formula_and_not_the_posterior(curvature, dt, tau, k, beta1):
    torch.manual_seed(0)
    n_data = k**-2  # for which the paper says that k gives the posterior
    w = torch.zeros(CHAINS, dtype=torch.float64, requires_grad=True)
    settings = {"temperature": k, "momentum": beta1, "local_scale": tau, "scale_lr": 0.0, "mode": "reference"}
    found = variance_of(SGHMC([w], dt**2, n_data=n_data, **settings), w, curvature)
    assert_variance(found, stationary_variance(curvature, dt, tau, k, beta1))
    documented = tau * (1 + beta1**2) * k**2 * dt / ((1 - beta1) * curvature)
    assert documented == pytest.approx(stationary_variance(curvature, dt, tau, k, beta1), rel=0.1)
    posterior = 1 / (n_data * curvature)
    assert abs(found / posterior - 1) > 10 * math.sqrt(2 / CHAINS)
    # The default samples the posterior with the same τ, step and momentum.
    v = torch.zeros(CHAINS, dtype=torch.float64, requires_grad=True)
    settings |= {"temperature": 1.0, "mode": "default"}
    right = variance_of(SGHMC([v], dt**2, n_data=n_data, **settings), v, curvature)
    a = dt**2 * tau * curvature
    assert_variance(right, posterior / (1 - a / (2 * (1 + beta1))))


def test_images_are_sampled_at_almost_no_temperature():
    """With k = 1/N, as released for CIFAR, N k² τ (1 + β1²) √l / (1 - β1) is 1e-5 at the highest rate of a cycle."""
    n_data, lr = 50_000, 1.0
    temperature = n_data * stationary_variance(1e-3, math.sqrt(lr), 0.5, 1 / n_data, 0.1) * 1e-3
    assert temperature == pytest.approx(1.12e-5, rel=0.01)


def test_algorithm_1_is_not_algorithm_2():
    """The noise of Algorithm 1 is a difference and adds up to nothing: w = μ + ατε has little more than (ατ)²."""
    torch.manual_seed(0)
    dt, beta1 = 0.3, 0.1
    w = torch.zeros(CHAINS, dtype=torch.float64, requires_grad=True)
    optimizer = CVAdam([w], dt**2, n_data=1, temperature=1.0, scale_lr=0.0, weight_decay=0.0, mode="reference")
    for _ in range(STEPS):
        with optimizer.sampled():
            w.grad = w.detach().clone()
        optimizer.step()
    with optimizer.sampled():
        found = float(w.detach().var())
    assert 1 < found / (dt**1.5 * 0.5) ** 2 < 1.05
    assert stationary_variance(1.0, dt, 0.5, 1.0, beta1) / found == pytest.approx(25, abs=1)
