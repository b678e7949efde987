"""Trainings that fail raise, whatever door they came through, and those that work do not."""

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer import SparseBayesRegressor, methods
from gossamer.data import digits
from gossamer.divergence import PERIOD, DivergenceError, DivergenceWatch
from gossamer.likelihoods import Gaussian
from gossamer.models import mlp
from gossamer.train import Training
from gossamer.types import Task


def line(noise=0.1, n=200):
    """A regression on one column."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 4, generator=generator)
    y = x[:, :1] + noise * torch.randn(n, 1, generator=generator)
    return Task((x, y), (x, y), (x, y), Gaussian(noise_std=noise), n_outputs=1)


def friedman(n=800):
    """Friedman's function of 5 of 30 columns."""
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(n, 30))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x, y + rng.normal(size=n)


def test_the_error_names_step_layer_and_fix():
    task = line()
    torch.manual_seed(0)
    with pytest.raises(DivergenceError) as caught:
        gossamer.fit(methods.build("sgd", task, 60, lr=10.0), mlp(4, (8,), 1), task, 60)
    message = str(caught.value)
    assert message.startswith("training diverged at step ")
    assert int(message.split()[4].rstrip(":")) <= PERIOD
    assert "the weights that grew most are " in message
    assert "Give a smaller learning rate (lr is " in message


def test_a_finite_divergence_is_found():
    """Neither the loss nor a weight is infinite at the end: trained on, R² is -682."""
    x, y = friedman()
    model = SparseBayesRegressor("em_mcmc", max_steps=3000, options={"lr": 0.01}, random_state=0)
    with pytest.raises(DivergenceError, match="training diverged at step"):
        model.fit(x, y)


def test_weights_that_exploded_are_found_where_the_loss_looks_harmless():
    network = nn.Linear(2, 1)
    watch = DivergenceWatch(network)
    with torch.no_grad():
        network.weight[0, 1] = 2e11
    for step in range(1, PERIOD + 1):
        watch.see(torch.tensor(1.0), step)
    with pytest.raises(DivergenceError, match=rf"at step {PERIOD}: .* grew most are weight, up to 2e\+11"):
        watch.check(network, lr=0.1)


@pytest.mark.parametrize("first", [2.3, -0.5, 1e-3, 500.0])
def test_single_batches_and_higher_losses_are_no_divergence(first):
    network = nn.Linear(2, 1)
    watch = DivergenceWatch(network)
    for step in range(1, PERIOD + 1):
        watch.see(torch.tensor(1e6 if step % 10 == 2 else first + (step > 1) * abs(first)), step)
    watch.check(network, lr=0.1)


def test_a_continued_training_remembers_its_first_loss():
    task = digits.load()
    steps = 2 * PERIOD
    training = Training(methods.build("sgd", task, steps), mlp(64, (8,)), task, steps)
    list(training.run(PERIOD))
    again = Training(methods.build("sgd", task, steps), mlp(64, (8,)), task, steps)
    again.load_state_dict(training.state_dict())
    assert again._watch.first == training._watch.first == pytest.approx(2.3, abs=0.3)  # log 10, before any step
