"""What methods share: draws with statistics of batch normalisation of their own."""

import pickle

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import two_moons
from gossamer.evaluate import evaluate
from gossamer.methods._parts import refresh_of
from gossamer.train import fit


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))


def is_refreshed_by(drawn, x):
    """Its mean is that of ``x``, but for the error of the 512 examples that refresh it."""
    outputs = drawn[0](x)
    error = outputs.std(0) / 512**0.5
    assert bool(((drawn[1].running_mean - outputs.mean(0)).abs() <= 4 * error + 1e-5).all())


def shaken(x):
    return x + torch.randn_like(x)


@pytest.mark.parametrize("name", ["cv_adam", "cv_sghmc", "vi", "ssvi"])
def test_batch_normalisation_can_be_refreshed(name):
    task, model = two_moons.load(), network()
    options = {"density": 0.5} if name == "ssvi" else {}
    posterior = fit(methods.build(name, task, 60, refresh_batchnorm=True, **options), model, task, 60)
    of_training = model[1].running_mean.clone()
    x = task.transform(task.train[0])
    for drawn in posterior.draws(2):
        is_refreshed_by(drawn, x)
    assert torch.equal(model[1].running_mean, of_training)
    assert evaluate(posterior, task, n_draws=5)["accuracy"] > 0.75


def test_without_being_asked_draws_keep_the_statistics_of_training():
    task, model = two_moons.load(), network()
    posterior = fit(methods.build("vi", task, 20, average=0.0), model, task, 20)
    for drawn in posterior.draws(2):
        assert torch.equal(drawn[1].running_mean, model[1].running_mean)


def test_the_data_are_augmented_as_in_training():
    task = two_moons.load()._replace(augment=lambda x: x + 5)
    model = network().eval()
    refresh_of(task)(model)
    is_refreshed_by(model, task.transform(task.train[0] + 5))


def test_augmented_at_random_a_draw_is_refreshed_alike_every_time():
    task, model = two_moons.load()._replace(augment=shaken), network().eval()
    refresh, before = pickle.loads(pickle.dumps(refresh_of(task))), torch.get_rng_state()
    refresh(model)
    first = model[1].running_mean.clone()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(5)
    refresh(model)
    assert torch.equal(model[1].running_mean, first)
    refresh_of(two_moons.load())(model)
    assert not torch.equal(model[1].running_mean, first)
