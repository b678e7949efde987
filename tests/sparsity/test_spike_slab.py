"""Spike and slab: the M-step against the posterior odds it maximises, and the decay that comes of it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer.optim import SGHMC
from gossamer.sparsity import Prune, SpikeSlabDecay, soft_threshold

VALUES = torch.tensor([[0.5, 0.01, 0.2], [-0.5, 0.02, 0.0]])  # mean squares of the columns: 0.25, 0.00025, 0.02


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("size", [1, 9, 40])
def test_the_threshold_is_where_the_posterior_odds_are_even(p, size):
    spike, slab = 300.0, 7.0
    threshold = soft_threshold(spike, slab, size, p)

    def log_posterior(precision, prior, square):
        return size / 2 * math.log(precision) - precision / 2 * size * square + math.log(prior)

    for factor, prefers_spike in ((0.99, True), (1.01, False)):
        square = threshold * (factor if threshold > 0 else 2 - factor)
        assert (log_posterior(spike, p, square) > log_posterior(slab, 1 - p, square)) == prefers_spike


def layer_with(values=VALUES, sparse=False):
    layer = nn.Linear(3, 2, bias=False)
    layer.weight.data.copy_(values)
    return gossamer.sparsify(layer, density=1.0, init="pretrained") if sparse else layer


def sgd(model, lr=1.0, weight_decay=0.01):
    return SGHMC(model.parameters(), lr, n_data=1, temperature=0.0, momentum=0.0, weight_decay=weight_decay)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_step_of_sgd_decays_each_group_by_its_own_factor(sparse):
    layer = layer_with(sparse=sparse)
    optimizer = sgd(layer)
    decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.01)
    parameter = next(layer.parameters())
    parameter.grad = torch.zeros_like(parameter)
    assert decay.step()
    optimizer.step()
    factors = torch.tensor([0.99, 0.9, 0.99])  # the second column alone is in the spike
    torch.testing.assert_close(parameter.detach().view(2, 3), VALUES * factors)
    assert decay.spike_share == pytest.approx(1 / 3)


def test_the_decay_adds_to_the_step_and_not_to_the_gradient():
    layer, gradient = layer_with(), torch.randn(2, 3)
    optimizer = sgd(layer)
    decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.01)
    expected = VALUES.clone()
    for _ in range(3):
        layer.weight.grad = gradient.clone()
        rates = torch.where(expected.square().mean(0) < 0.01, 0.1, 0.01)
        expected = expected - gradient - rates * expected
        decay.step()
        assert torch.equal(layer.weight.grad, gradient)
        optimizer.step()
    torch.testing.assert_close(layer.weight.detach(), expected)


def test_an_optimizer_without_a_decay_of_each_entry_is_refused():
    layer = layer_with()
    with pytest.raises(ValueError, match=r"^SGD takes no decay of each entry: use a sampler of gossamer\.optim"):
        SpikeSlabDecay(layer, torch.optim.SGD(layer.parameters()), spike_decay=0.1, threshold=0.1)


def test_groups_move_between_spike_and_slab():
    layer = layer_with()
    decay = SpikeSlabDecay(
        layer, sgd(layer), spike_decay=0.1, threshold=0.01, groups="weight", update_period=2, total_steps=10, warmup=0.1
    )
    layer.weight.grad = torch.zeros_like(layer.weight)
    assert [decay.step(), decay.step()] == [False, True]
    assert decay.spike_share == pytest.approx(3 / 6)
    layer.weight.data.fill_(1.0)
    assert [decay.step(), decay.spike_share] == [False, 0.5]  # between M-steps nothing changes
    assert [decay.step(), decay.spike_share] == [True, 0.0]
    assert decay.record == [{"step": 2, "spike_share": 0.5}, {"step": 4, "spike_share": 0.0}]


def test_kernels_of_convolutions_are_groups_by_default():
    layer = nn.Conv2d(1, 2, 2, bias=False)
    layer.weight.data.copy_(torch.stack([torch.full((1, 2, 2), 0.01), torch.full((1, 2, 2), 1.0)]))
    optimizer = sgd(layer)
    decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.01)
    decay.step()
    assert optimizer.state[layer.weight]["extra_decay"].flatten(1).amax(1).gt(0).tolist() == [True, False]


def test_the_decay_follows_entries_that_are_pruned_away():
    layer = layer_with(sparse=True)
    optimizer = SGHMC(layer.parameters(), 0.1, n_data=10, weight_decay=0.01)
    prune = Prune(layer, optimizer, threshold=1e-3)
    decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.1, update_period=2)
    for _ in range(2):
        layer(torch.randn(4, 3)).sum().backward()
        prune.step()
        decay.step()
        optimizer.step()
    layer(torch.randn(4, 3)).sum().backward()
    prune.step()
    decay.step()
    assert layer.support.position.tolist() == [0, 2, 3, 5]
    assert optimizer.state[layer.mean]["extra_decay"].shape == layer.mean.shape


def test_a_resume_goes_on_as_if_nothing_had_happened():
    def train(n_steps, layer, optimizer, decay):
        for step in range(n_steps):
            optimizer.zero_grad()
            layer(torch.ones(1, 3) * (step % 3)).square().sum().backward()
            decay.step()
            optimizer.step()

    def fresh():
        layer = layer_with()
        optimizer = sgd(layer, 0.05, 0.001)
        return layer, optimizer, SpikeSlabDecay(layer, optimizer, spike_decay=0.5, threshold=0.05, update_period=4)

    whole = fresh()
    train(6, *whole)
    first = fresh()
    train(6, *first)
    again = fresh()
    for new, old in zip(again, first, strict=True):
        new.load_state_dict(old.state_dict())
    train(3, *whole)
    train(3, *again)
    assert torch.equal(whole[0].weight, again[0].weight)
    assert again[2].record == whole[2].record[1:] != []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spike_decay": 0.001, "threshold": 0.1}, "must exceed the optimizer's weight_decay"),
        ({"spike_decay": 0.1, "threshold": 0.1, "update_period": 0}, "counts steps"),
        ({"spike_decay": 0.1, "threshold": 0.1, "groups": "inputs"}, "did you mean 'input'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, message):
    layer = layer_with()
    with pytest.raises(ValueError, match=message):
        SpikeSlabDecay(layer, sgd(layer), **options)


def test_a_threshold_of_impossible_priors_is_refused():
    with pytest.raises(ValueError, match=r"in \(0, 1\)"):
        soft_threshold(2.0, 1.0, 3, spike_probability=1.0)
    with pytest.raises(ValueError, match="spike must be narrower"):
        soft_threshold(1.0, 2.0, 3)


def test_an_optimizer_of_other_parameters_is_refused():
    with pytest.raises(ValueError, match="does not hold the weight"):
        SpikeSlabDecay(layer_with(), sgd(layer_with()), spike_decay=0.1, threshold=0.1)


def test_what_is_held_back_is_in_the_spike_whatever_its_size():
    layer = nn.Linear(4, 2, bias=False)
    layer.weight.data.copy_(torch.tensor([0.9, 0.8, 1.0, 0.7]).expand(2, 4))
    layer = gossamer.sparsify(layer, density=1.0, init="pretrained")
    optimizer = SGHMC(layer.parameters(), 0.0, n_data=10, weight_decay=0.01)
    prune = Prune(layer, optimizer, target_density=0.5, feedback=True)
    decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.01, prune=prune)
    layer.mean.grad = torch.zeros_like(layer.mean)
    for rule in (prune, decay):
        rule.step()
    assert optimizer.state[layer.mean]["extra_decay"][:4].gt(0).tolist() == [False, True, False, True]
    assert decay.spike_share == 0  # by their size, none


def test_a_threshold_for_each_layer_and_a_state_that_brings_it_back():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(VALUES)
        model[1].weight.fill_(0.1)
    optimizer = sgd(model, 0.1, 1e-3)
    limits = {"0": 0.1, "1": 0.005}
    decay = SpikeSlabDecay(model, optimizer, spike_decay=0.1, threshold=limits)
    model(torch.zeros(1, 3)).sum().backward()
    decay.step()
    assert decay.spike_share == pytest.approx(4 / 10)  # two columns of the first layer, none of the second
    later = SpikeSlabDecay(model, optimizer, spike_decay=0.1, threshold={"0": 9.0, "1": 9.0})
    later.load_state_dict(decay.state_dict())
    assert later.threshold == limits
