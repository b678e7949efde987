"""Compacted networks have the outputs of the originals, to the last digits of float64, and fewer weights."""

from __future__ import annotations

import copy
import pickle
import time

import pytest
import torch
from torch import nn

import gossamer
from gossamer import compact
from gossamer.compaction import Select
from gossamer.models import conv_net, mlp, resnet18, vit_tiny, wide_resnet
from gossamer.sparsity import Prune

MODELS = {
    "mlp": (lambda: mlp(64, (40, 30)), (1, 8, 8)),
    "conv_net": (lambda: conv_net(width=8), (1, 9, 9)),
    "resnet18": (resnet18, (3, 12, 12)),
    "wide_resnet": (lambda: wide_resnet(16, 1, dropout=0.1), (3, 12, 12)),
}


def kill(model, share, generator):
    """Some rows and columns of every weight become zeros; normalisation gets statistics as after a training."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear | nn.Conv2d)]
    for layer in layers:
        rows = torch.rand(len(layer.weight), generator=generator) < share
        columns = torch.rand(layer.weight.shape[1], generator=generator) < share
        if layer is not layers[-1]:
            layer.weight.data[rows] = 0.0
        if layer is not layers[0]:
            layer.weight.data[:, columns] = 0.0
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            module.running_mean.normal_(generator=generator)
            module.running_var.uniform_(0.5, 2.0, generator=generator)
            module.weight.data.uniform_(-1.0, 2.0, generator=generator)
            module.bias.data.normal_(generator=generator)
            module.weight.data[torch.rand(len(module.weight), generator=generator) < share / 4] = 0.0
    return model


def agree(small, model, x, tolerance=1e-12):
    model.eval()
    expected, found = model(x), small.eval()(x)
    scale = float(expected.detach().abs().max())
    assert float((found - expected).detach().abs().max()) <= tolerance * max(1.0, scale)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [0.0, 0.4, 0.85])
@pytest.mark.parametrize("name", MODELS)
def test_outputs_are_the_same_and_the_network_is_smaller(name, share, seed):
    build, shape = MODELS[name]
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = kill(build().double(), share, generator)
    before = copy.deepcopy(model.state_dict())
    small = compact(model)
    agree(small, model, torch.randn(3, *shape, generator=generator, dtype=torch.float64))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    weights, left = small.compaction.n_weights
    assert weights == sum(p.numel() for n, p in model.named_parameters() if n.endswith("weight") and p.dim() > 1)
    assert left == weights if share == 0.0 else left < (1 - share) * weights


def test_a_constant_goes_through_the_activation_into_the_bias():
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 1)).double()
    model[0].weight.data[0] = 0.0
    model[0].bias.data[0] = 0.7
    small = compact(model)
    expected = model[2].bias + model[2].weight[:, 0] * torch.tanh(torch.tensor(0.7, dtype=torch.float64))
    torch.testing.assert_close(small[2].bias, expected)
    assert (small[0].in_features, small[0].out_features, small[2].in_features) == (2, 1, 1)


def test_a_unit_that_nobody_reads_goes_and_then_what_only_it_read():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 1)).double()
    model[4].weight.data[:, 2] = 0.0  # nobody reads unit 2 of the second layer,
    model[2].weight.data[:2, 1] = 0.0  # which alone reads unit 1 of the first
    small = compact(model)
    assert [tuple(small[i].weight.shape) for i in (0, 2, 4)] == [(3, 3), (2, 3), (1, 2)]
    agree(small, model, torch.randn(5, 3, dtype=torch.float64))


def test_padding_sees_the_border_of_a_constant_channel():
    """With zero padding a constant channel is no constant contribution: one of them stays for all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 3, 3, padding=1)).double()
    model[0].weight.data[2:] = 0.0
    model[0].bias.data[2:] = torch.tensor([0.5, -1.0, 2.0, 1.0])  # the second is zero after the ReLU
    small = compact(model)
    assert small[0].out_channels == 3
    x = torch.randn(2, 2, 5, 5, dtype=torch.float64)
    agree(small, model, x)
    model[2].padding_mode, model[2]._reversed_padding_repeated_twice = "circular", [1, 1, 1, 1]
    small = compact(model)  # here a constant stays constant, and goes into the bias
    assert small[0].out_channels == 2
    agree(small, model, x)


def test_a_channel_that_normalisation_switches_off_is_constant():
    model = nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)).double()
    model[1].weight.data = torch.tensor([1.0, 0.0, 1.0, 0.0]).double()
    model[1].bias.data = torch.tensor([0.1, 0.2, 0.3, -0.4]).double()
    small = compact(model)
    assert small[0].out_channels == small[1].num_features == 2
    agree(small, model, torch.randn(2, 1, 6, 6, dtype=torch.float64))


class Residual(nn.Module):
    """y = relu(a + b) where a and b have dead channels of their own."""

    def __init__(self, layer_a, layer_b):
        super().__init__()
        self.a, self.b, self.head = layer_a, layer_b, nn.Linear(4, 2)

    def forward(self, x):
        return self.head(torch.relu(self.a(x) + self.b(x)))


def test_a_channel_leaves_both_terms_of_a_sum_or_none():
    model = Residual(nn.Linear(3, 4), nn.Linear(3, 4)).double()
    model.a.weight.data[[0, 1]] = 0.0
    model.b.weight.data[[1, 2]] = 0.0
    small = compact(model)
    assert small.a.out_features == small.b.out_features == 3  # unit 1 is dead in both
    agree(small, model, torch.randn(4, 3, dtype=torch.float64))


