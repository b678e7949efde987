"""Gradual magnitude pruning: the cubic, step by step, and what is left of five weights."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits, two_moons
from gossamer.layers import sparse_weights
from gossamer.models import mlp
from gossamer.sparsity import Prune
from gossamer.train import Training


def test_the_density_follows_the_cubic():
    """After step t: s + (1 - s) (1 - (t - t₀)/(t₁ - t₀))³ of all weights, from t₀ = 20 to t₁ = 80 of 100 steps."""
    task, steps, density = digits.load(), 100, 0.1
    method = methods.build("magnitude", task, steps, density=density, warmup=0.2, until=0.8, update_period=5)
    training = Training(method, mlp(64, (32,)), task, steps)
    weights, total = sparse_weights(training.model), 64 * 32 + 32 * 10
    for _ in training.run():
        checked = min(training.step - training.step % 5, 80)  # the last check
        left = 1.0 if checked <= 20 else (1 - (checked - 20) / 60) ** 3
        expected = round((density + (1 - density) * left) * total)
        assert sum(len(weight.mean) for weight in weights.values()) == expected
    assert gossamer.active_parameters(training.posterior().model) == round(density * total)


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_the_largest_stay(scope):
    layer = nn.Sequential(nn.Linear(5, 1, bias=False))
    layer[0].weight.data = torch.tensor([[0.1, -3.0, 0.3, 0.2, -1.0]])
    method = methods.build("magnitude", two_moons.load(), 10, density=0.4, update_period=1, scope=scope)
    model = method.prepare(layer)
    optimizer = method.optimizer(model)
    (prune,) = method.rules(model, optimizer)
    assert isinstance(prune, Prune)
    for _ in range(10):
        prune.step()
    assert model[0].support.position.tolist() == [1, 4]
    assert model[0].mean.tolist() == [-3.0, -1.0]
