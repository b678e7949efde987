"""Defaults of ssvi and vi that depend on the network, and options that exclude each other."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

import gossamer
from gossamer import fit, methods
from gossamer.data import two_moons
from gossamer.layers import WeightedKL
from gossamer.optim import Curvature
from gossamer.posterior import InAverage, InLayers, SnapshotPosterior
from gossamer.sparsity import Subspace


def plain() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 2))


def normed() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


def test_a_short_training_is_not_averaged():
    method = methods.build("ssvi", two_moons.load(), 4999).suited_to(normed())
    assert type(method.collector()) is InLayers
    asked = methods.build("ssvi", two_moons.load(), 100, average=0.25).suited_to(normed())
    assert type(asked.collector()) is InAverage


@pytest.mark.parametrize("name", ["ssvi", "vi"])
@pytest.mark.parametrize(
    ("network", "optimizer", "collector", "noise"),
    [(plain, Adam, InLayers, "local"), (normed, SGD, InAverage, "weights")],
)
def test_batch_normalisation_decides(name, network, optimizer, collector, noise):
    method = methods.build(name, two_moons.load(), 5000).suited_to(network())
    model = method.prepare(network())
    assert type(method.optimizer(model)) is optimizer
    assert type(method.collector()) is collector
    assert {module.weight.noise for module in model if hasattr(module, "support")} == {noise}
    assert (method.lr(4999) > 0.05 * method.lr(500)) == (collector is InAverage)  # an average wants a rate that stays


def test_options_win_over_the_network():
    options = {"optimizer": "adam", "average": 0.0, "noise": "local"}
    method = methods.build("vi", two_moons.load(), 100, **options).suited_to(normed())
    assert type(method.optimizer(method.prepare(normed()))) is Adam
    assert type(method.collector()) is InLayers


def test_the_reference_does_not_depend_on_the_network():
    method = methods.build("ssvi", two_moons.load(), 100, mode="reference").suited_to(normed())
    assert type(method.collector()) is InLayers
    assert method.lr(0) == 0.01
    assert methods.build("ssvi", two_moons.load(), 100, mode="reference").lr(99) == method.lr(99)


@pytest.mark.parametrize(("density", "kinds"), [(0.5, [Curvature, Subspace]), (1.0, [Curvature])])
def test_a_dense_network_has_nothing_to_move(density, kinds):
    method = methods.build("ssvi", two_moons.load(), 100, density=density)
    model = method.prepare(plain())
    assert [type(rule) for rule in method.rules(model, method.optimizer(model))] == kinds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"std": "curvature", "kl_weight": 0.1}, "kl_weight can only be given with std='gradient'"),
        ({"std": "curvature", "std_lr": 0.1, "kl_warmup": 0.5}, "std_lr and kl_warmup can only"),
        ({"kl_weight": 0.1, "temperature": 0.1}, "temperature can only be given with std='curvature'"),
        ({"std": "gradient", "temperature": 0.1}, "temperature can only be given with std='curvature'"),
        ({"cycles": 2, "average": 0.5}, "several take the place of an average"),
        ({"cycles": 0}, "cycles count from 1"),
        ({"members": 0}, "members counts from 1; got 0"),
        ({"mode": "reference", "temperature": 0.1}, "temperature can only be given with std='curvature'"),
    ],
)
def test_options_of_the_other_way_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        methods.build("ssvi", two_moons.load(), 100, **options)


@pytest.mark.parametrize("options", [{"kl_weight": 0.1}, {"kl_warmup": 0.5}, {"std_lr": 0.1}])
def test_who_speaks_of_the_kl_has_it_in_the_loss(options):
    """Settings of version 0.2, also those recorded in a run, mean what they meant."""
    method = methods.build("ssvi", two_moons.load(), 100, **options)
    assert isinstance(method.penalty, WeightedKL)
    assert "raw_std" in method.prepare(plain())[0].weight.vectors


@pytest.mark.parametrize("network", [plain, normed])
def test_posteriors_of_the_cycles_of_one_training_differ(network):
    task = two_moons.load()
    posterior = fit(methods.build("ssvi", task, 300, density=0.5, cycles=3), network(), task, 300)
    assert isinstance(posterior, SnapshotPosterior)
    supports = [torch.cat([p.flatten() for p in part.parameters() if p.dim() == 2]) != 0 for part in posterior.draws(3)]
    assert not torch.equal(supports[0], supports[1])  # the subspace has moved between the first two
    accuracy = (
        (gossamer.predict(posterior, task.transform(task.test[0]), n_draws=9).probs.argmax(1) == task.test[1])
        .float()
        .mean()
    )
    assert accuracy > 0.8


def test_the_average_predicts():
    task = two_moons.load()
    posterior = fit(methods.build("ssvi", task, 300, density=0.5), normed(), task, 300)
    assert (
        gossamer.predict(posterior, task.transform(task.test[0]), n_draws=9).probs.argmax(1) == task.test[1]
    ).float().mean() > 0.8
