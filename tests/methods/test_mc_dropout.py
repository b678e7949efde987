"""mc_dropout: predictions against the sum over all masks of a tiny network, and where dropout is put."""

from itertools import product

import pytest
import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.methods.mc_dropout import Dropped, with_dropout
from gossamer.models import conv_net, mlp, resnet18
from gossamer.train import fit

RATE = 0.3


def tiny():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(RATE), nn.Linear(4, 2)).eval()


def every_mask(network, x):
    """Probability and output of each of the 16 networks that dropout may leave."""
    hidden = network[:2](x)
    for kept in product((0.0, 1.0), repeat=4):
        z = torch.tensor(kept)
        share = torch.where(z == 1, 1 - RATE, RATE).prod()
        yield share, network[3](hidden * z / (1 - RATE))


def test_the_mean_prediction_is_the_sum_over_all_masks():
    network, x, n = tiny(), torch.randn(5, 3, generator=torch.Generator().manual_seed(1)), 1000
    with torch.no_grad():
        masks = list(every_mask(network, x))
    expected = sum(share * output.softmax(1) for share, output in masks)
    variance = sum(share * (output.softmax(1) - expected).square() for share, output in masks)
    posterior = Dropped(network, torch.Generator().manual_seed(2))
    prediction = gossamer.predict(posterior, x, n_draws=n)
    assert bool(((prediction.probs - expected).abs() < 4.5 * (variance / n).sqrt()).all())
    # Each draw is one of the 16 networks, for all inputs the same.
    outputs = torch.stack([output for _, output in masks])
    gaps = (prediction.outputs[:200, None] - outputs).abs().amax((2, 3)).amin(1)
    assert float(gaps.max()) < 1e-6


def test_channels_are_dropped_whole():
    network = nn.Sequential(nn.Dropout2d(0.5), nn.Flatten())
    for drawn in Dropped(network, torch.Generator().manual_seed(0)).draws(5):
        per_channel = drawn(torch.ones(2, 6, 3, 3)).view(2, 6, 9)
        assert bool((per_channel == per_channel[:1, :, :1]).all())
        assert set(per_channel.unique().tolist()) <= {0.0, 2.0}


def test_the_model_is_left_as_it_was():
    network = tiny()
    before = [type(module) for module in network.modules()]
    list(Dropped(network).draws(3))
    assert [type(module) for module in network.modules()] == before


@pytest.mark.parametrize(
    ("build", "n_layers", "kinds"),
    [
        (lambda: mlp(64), 2, {nn.Dropout}),
        (conv_net, 3, {nn.Dropout, nn.Dropout2d}),
        (lambda: resnet18(10), 20, {nn.Dropout, nn.Dropout2d}),
    ],
)
def test_dropout_is_put_before_every_layer_but_the_first(build, n_layers, kinds):
    network = with_dropout(build(), 0.2)
    layers = [module for module in network.modules() if type(module) in (nn.Dropout, nn.Dropout2d)]
    assert len(layers) == n_layers
    assert {type(layer) for layer in layers} == kinds
    assert {layer.p for layer in layers} == {0.2}


@pytest.mark.parametrize(("rate", "expected"), [(None, RATE), (0.4, 0.4)])
def test_dropout_of_the_networks_own_is_used(rate, expected):
    network = with_dropout(tiny(), rate)
    assert [type(module).__name__ for module in network] == ["Linear", "Tanh", "Dropout", "Linear"]
    assert network[2].p == expected


def test_the_default_rate_is_a_tenth():
    rates = [(type(layer), layer.p) for layer in with_dropout(conv_net()).modules() if hasattr(layer, "p")]
    assert rates == [(nn.Dropout2d, 0.1), (nn.Dropout, 0.1), (nn.Dropout, 0.1)]


def test_a_network_without_hidden_layers_says_what_to_do():
    with pytest.raises(ValueError, match=r"no hidden linear or convolutional layer .* \(nn.Dropout\)"):
        with_dropout(nn.Linear(3, 2))


@pytest.mark.parametrize("rate", [0.0, 1.0, -0.1])
def test_a_rate_out_of_range_is_refused(rate):
    with pytest.raises(ValueError, match="rate is a share of the units, between 0 and 1"):
        methods.build("mc_dropout", digits.load(), 10, rate=rate)


def test_convolutions_learn_too():
    task = digits.load()
    torch.manual_seed(0)
    posterior = fit(methods.build("mc_dropout", task, 150), conv_net(), task, 150)
    assert evaluate(posterior, task, n_draws=10, split="val")["accuracy"] > 0.9
