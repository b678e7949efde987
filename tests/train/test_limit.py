"""How high a rate the loss of numbers bears: the curvature that is measured, and what follows for a training."""

import copy
import math

import pytest
import torch
from torch import nn

from gossamer import fit, methods
from gossamer.data import two_moons
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Gaussian
from gossamer.models import mlp
from gossamer.posterior import Last
from gossamer.schedules import constant
from gossamer.train import Training
from gossamer.train.limit import RateLimit, curvature_of
from gossamer.types import Method, Task


def linear_task(noise_std: float, dtype: torch.dtype = torch.float32) -> Task:
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = x.sum(1, keepdim=True)
    return Task((x, y), (x, y), (x, y), Gaussian(noise_std), n_outputs=1)


def linear(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(3, 1, bias=False, dtype=dtype)


def by_sgd(lr: float, momentum: float = 0.0, **parts) -> Method:
    return Method(
        prepare=lambda model: model,
        optimizer=lambda model: torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum),
        lr=constant(lr),
        collector=Last,
        **parts,
    )


@pytest.mark.parametrize("noise", [0.1, 0.5, 2.0])
def test_the_curvature_of_a_linear_model_is_known(noise):
    task, model = linear_task(noise, torch.float64), linear(torch.float64)
    x, y = task.train
    largest = float(torch.linalg.eigvalsh(x.T @ x / len(x))[-1]) / noise**2
    before = model.weight.detach().clone()
    found = curvature_of(lambda: task.likelihood.loss(model(x), y), model.parameters())
    assert torch.equal(model.weight, before)
    assert 0.9 * largest < found < (1 + 1e-6) * largest  # a power iteration comes from below


def test_evaluations_have_the_same_noise_and_leave_the_random_state():
    w, state = nn.Parameter(torch.ones(2, dtype=torch.float64)), torch.get_rng_state()
    found = curvature_of(lambda: (w * (torch.randn(2).double() + torch.tensor([3.0, 0.0]))).sum() ** 2 / 2, [w])
    assert found > 0  # of one draw: with others the difference would be of the order of 1/REACH
    assert found < 100
    assert torch.equal(torch.get_rng_state(), state)


def test_a_share_of_the_schedule_first_and_then_only_down():
    w = nn.Linear(1, 1, bias=False, dtype=torch.float64)
    limit = RateLimit()
    for curvature, most in ((8.0, 1 / 16), (2.0, 1 / 16), (32.0, 1 / 64)):
        limit.look(w, lambda c=curvature: c / 2 * w.weight.square().sum(), highest=0.5 if curvature == 8 else 0.0)
        assert limit.most == pytest.approx(most, rel=1e-6)
    assert limit.share == pytest.approx(1 / 8, rel=1e-6)
    assert limit.lowered(0.04) == pytest.approx(0.005, rel=1e-6)  # a share of what is low already
    limit.look(w, lambda: math.inf * w.weight.square().sum())
    assert limit.most == pytest.approx(1 / 64, rel=1e-6)


@pytest.mark.parametrize("noise", [0.05, 0.5, 5.0])
def test_the_means_take_the_same_path_for_every_noise(noise):
    """At a rate too high for all of them: the loss is 1/σ² as steep, the rate σ² as high."""
    reached = {}
    for std in (1.0, noise):
        model = linear()
        fit(by_sgd(1e4), model, linear_task(std), 5)
        reached[std] = model.weight.detach()
    torch.testing.assert_close(reached[noise], reached[1.0], rtol=1e-3, atol=1e-4)  # differences in float32


def test_a_rate_that_is_given_or_of_another_kind_stays():
    for parts in ({"lr_is_given": True}, {"one_rate": False}):
        training = Training(by_sgd(0.01, **parts), linear(), linear_task(0.01), 3)
        training.advance()
        assert training.optimizer.param_groups[0]["lr"] == training.lr == 0.01


def test_classes_are_trained_as_ever(monkeypatch):
    """Nothing is even measured."""
    monkeypatch.setattr("gossamer.train.limit.curvature_of", None)
    task = two_moons.load()
    for name in ("sgd", "rigl", "cv_sghmc"):
        training = Training(methods.build(name, task, 20), mlp(2, (8,), 2), task, 20)
        for _ in range(3):
            training.advance()
        assert training.limit == RateLimit()
        assert "limit" not in training.state_dict()
        assert training.lr == training.method.lr(2)


@pytest.mark.parametrize("name", ["sgd", "sm", "em_mcmc", "ivon"])
def test_a_limited_training_resumes_to_the_bit(name):
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    task = Task(*[(x, x.sum(1, keepdim=True))] * 3, Gaussian(noise_std=0.1), n_outputs=1)

    def begun() -> Training:
        torch.manual_seed(0)
        return Training(methods.build(name, task, 120), mlp(3, (16,), 1), task, 120, batch_size=16)

    whole = begun()
    for _ in whole.run(35):
        pass
    state = copy.deepcopy(whole.state_dict())
    for _ in whole.run(60):
        pass
    again = begun()
    again.load_state_dict(state)
    for _ in again.run(60):
        pass
    assert whole.limit == again.limit != RateLimit()
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_look_leaves_what_rules_collect_alone():
    x = torch.randn(64, 5, generator=torch.Generator().manual_seed(0))
    task = Task(*[(x, x.sum(1, keepdim=True))] * 3, Gaussian(noise_std=0.1), n_outputs=1)
    training = Training(methods.build("sm", task, 50, density=0.5), mlp(5, (16,), 1), task, 50)
    weights = list(sparse_weights(training.model).values())
    held = [(weight.probe, weight.sink) for weight in weights]
    batch = training.batches[0]
    training.limit.look(training.model, training.eager.again(*batch), highest=0.1)
    assert [(weight.probe, weight.sink) for weight in weights] == held
    assert all(parameter.grad is None for parameter in training.model.parameters())
