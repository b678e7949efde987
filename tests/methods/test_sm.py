"""Sparse momentum: an update of two layers by hand, the momentum of inactive entries, and the budget."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.methods.sm import SparseMomentum
from gossamer.schedules import constant

FIRST, SECOND = (0.1, -3.0, 0.3, 0.2, -1.0), (0.5, -0.6, 0.01, 0.7, 0.8)


def two_layers():
    """Ten entries each, of which the first five are active."""
    model = gossamer.sparsify(nn.Sequential(nn.Linear(5, 2, bias=False), nn.Linear(2, 5, bias=False)), density=0.5)
    for layer, values in zip(model, (FIRST, SECOND), strict=True):
        layer.support.position.copy_(torch.arange(5))
        layer.mean.data.copy_(torch.tensor(values))
    return model


def rule_of(model, rate=0.4, momentum=0.9, period=1, **options):
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=momentum)
    clock = {"update_period": lambda step: period, "last_step": 10_000}
    return optimizer, SparseMomentum(model, optimizer, momentum=momentum, rate=constant(rate), **options, **clock)


def test_an_update_by_hand():
    """The mean |m| of the active weights is 1 and 3, so of the four that leave the layers get back one and three."""
    model = two_layers()
    optimizer, rule = rule_of(model)
    for layer in model:
        optimizer.state[layer.mean]["momentum_buffer"] = torch.ones(5)
    rule.momentum = {
        "0": torch.tensor([0.2, 2.0, -1.0, 0.3, 1.5, 0.1, 0.5, -0.9, 0.2, 0.3]),
        "1": torch.tensor([1.0, 6.0, 2.0, 3.0, -3.0, 2.0, -4.0, 1.0, 3.0, 5.0]),
    }
    assert rule.step()
    # 0.1 and 0.2 leave the first layer, 0.01 and 0.5 the second; 7 comes into the first, 9, 6 and 8 into the second.
    assert model[0].support.position.tolist() == [1, 2, 4, 7]
    assert model[1].support.position.tolist() == [1, 3, 4, 6, 8, 9]
    torch.testing.assert_close(model[0].mean.detach(), torch.tensor([-3.0, 0.3, -1.0, 0.0]))
    torch.testing.assert_close(model[1].mean.detach(), torch.tensor([-0.6, 0.7, 0.8, 0.0, 0.0, 0.0]))
    buffers = [optimizer.state[layer.mean]["momentum_buffer"] for layer in model]  # new ones have their momentum
    torch.testing.assert_close(buffers[0], torch.tensor([1.0, 1.0, 1.0, -0.9]))
    torch.testing.assert_close(buffers[1], torch.tensor([1.0, 1.0, 1.0, -4.0, 3.0, 5.0]))
    assert rule.record == [
        {"step": 1, "removed": {"0": 2, "1": 2}, "replaced": {"0": 1, "1": 3}, "active": {"0": 4, "1": 6}}
    ]


def test_a_full_layer_of_much_momentum_loses_no_more_than_its_zeros():
    plain = nn.Sequential(nn.Linear(10, 10, bias=False), nn.Linear(10, 10, bias=False))
    model = gossamer.sparsify(plain, density=0.9)
    _, rule = rule_of(model, rate=0.5)
    rule.momentum = {"0": torch.ones(100), "1": torch.full((100,), 3.0)}
    rule.step()
    assert rule.record[0]["removed"] == {"0": 45, "1": 9}


def test_the_momentum_of_all_entries_is_that_of_their_gradients():
    """β = 0.2 has forgotten all but 1 % after three steps, so of six steps the last three count: β² g₄ + β g₅ + g₆."""
    torch.manual_seed(0)
    layer = gossamer.sparsify(nn.Linear(5, 2, bias=False), density=0.3)
    optimizer, rule = rule_of(layer, momentum=0.2, period=6)
    gradients = torch.randn(6, 2, 5)
    seen = []
    keep = rule.keep
    rule.keep = lambda batch: seen.append(rule.momentum[""].clone()) or keep(batch)
    for number, gradient in enumerate(gradients, 1):
        assert (layer.weight.probe is not None) == (number > 3)
        optimizer.zero_grad()
        (layer(torch.eye(5)) * gradient.T).sum().backward()
        rule.step()
    expected = 0.04 * gradients[3] + 0.2 * gradients[4] + gradients[5]
    torch.testing.assert_close(seen[0].view(2, 5), expected)
    assert rule.momentum == {}  # and nothing dense is kept


def test_the_momentum_of_active_entries_is_that_of_sgd_with_weight_decay():
    """As in the released code, which reads the optimizer's own buffer."""
    torch.manual_seed(0)
    layer = gossamer.sparsify(nn.Linear(5, 2, bias=False).double(), density=0.3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.5, weight_decay=0.3)
    clock = {"update_period": lambda step: 4, "last_step": 10_000}
    rule = SparseMomentum(layer, optimizer, momentum=0.5, rate=constant(0.2), weight_decay=0.3, **clock)
    for _ in range(3):
        optimizer.zero_grad()
        (layer(torch.eye(5, dtype=torch.float64)) * torch.randn(5, 2, dtype=torch.float64)).sum().backward()
        rule.step()
        optimizer.step()
    active = layer.weight.support.gather(rule.momentum[""])
    torch.testing.assert_close(active, optimizer.state[layer.mean]["momentum_buffer"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("density", [0.05, 0.5, 0.97])
def test_the_budget_is_exact_over_hundreds_of_random_updates(density):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 7), nn.Linear(7, 3), nn.Conv2d(3, 4, 3))
    model = gossamer.sparsify(plain, density=density, allocation="global", keep_dense=())
    weights, total = sparse_weights(model), gossamer.active_parameters(model)
    _, rule = rule_of(model)
    shapes = []
    for _ in range(300):
        rule.rate = constant(float(torch.rand(())))
        for name, weight in weights.items():
            weight.mean.data.normal_()
            rule.momentum[name] = torch.randn(weight.shape.numel()) * 10 ** float(torch.randn(()))
        if torch.rand(()) < 0.2:
            rule.momentum[list(weights)[int(torch.randint(4, ()))]].zero_()
        rule.step()
        counts = [len(weight.mean) for weight in weights.values()]
        shapes.append(counts)
        assert sum(counts) == total
        assert min(counts) >= 1
        for weight in weights.values():
            weight.support.check(weight.support.position)
            assert len(weight.support.position) == len(weight.mean)
    assert len({tuple(counts) for counts in shapes}) > 20  # entries did move between layers
