"""Draws are kept as they were drawn, active entries only, and predict as the networks do."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

import gossamer
from gossamer.estimators.draws import Architecture, Draws
from gossamer.kernels import library
from gossamer.methods.mc_dropout import Dropped, with_dropout
from gossamer.posterior import InLayers, SingleNetwork


@pytest.mark.parametrize("hidden", [(), (8,), (8, 4)])
@pytest.mark.parametrize("constant_noise", [False, True])
def test_outputs_are_those_of_the_networks(hidden, constant_noise):
    torch.manual_seed(0)
    architecture = Architecture(20, hidden, 2, constant_noise)
    model = gossamer.bayesianize(architecture.build(), density=0.1)
    kept = Draws.of(InLayers(model, torch.Generator().manual_seed(1)), 4, architecture)
    x = torch.randn(7, 20)
    expected = torch.stack(
        [network(x).detach() for network in InLayers(model, torch.Generator().manual_seed(1)).draws(4)]
    )
    torch.testing.assert_close(kept.outputs(x[:, kept.columns].numpy()).float(), expected)
    assert len(kept) == 4
    assert sum(position.numel() for name, position in kept.position.items() if name.endswith("weight")) <= (
        gossamer.active_parameters(model)
    )


@pytest.mark.parametrize("constant_noise", [False, True])
def test_dropped_units_are_columns_of_zeros(constant_noise):
    torch.manual_seed(0)
    architecture = Architecture(6, (8, 4), 2, constant_noise)
    model = with_dropout(architecture.build(), rate=0.5).eval()
    kept = Draws.of(Dropped(model, torch.Generator().manual_seed(1)), 3, architecture)
    x = torch.randn(5, 6)
    drawn = Dropped(model, torch.Generator().manual_seed(1)).draws(3)
    torch.testing.assert_close(kept.outputs(x.numpy()).float(), torch.stack([one(x).detach() for one in drawn]))


def test_columns_without_a_weight_are_left_out():
    network = nn.Sequential(nn.Flatten(), nn.Linear(5, 2))
    with torch.no_grad():
        network[1].weight.zero_()
        network[1].weight[0, 3] = 2.0
    kept = Draws.of(SingleNetwork(network), 10, Architecture(5, (), 2))
    assert kept.columns.tolist() == [3]
    assert len(kept) == 1
    torch.testing.assert_close(
        kept.outputs(np.array([[3.0]]))[0], torch.tensor([[6.0, 0.0]], dtype=torch.float64) + network[1].bias.double()
    )


def test_sparse_and_dense_products_answer_alike_and_no_row_depends_on_others():
    torch.manual_seed(0)
    architecture = Architecture(20, (50, 50), 2)
    model = gossamer.bayesianize(architecture.build(), density=0.2)
    kept, x = Draws.of(InLayers(model), 5, architecture), np.random.default_rng(0).normal(size=(70, 20))
    x = x[:, kept.columns.numpy()]
    outputs = kept.outputs(x)
    with gossamer.kernels.use("dense"):
        torch.testing.assert_close(kept.outputs(x), outputs, rtol=1e-12, atol=1e-12)
    if library.LIBRARY:
        fresh = pickle.loads(pickle.dumps(kept))
        assert torch.equal(fresh.outputs(x[33:34]), outputs[:, 33:34])
        assert "_layers" not in vars(fresh)  # nothing dense stays
    assert pickle.loads(pickle.dumps(kept)).__dict__.keys() == {"architecture", "columns", "position", "values"}


def test_a_network_that_reads_nothing_still_answers():
    network = nn.Sequential(nn.Flatten(), nn.Linear(3, 1))
    nn.init.zeros_(network[1].weight)
    kept = Draws.of(SingleNetwork(network), 1, Architecture(3, (), 1))
    assert kept.outputs(np.zeros((2, 1))).shape == (1, 2, 1)


def test_networks_of_another_shape_are_refused():
    with pytest.raises(TypeError, match="of another shape than it was given"):
        Draws.of(SingleNetwork(nn.Linear(3, 1)), 1, Architecture(3, (), 1))
