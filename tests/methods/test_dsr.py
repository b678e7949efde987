"""DSR: an update of two layers by hand, the threshold, the periods, and the budget."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import two_moons
from gossamer.layers import sparse_weights
from gossamer.methods.dsr import Reparameterization

FIRST, SECOND = (0.1, -3.0, 0.3, 0.2, -1.0), (0.5, -0.6, 0.01, 0.7, 0.8)


def two_layers():
    """Ten entries each, of which the first five are active."""
    model = gossamer.sparsify(nn.Sequential(nn.Linear(5, 2, bias=False), nn.Linear(2, 5, bias=False)), density=0.5)
    for layer, values in zip(model, (FIRST, SECOND), strict=True):
        layer.support.position.copy_(torch.arange(5))
        layer.mean.data.copy_(torch.tensor(values))
    return model


def rule_of(model, threshold=0.25, rate=0.1):
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=0.9)
    clock = {"update_period": lambda step: 1, "last_step": 10_000}
    return Reparameterization(model, optimizer, threshold=threshold, replacement_rate=rate, **clock)


def test_an_update_by_hand():
    """Three and four weights survive |w| ≥ 0.25: of the three that leave, the layers get back 9/7 and 12/7, 1 and 2."""
    for seed in range(50):
        torch.manual_seed(seed)
        model = two_layers()
        rule = rule_of(model)
        assert rule.step()
        first, second = (
            dict(zip(layer.support.position.tolist(), layer.mean.tolist(), strict=True)) for layer in model
        )
        assert [round(first.pop(position), 6) for position in (1, 2, 4)] == [-3.0, 0.3, -1.0]
        assert [round(second.pop(position), 6) for position in (0, 1, 3, 4)] == [0.5, -0.6, 0.7, 0.8]
        assert (len(first), len(second)) == (1, 2)
        assert not (first.keys() | second.keys()) & set(range(5))  # not those that have just left
        assert {*first.values(), *second.values()} == {0.0}


@pytest.mark.parametrize(("rate", "then"), [(0.1, 0.125), (0.3, 0.25), (0.5, 0.5)])
def test_the_threshold_follows_the_number_that_leaves(rate, then):
    """Three of ten leave: H is halved where one was wanted, doubled where five were."""
    rule = rule_of(two_layers(), rate=rate)
    rule.step()
    assert rule.threshold == then


def test_the_periods_double():
    method = methods.build("dsr", two_moons.load(), 1000, density=0.5, update_period=10)
    model = method.prepare(nn.Sequential(nn.Linear(2, 8), nn.Linear(8, 2)))
    (rule,) = method.rules(model, method.optimizer(model))
    due = [step for step in range(1, 1001) if rule.is_due(step)]
    assert [step for step in due if step <= 125] == list(range(10, 130, 10))[:12]
    assert [step for step in due if 125 < step <= 400] == list(range(140, 401, 20))
    assert [step for step in due if 400 < step <= 700] == list(range(440, 701, 40))
    assert [step for step in due if step > 700] == [720, 800, 880]  # and none after 950


@pytest.mark.parametrize("density", [0.05, 0.5, 0.97])
def test_the_budget_is_exact_over_hundreds_of_random_updates(density):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 7), nn.Linear(7, 3), nn.Conv2d(3, 4, 3))
    model = gossamer.sparsify(plain, density=density, allocation="global", keep_dense=())
    weights, total = sparse_weights(model), gossamer.active_parameters(model)
    rule = rule_of(model)
    shapes = []
    for _ in range(300):
        rule.threshold = 10 ** float(torch.randn(()))
        for weight in weights.values():
            weight.mean.data.normal_(std=10 ** float(torch.randn(())))
        rule.step()
        counts = [len(weight.mean) for weight in weights.values()]
        shapes.append(counts)
        assert sum(counts) == total
        assert min(counts) >= 1
        for weight in weights.values():
            weight.support.check(weight.support.position)
            assert len(weight.support.position) == len(weight.mean)
    assert len({tuple(counts) for counts in shapes}) > 20  # entries did move between layers
