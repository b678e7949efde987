"""Groups partition a weight, for every kind of layer, plain or sparse."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import gossamer
from gossamer.sparsity.groups import GROUPS, grouped_weights

LAYERS = {
    "linear": nn.Linear(4, 6),
    "conv1d": nn.Conv1d(4, 6, 3),
    "conv2d": nn.Conv2d(4, 6, (3, 2)),
    "grouped": nn.Conv2d(4, 6, 3, groups=2),
    "depthwise": nn.Conv2d(4, 4, 3, groups=4),
    "transposed": nn.ConvTranspose2d(4, 6, 2, groups=2),
}


@pytest.mark.parametrize("name", LAYERS)
def test_input_and_output_groups_are_what_reaches_an_output_from_an_input(name):
    """With one weight group alone non-zero, exactly one input channel is read, or one output channel changes."""
    layer = LAYERS[name]
    shape = (2, 4) if name == "linear" else (2, 4, *[5] * (layer.weight.dim() - 2))
    weight = grouped_weights(layer)[""]
    for groups, n_channels in (("input", 4), ("output", layer.weight.shape[0] if name != "transposed" else 6)):
        members = weight.members(groups)
        assert len(members) == n_channels
        for channel, member in enumerate(members):
            alone = nn.Parameter(torch.zeros(weight.size).index_fill(0, member, 1.0).view_as(layer.weight))
            x = torch.rand(shape, requires_grad=True)
            y = torch.func.functional_call(layer, {"weight": alone, "bias": torch.zeros_like(layer.bias)}, x)
            y.square().sum().backward()
            touched = x.grad if groups == "input" else y.detach()
            alive = touched.abs().transpose(0, 1).flatten(1).amax(1).nonzero().flatten().tolist()
            assert alive == [channel]


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("groups", GROUPS)
def test_every_grouping_is_a_partition(name, groups):
    members = grouped_weights(LAYERS[name])[""].members(groups)
    assert torch.equal(members.flatten().sort().values, torch.arange(LAYERS[name].weight.numel()))


def test_kernels_are_the_taps_of_a_pair_of_channels():
    assert torch.equal(grouped_weights(LAYERS["conv1d"])[""].members("kernel"), torch.arange(72).view(24, 3))


def test_sparse_and_plain_weights_have_the_same_groups_and_values():
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 3, 3), nn.Flatten(), nn.Linear(12, 4))
    weights = {name: weight.values().clone() for name, weight in grouped_weights(plain).items()}
    sparse = grouped_weights(gossamer.sparsify(plain, density=1.0, init="pretrained"))
    assert list(sparse) == ["0", "2"]
    for name, weight in sparse.items():
        assert torch.equal(weight.values(), weights[name])
        assert weight.sparse is not None


def test_spread_and_entries_lead_back_to_what_a_sparse_weight_stores():
    layer = gossamer.sparsify(nn.Linear(3, 2, bias=False), density=0.5)
    layer.support.position.copy_(torch.tensor([1, 3, 5]))
    weight = grouped_weights(layer)[""]
    number = weight.spread(torch.arange(3), weight.members("input"))
    assert number.tolist() == [0, 1, 2, 0, 1, 2]
    assert weight.entries(number).tolist() == [1, 0, 2]


def test_a_function_of_the_user_can_group_and_is_checked():
    weight = grouped_weights(nn.Linear(4, 2))[""]
    halves = weight.members(lambda position: position.unflatten(2, (2, 2)).movedim(2, 0).flatten(1))
    assert halves.tolist() == [[0, 1, 4, 5], [2, 3, 6, 7]]
    with pytest.raises(ValueError, match="every one of the 8 entries"):
        weight.members(lambda position: position.flatten()[:6].view(2, 3))
    with pytest.raises(ValueError, match="did you mean 'input'"):
        weight.members("inputs")


def test_tied_weights_come_once_and_excluded_ones_not_at_all():
    first = nn.Linear(4, 4)
    model = nn.Sequential(first, nn.Linear(4, 4), nn.LayerNorm(4))
    model[1].weight = first.weight
    assert list(grouped_weights(model)) == ["0"]
    assert list(grouped_weights(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exclude=["1"])) == ["0"]
    with pytest.raises(ValueError, match="matches no layer"):
        grouped_weights(model, exclude=["head"])
