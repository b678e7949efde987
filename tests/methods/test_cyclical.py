"""csgld and csghmc: at temperature 1 they draw from a known posterior, with the noise and snapshots of the paper."""

import math

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.likelihoods import Gaussian
from gossamer.models import mlp
from gossamer.optim import SGHMC, SGLD
from gossamer.train import Training, fit
from gossamer.types import Task

SAMPLERS = {"csgld": SGLD, "csghmc": SGHMC}
N, P, CHAINS, NOISE, PRIOR = 80, 6, 1500, 0.5, 0.7


@pytest.fixture(scope="module")
def regressions():
    """One linear regression for each output, all on the same inputs: independent chains in one training."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, P, generator=generator)
    x[:, 1] += 0.7 * x[:, 0]
    y = (x[:, :1] - x[:, 1:2]).expand(N, CHAINS).contiguous()
    return Task((x, y), (x, y), (x, y), Gaussian(noise_std=NOISE), n_outputs=CHAINS)


@pytest.mark.parametrize("temperature", [1.0, 0.1])
@pytest.mark.parametrize("name", SAMPLERS)
def test_the_draws_are_those_of_the_posterior_at_their_temperature(regressions, name, temperature):
    x, y = (part.double() for part in regressions.train)
    precision = x.T @ x / NOISE**2 + torch.eye(P, dtype=torch.float64) / PRIOR**2
    mean = torch.linalg.solve(precision, x.T @ y[:, 0] / NOISE**2)
    steps = 600  # Σ l λ > 10 for the flattest direction, so that each chain forgets where it began
    options = {"lr": 0.05, "cycles": 2, "per_cycle": 1, "hot": 1.0, "weight_decay": 1 / (N * PRIOR**2)}
    assert 0.025 * steps / 2 * torch.linalg.eigvalsh(precision)[0] / N > 10
    torch.manual_seed(0)
    method = methods.build(name, regressions, steps, temperature=temperature, **options)
    posterior = fit(method, nn.Linear(P, CHAINS, bias=False), regressions, steps, batch_size=N)
    for network in posterior.draws(2):
        z = (network.weight.detach().double() - mean) @ torch.linalg.cholesky(precision)  # T ξ² with independent ξ
        z /= math.sqrt(temperature)
        assert z.mean(0).abs().max() < 4.5 / CHAINS**0.5
        assert (z.square().mean(0) - 1).abs().max() < 4.5 * (2 / CHAINS) ** 0.5
        correlations = (z.T @ z / CHAINS)[~torch.eye(P, dtype=torch.bool)]
        assert correlations.abs().max() < 4.5 / CHAINS**0.5


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_defaults_are_the_papers(name):
    """Four cycles of 50 epochs from a rate of 0.5, noise in the last five of each, networks of the last three."""
    task, steps = digits.load(), 2000
    method = methods.build(name, task, steps)
    assert [method.lr(step) for step in (0, 250, 500)] == pytest.approx([0.5, 0.25, 0.5])
    assert sorted(method.collector().at) == [500 * c + 10 * (48 + i) for c in range(4) for i in range(3)]
    group = method.optimizer(nn.Linear(2, 2)).param_groups[0]
    assert group["weight_decay"] == 5e-4
    assert group.get("momentum") == {"csgld": None, "csghmc": 0.1}[name]


@pytest.mark.parametrize("name", SAMPLERS)
def test_noise_only_at_the_end_of_a_cycle(name):
    task = digits.load()
    method = methods.build(name, task, 40, cycles=2, hot=0.2, temperature=0.3)
    training = Training(method, mlp(64, (4,)), task, 40)
    seen = []
    for _ in training.run():
        seen.append(training.optimizer.param_groups[0]["temperature"])
    assert seen == ([0.0] * 16 + [0.3] * 4) * 2
    assert isinstance(training.inner_optimizer, SAMPLERS[name])
