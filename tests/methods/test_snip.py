"""SNIP: sensitivities against autograd on the plain network, on one batch, before training."""

from copy import deepcopy

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.layers import sparse_weights
from gossamer.methods.snip import keep_sensitive, sensitivities
from gossamer.models import conv_net, mlp


@pytest.fixture(scope="module")
def task():
    return digits.load()


def networks():
    torch.manual_seed(0)
    normed = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Linear(20, 10))
    return {"mlp": mlp(64, (20, 15)), "conv": conv_net(width=4), "normed": normed}


def by_hand(network, task, batch):
    """|g · w| of every linear and convolutional weight of the plain network, flat, and w, by the name of the layer."""
    network.train()
    task.likelihood.loss(network(task.transform(batch[0])), batch[1]).backward()
    layers = {name: layer for name, layer in network.named_modules() if isinstance(layer, nn.Linear | nn.Conv2d)}
    scores = {name: (layer.weight.grad * layer.weight).abs().flatten().detach() for name, layer in layers.items()}
    return scores, {name: layer.weight.detach().flatten() for name, layer in layers.items()}


@pytest.mark.parametrize("name", networks())
def test_the_sensitivities_are_those_of_autograd(task, name):
    plain, batch = networks()[name], (task.train[0][:128], task.train[1][:128])
    model = gossamer.sparsify(deepcopy(plain), density=1.0, keep_dense=(), init="pretrained")
    scores, _ = by_hand(plain, task, batch)
    found = sensitivities(model, list(sparse_weights(model).values()), task, batch)
    for expected, score in zip(scores.values(), found, strict=True):
        torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("name", networks())
def test_the_most_sensitive_stay(task, name):
    plain, batch = networks()[name], (task.train[0][:128], task.train[1][:128])
    model = gossamer.sparsify(deepcopy(plain), density=1.0, keep_dense=(), init="pretrained")
    buffers = [buffer.clone() for buffer in plain.buffers()]
    scores, values = by_hand(deepcopy(plain), task, batch)
    keep_sensitive(model, task, batch, 0.1)
    every = torch.cat(list(scores.values()))
    least = every.sort(descending=True).values[round(0.1 * len(every)) - 1]
    for layer, weight in sparse_weights(model).items():
        kept = torch.zeros(len(scores[layer]), dtype=torch.bool)
        kept[weight.support.position.long()] = True
        assert bool((scores[layer][kept] > 0.999 * least).all())
        assert bool((scores[layer][~kept] < 1.001 * least).all())
        scaled = values[layer][kept] * values[layer].norm() / values[layer][kept].norm()
        torch.testing.assert_close(weight.mean.detach(), scaled)
    assert gossamer.active_parameters(model) == round(0.1 * len(every))
    after = [buffer for key, buffer in model.named_buffers() if not key.endswith("position")]
    assert all(torch.equal(one, other) for one, other in zip(buffers, after, strict=True))  # the batch was no training


def test_five_weights_by_hand():
    """L = Σ a w: |g · w| is 3, 4, 5, 0.2 and 1, so two fifths are the second and the third, scaled to the old norm."""
    layer = nn.Sequential(nn.Linear(5, 1, bias=False))
    layer[0].weight.data = torch.tensor([[3.0, -2.0, 0.5, 0.2, -1.0]])
    method = methods.build("snip", linear_task(), 10, density=0.4)
    model = method.prepare(layer)
    assert model[0].support.position.tolist() == [1, 2]
    old, new = (9 + 4 + 0.25 + 0.04 + 1) ** 0.5, (4 + 0.25) ** 0.5
    torch.testing.assert_close(model[0].mean.detach(), torch.tensor([-2.0, 0.5]) * old / new)


def test_a_layer_of_zeros_keeps_one_entry(task):
    plain = mlp(64, (20,))
    plain[-1].weight.data.zero_()
    model = methods.build("snip", task, 10, density=0.1).prepare(plain)
    assert model[-1].mean.tolist() == [0.0]
    assert bool(model[1].mean.isfinite().all())


class Sum:
    def loss(self, output, y):
        return output.mean()


def linear_task():
    x = torch.tensor([[1.0, -2.0, 10.0, 1.0, -1.0]]).expand(6, 5)
    return digits.load()._replace(train=(x, torch.zeros(6)), likelihood=Sum())
