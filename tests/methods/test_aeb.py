"""AEB: its adaptive quantities and its sampler against a NumPy transcription, its budget, and what it keeps."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.methods.aeb import EmpiricalBayes, Prior, SecondStage, _sparse, _strength
from gossamer.models import conv_net, mlp
from gossamer.optim import SGHMC
from gossamer.train import Training
from gossamer.types import Step

N, LR, MOMENTUM, V0, V1 = 40, 0.02, 0.9, 0.2, 0.01


@pytest.fixture(scope="module")
def task():
    return digits.load()


class Transcription:
    """The released ``posterior_cnn.py`` and ``sgmcmc.py`` at temperature 0, in its order, for linear layers."""

    def __init__(self, layers, clock, learns):
        self.beta = [layer.copy() for layer in layers]
        self.velocity = [np.zeros_like(layer) for layer in layers]
        self.delta, self.s, self.clock, self.learns = [0.5] * len(layers), 1.0, clock, learns
        self.rho = [self.membership(i) for i in range(len(layers))]  # theirs is 0.5
        self.kappa0, self.kappa1 = ([np.full_like(b, 5e-4) for b in self.beta] for _ in range(2))

    def membership(self, i):
        a = self.delta[i] * np.exp(-(self.beta[i] ** 2) / (2 * V1)) / math.sqrt(2 * math.pi * V1)
        b = (1 - self.delta[i]) * np.exp(-np.abs(self.beta[i]) / V0) / (2 * V0)
        return a / (a + b)

    def step(self, gradients, k):
        eta = LR / N
        for i, gradient in enumerate(gradients):
            beta = self.beta[i]
            energy = N * gradient + beta * self.kappa1[i] / self.s**2 + np.sign(beta) * self.kappa0[i] / self.s
            self.velocity[i] = MOMENTUM * self.velocity[i] - eta * energy
            self.beta[i] = beta + self.velocity[i]
        self.update_hidden(k)

    def update_hidden(self, k):
        speed = 50_000 / self.clock.length
        w = 0.02 * speed / (1000 + k * speed) ** 0.75
        sparsity = (1 - self.clock.density) * (1 - 0.99 ** (1000 * k / self.clock.length)) / (1 - 0.99**1000)
        total = sum(b.size for b in self.beta)
        lasso = ridge = 0.0
        for i, beta in enumerate(self.beta):
            self.rho[i] = (1 - w) * self.rho[i] + w * self.membership(i)
            self.kappa0[i] = (1 - w) * self.kappa0[i] + w * (1 - self.rho[i]) / V0
            self.kappa1[i] = (1 - w) * self.kappa1[i] + w * self.rho[i] / V1
            if self.learns:
                new = (self.rho[i].sum() + total - 1) / (2 * total + beta.size - 2)
                self.delta[i] = (1 - w) * self.delta[i] + w * new
            n_cut = beta.size - max(1, round(beta.size * (1 - sparsity)))
            beta.flat[np.argsort(np.abs(beta), axis=None)[:n_cut]] = 0
            lasso += (np.abs(beta) * self.kappa0[i]).sum()
            ridge += (beta**2 * self.kappa1[i]).sum()
        if self.learns:
            nu = 1000 * total / 270_000
            ridge = 4 * (total + nu + 2) * (ridge + nu * 1000)
            new_s = (lasso + math.sqrt(lasso**2 + ridge)) / (total + nu + 2) / 2
            self.s = math.sqrt((1 - w) * self.s**2 + w * new_s**2)


@pytest.mark.parametrize("learns", [False, True])
def test_the_adaptive_quantities_follow_a_transcription(learns):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(7, 5, bias=False), nn.Tanh(), nn.Linear(5, 3, bias=False)).double()
    x, y = torch.randn(9, 7).double(), torch.randn(9, 3).double()
    optimizer = SGHMC(model.parameters(), LR, n_data=N, temperature=0.0, momentum=MOMENTUM)
    clock = SecondStage(begin=0, length=60, density=0.4)
    rule = EmpiricalBayes(_sparse(model), optimizer, Prior(V0, V1), clock, 1 / N, learns)
    twin = Transcription([parameter.detach().numpy() for parameter in model.parameters()], clock, learns)
    for k in range(1, 61):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        gradients = [parameter.grad.numpy().copy() for parameter in model.parameters()]
        rule(Step(k, model, optimizer, lambda: torch.zeros(())))
        optimizer.step()
        twin.step(gradients, k)
    for i, (name, own) in enumerate(rule.beliefs.items()):
        np.testing.assert_allclose(rule.weights[name].detach(), twin.beta[i], rtol=1e-9, atol=1e-12)
        for mine, theirs in ((own.normal, twin.rho), (own.kappa0, twin.kappa0), (own.kappa1, twin.kappa1)):
            np.testing.assert_allclose(mine, theirs[i], rtol=1e-9)
        assert float(own.share) == pytest.approx(twin.delta[i], rel=1e-9)
    assert float(rule.scale) == pytest.approx(twin.s, rel=1e-9)
    assert (twin.s != 1) == learns
    assert [int((beta != 0).sum()) for beta in twin.beta] == [14, 6]


def test_at_the_papers_length_the_clock_is_the_papers():
    clock = SecondStage(begin=0, length=50_000, density=0.1)
    assert clock.step_size(1000) == pytest.approx(0.02 / 2000**0.75)
    assert clock.n_kept(5000, 10_000) == pytest.approx(10_000 * (1 - 0.9 * (1 - 0.99**100)), abs=1)
    sums = [sum(SecondStage(0, length, 0.1).step_size(k) for k in range(1, length + 1)) for length in (500, 50_000)]
    assert sums[0] == pytest.approx(sums[1], rel=1e-2)


@pytest.mark.parametrize("network", [lambda: mlp(64, (32, 32)), conv_net])
def test_the_budget_is_exact_and_the_first_convolution_stays_dense(task, network):
    steps = 60
    torch.manual_seed(0)
    training = Training(methods.build("aeb", task, steps, density=0.2), network(), task, steps)
    (rule,) = training.rules
    for _ in training.run():
        for name, weight in rule.weights.items():
            assert int((weight == 0).sum()) == rule.held[name][0]
    for name, weight in rule.weights.items():
        assert int((weight != 0).sum()) == round(0.2 * weight.numel()), name
    convs = [layer for layer in training.model.modules() if isinstance(layer, nn.Conv2d)]
    assert not convs or bool((convs[0].weight != 0).all())
    posterior = training.posterior()
    n_dense = sum(parameter.numel() for parameter in training.model.parameters())
    drawn = list(posterior.draws(5))
    assert len(drawn) == 5
    assert posterior.n_bytes < 0.6 * 5 * 4 * n_dense  # zeros are not stored; a position costs as much as a value
    x = task.test[0][:20]
    small = gossamer.compact(drawn[-1])
    torch.testing.assert_close(small(x), drawn[-1](x), rtol=1e-4, atol=1e-4)


def test_a_zero_returns_when_its_velocity_carries_it_over_a_smaller_weight():
    """Of four weights two stay; from step 16 on a zero has a gradient, under which v is 0.02, 0.038, 0.054."""
    layer = nn.Linear(4, 1, bias=False)
    layer.weight.data = torch.tensor([[0.1, 0.05, 0.01, 0.001]])
    optimizer = SGHMC(layer.parameters(), LR, n_data=N, temperature=0.0, momentum=MOMENTUM)
    rule = EmpiricalBayes(_sparse(layer), optimizer, Prior(V0, V1), SecondStage(0, 30, 0.5), weight=0.0)
    active = []
    for k in range(1, 20):
        layer.weight.grad = torch.tensor([[0.0, 0.0, -1.0 if k > 15 else 0.0, 0.0]])
        rule(Step(k, layer, optimizer, lambda: torch.zeros(())))
        optimizer.step()
        active.append(layer.weight[0].nonzero().flatten().tolist())
    assert active[14:] == [[0, 1], [0, 1], [0, 1], [0, 2], [0, 2]]


def test_errors_name_the_option(task):
    with pytest.raises(ValueError, match="samples are kept in the last tenth"):
        methods.build("aeb", task, 30, samples=9)
    with pytest.raises(ValueError, match="density is the share"):
        methods.build("aeb", task, 300, density=0.0)
    with pytest.raises(ValueError, match="laplace_scale and normal_variance"):
        methods.build("aeb", task, 300, laplace_scale=-1.0)


def test_the_prior_counts_less_where_nothing_normalises():
    """Outputs of a plain network shrink with its weights, those after batch normalisation do not."""
    plain = mlp(64, (16,))
    normed = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    assert _strength(normed, 25_000) == 0.5
    assert _strength(plain, 25_000) == 0.05
    assert _strength(normed, 10**6) == 1.0