def test_inputs_that_are_not_read_are_left_out():
    model = nn.Sequential(nn.Flatten(), nn.Linear(100, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    model[1].weight.data[:, 5:] = 0.0
    small = compact(model)
    assert isinstance(small[1][0], Select)
    assert tuple(small[1][1].weight.shape) == (4, 5)
    agree(small, model, torch.randn(3, 100, dtype=torch.float64))
    model[1].weight.data[:, 40] = 1.0
    assert compact(model)[1][0].index.tolist() == [0, 1, 2, 3, 4, 40]


def test_a_network_of_which_nothing_is_left_still_computes_its_constant():
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 2)
    )
    model = model.double()
    for layer in (model[0], model[3]):
        layer.weight.data.zero_()
    small = compact(model)
    assert small.compaction.n_weights[1] <= 9 + 16 + 2
    agree(small, model, torch.randn(3, 1, 4, 4, dtype=torch.float64))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.shared, self.head = nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(torch.relu(self.shared(torch.relu(self.shared(torch.relu(self.first(x)))))))


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(3, 4), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x):
        return self.head(self.a(x) * torch.sigmoid(self.b(x)))


def hooked():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda module, inputs, output: output + 1)
    return model


UNPROVEN = {
    "used in several places": (Twice, "first"),
    "mul is not understood": (Gate, "a"),
    "has hooks": (hooked, "0"),
    "LayerNorm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.Linear(4, 2)), "0"),
    "in groups": (lambda: nn.Sequential(nn.Conv1d(3, 4, 1), nn.Conv1d(4, 4, 1, groups=2), nn.Conv1d(4, 2, 1)), "0"),
}


@pytest.mark.parametrize("reason", UNPROVEN)
def test_what_cannot_be_proved_stays_and_is_reported(reason):
    build, dead = UNPROVEN[reason]
    torch.manual_seed(0)
    model = build().double()
    model.get_submodule(dead).weight.data[1] = 0.0
    with pytest.warns(UserWarning, match=reason) as said:
        small = compact(model)
    assert f"{dead} (1)" in str(said[0].message)
    shape = (4, 3, 5) if reason == "in groups" else (4, 3)
    agree(small, model, torch.randn(shape, dtype=torch.float64))
    assert small.compaction.left


def test_work_in_place_on_a_tensor_read_elsewhere_is_not_trusted():
    class InPlace(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.relu, self.head = nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2)

        def forward(self, x):
            a = self.a(x)
            return self.head(self.relu(a) + a)

    model = InPlace().double()
    model.a.weight.data[1] = 0.0
    with pytest.warns(UserWarning, match="in place"):
        small = compact(model)
    with torch.no_grad():
        agree(small, model, torch.randn(4, 3, dtype=torch.float64))


def test_a_network_that_cannot_be_traced_stays_whole():
    model = vit_tiny(depth=1, dim=8, heads=2)
    with pytest.warns(UserWarning, match="cannot trace this network"):
        small = compact(model)
    x = torch.randn(2, 3, 32, 32)
    assert torch.equal(small.eval()(x), model.eval()(x))


def test_a_sparse_network_becomes_a_plain_small_one():
    torch.manual_seed(0)
    model = gossamer.sparsify(mlp(64, (32, 32)), density=1.0, init="pretrained")
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    model(torch.randn(4, 64)).square().mean().backward()
    Prune(model, optimizer, target_density=0.25).step()
    small = compact(model)
    assert type(small[1][1]) is nn.Linear
    assert small.compaction.n_weights == (64 * 32 + 32 * 32 + 320, 16 * 8 + 8 * 8 + 80)
    x = torch.randn(4, 64)
    torch.testing.assert_close(small(x), model(x))
    assert torch.equal(pickle.loads(pickle.dumps(small))(x), small(x))


def test_a_bayesian_network_is_refused_with_the_way_out():
    model = gossamer.bayesianize(mlp(8, (4,)), density=0.5)
    with pytest.raises(ValueError, match=r"gossamer\.draw\(model\)"):
        compact(model)
    compact(gossamer.draw(model))


def test_float32_frozen_layers_and_modes_are_kept():
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 2))
    model[0].weight.data[1] = 0.0
    model[0].requires_grad_(False)
    model[1].eval()
    small = compact(model)
    assert small[0].weight.dtype == torch.float32
    assert not small[0].weight.requires_grad
    assert small[2].weight.requires_grad
    assert [module.training for module in small] == [True, False, True]


@pytest.mark.slow
def test_a_pruned_residual_network_is_really_faster():
    """Measured in turns, so that another load of the machine meets both alike."""
    model = kill(resnet18().eval(), 0.7, torch.Generator().manual_seed(0))
    small = compact(model).eval()
    x, seconds = torch.randn(8, 3, 32, 32), {"original": [], "compact": []}
    with torch.no_grad():
        for _ in range(6):
            for name, network in (("original", model), ("compact", small)):
                start = time.process_time()
                network(x)
                seconds[name].append(time.process_time() - start)
    ratio = min(seconds["original"]) / min(seconds["compact"])
    print(f"\n{ratio:.1f} times as fast; weights {small.compaction.n_weights}")
    assert ratio > 2
