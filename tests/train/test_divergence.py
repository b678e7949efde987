"""Trainings that fail raise, whatever door they came through, and those that work do not."""

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer import SparseBayesRegressor, methods
from gossamer.data import digits
from gossamer.likelihoods import Gaussian
from gossamer.models import mlp
from gossamer.train import Batches, Training
from gossamer.train.divergence import PERIOD, DivergenceError, DivergenceWatch
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
        watch.recent.append((step, torch.tensor(1.0)))
    with pytest.raises(DivergenceError, match=rf"at step {PERIOD}: .* grew most are weight, up to 2e\+11"):
        watch.check(network, lr=0.1)


@pytest.mark.parametrize("first", [2.3, -0.5, 1e-3, 500.0])
def test_single_batches_and_higher_losses_are_no_divergence(first):
    network = nn.Linear(2, 1)
    watch = DivergenceWatch(network)
    for step in range(1, PERIOD + 1):
        watch.recent.append((step, torch.tensor(1e6 if step % 10 == 2 else first + (step > 1) * abs(first))))
    watch.check(network, lr=0.1)


def test_a_continued_training_remembers_its_first_loss():
    task = digits.load()
    steps = 2 * PERIOD
    training = Training(methods.build("sgd", task, steps), mlp(64, (8,)), task, steps)
    list(training.run(PERIOD))
    again = Training(methods.build("sgd", task, steps), mlp(64, (8,)), task, steps)
    again.load_state_dict(training.state_dict())
    assert again.watch.first == training.watch.first == pytest.approx(2.3, abs=0.3)  # log 10, before any step


METHODS = ("sgd", "vi", "ssvi", "cv_adam", "em_mcmc", "csgld")


def broken_digits(value=torch.nan):
    """One pixel of one image is not finite, in the second batch that a training reads."""
    task = digits.load()
    x, rows = task.train[0].clone(), torch.arange(len(task.train[1]))
    x[Batches((rows, rows), 64, seed=0)[1][0][3], 0, 3, 4] = value
    return task._replace(train=(x, task.train[1]))


def build(method, task, steps=6, **options):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 10))
    own = {"cycles": 1, "per_cycle": 1} if method == "csgld" else {}
    return Training(methods.build(method, task, steps, **own), network, task, steps, **options)


def is_finite(model):
    return all(bool(torch.isfinite(t).all()) for t in model.state_dict().values() if isinstance(t, torch.Tensor))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("value", [torch.nan, -torch.inf])
def test_inputs_that_are_not_finite_stop_before_the_weights_change(method, value):
    training = build(method, broken_digits(value))
    with pytest.raises(DivergenceError, match=r"at step 2: inputs are not finite, in rows \[3\] of its batch of 64"):
        list(training.run())
    assert training.step == 1
    assert is_finite(training.model)


@pytest.mark.parametrize("on_nan", ["skip", "rollback"])
@pytest.mark.parametrize("method", METHODS)
def test_a_batch_that_is_not_finite_is_left_out(method, on_nan):
    training = build(method, broken_digits(), on_nan=on_nan)
    losses = [float(values["loss"]) for values in training.run()]
    assert training.step == len(losses) == 6
    assert np.isfinite(losses).all()
    assert is_finite(training.model)


def explode_once(training, step, value=torch.inf):
    """The weights of the last layer are infinite in the pass of one step, the first time that it is taken."""
    left = [1]

    def forward(module, inputs, output):
        if training.step == step - 1 and module.training and left:
            left.pop()
            return output * value
        return output

    training.model[4].register_forward_hook(forward)


def test_a_loss_that_is_not_finite_is_told_with_step_and_layer():
    task = digits.load()
    training = build("sgd", task)
    nn.init.constant_(training.model[1].bias, torch.inf)
    with pytest.raises(DivergenceError, match=r"at step 1: a loss of nan; the first layer .* not finite is 1; .*lr is"):
        training.advance()


def test_skipping_takes_the_step_with_the_next_batch():
    """Nothing of the bad pass is left, neither in weights nor in the statistics of batch normalisation."""
    task = digits.load()
    plain, training = build("sgd", task), build("sgd", task, on_nan="skip")
    explode_once(training, 2, torch.nan)
    plain.advance()
    plain.recovery.shift = 1
    training.advance()
    for one in (plain, training):
        one.advance()
    for name, value in plain.model.state_dict().items():
        if name != "2.num_batches_tracked":
            assert torch.equal(value, training.model.state_dict()[name]), name
    assert training.state_dict()["shift"] == 1


def test_a_rollback_undoes_the_steps_since_the_last_good_state():
    task = digits.load()
    plain, training = build("sgd", task), build("sgd", task, on_nan="rollback")
    explode_once(training, 4)
    plain.recovery.shift = 4  # all batches of the steps that are undone are left out
    for one in (plain, training):
        list(one.run())
    for name, value in plain.model.state_dict().items():
        assert torch.equal(value, training.model.state_dict()[name]), name
    assert training.updates == [{"step": 4, "rolled_back": 0}]


def test_a_training_that_skipped_is_resumed_exactly():
    whole = build("ssvi", broken_digits(), on_nan="skip")
    list(whole.run())
    first, second = (build("ssvi", broken_digits(), on_nan="skip") for _ in range(2))
    list(first.run(3))
    second.load_state_dict(first.state_dict())
    list(second.run())
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


@pytest.mark.parametrize("on_nan", ["skip", "rollback"])
def test_a_training_without_a_finite_batch_ends(on_nan):
    task = digits.load()
    nothing = task._replace(train=(task.train[0] * torch.nan, task.train[1]))
    with pytest.raises(DivergenceError, match="at step 1: inputs are not finite"):
        list(build("sgd", nothing, on_nan=on_nan).run())


def test_an_unknown_way_is_refused():
    task = line()
    with pytest.raises(ValueError, match="on_nan must be 'stop', 'skip' or 'rollback'; got 'ignore'"):
        gossamer.fit(methods.build("sgd", task, 3), mlp(4, (8,), 1), task, 3, on_nan="ignore")
    with pytest.raises(ValueError, match="on_nan must be 'stop', 'skip' or 'rollback'; got 'ignore'"):
        SparseBayesRegressor(on_nan="ignore").fit(*friedman(30))
