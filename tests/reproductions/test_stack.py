"""A stack computes what its networks compute, whatever has been cut from them."""

from __future__ import annotations

import copy

import pytest
import torch

from gossamer.models import mlp
from gossamer.sparsity.moves import remove
from reproductions.stack import stack


@pytest.fixture
def networks():
    torch.manual_seed(0)
    return [mlp(6, (5, 4), 2) for _ in range(3)]


def linear(network):
    return [part for part in network if isinstance(part, torch.nn.Linear)]


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_units_that_no_network_reads(networks, layer):
    """Unit 1 of a layer's input is cut in all networks, unit 2 in the first alone."""
    together = stack(copy.deepcopy(networks))
    for number, network in enumerate(networks):
        with torch.no_grad():
            linear(network)[layer].weight[:, [1, 2] if number == 0 else [1]] = 0.0
    dense = torch.cat([linear(network)[layer].weight.detach().flatten() for network in networks])
    cut = together.layers[layer]
    remove(cut.weight, dense != 0, [torch.optim.SGD(together.parameters(), lr=0.1)])
    x = torch.randn(3, 7, 6)
    outputs = together(x[:, :, together.first.read()])
    expected = torch.stack([network(rows) for network, rows in zip(networks, x, strict=True)])
    torch.testing.assert_close(outputs, expected, rtol=1e-5, atol=1e-6)
    assert len(cut.read()) == cut.n_in - 1


def test_variables_that_lead_nowhere_are_not_selected(networks):
    """Only hidden unit 3 reads variable 0, and nothing reads unit 3."""
    with torch.no_grad():
        for network in networks:
            first, second, _ = linear(network)
            first.weight[:3, 0] = first.weight[4:, 0] = 0.0
            second.weight[:, 3] = 0.0
    selected = stack(networks).selected()
    assert selected[:, 1:].all()
    assert not selected[:, 0].any()
