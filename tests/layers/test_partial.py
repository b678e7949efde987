"""Layers of other libraries, subclasses, and what a conversion says of the weights that it leaves alone.

The layer of transformers is a stand-in with its name and its arithmetic; conversion knows it by name.
"""

import copy
import warnings

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights


class Conv1D(nn.Module):
    """GPT-2's linear layer: the weight is ``(in, out)``."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf) * 0.02), nn.Parameter(torch.zeros(nf))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(*x.size()[:-1], self.nf)


class Conv3DSimple(nn.Conv3d):
    """The convolution of torchvision's r3d_18: a constructor and a static method more than its base class."""

    def __init__(self, n_in, n_out, stride=1):
        super().__init__(n_in, n_out, kernel_size=3, stride=stride, padding=1, bias=False)

    @staticmethod
    def get_downsample_stride(stride):
        return stride, stride, stride


class Renamed(nn.Linear):
    """A subclass that computes what its base class does."""

    def __init__(self):
        super().__init__(8, 8)

    def describe(self):
        return "mine"


CASES = {
    "transformers Conv1D": (lambda: Conv1D(6, 8), (3, 5, 8)),
    "torchvision Conv3DSimple": (lambda: Conv3DSimple(2, 3), (2, 2, 4, 4, 4)),
    "subclass": (Renamed, (3, 8)),
}


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    make, shape = CASES[request.param]
    return nn.Sequential(make(), nn.Identity()), torch.randn(shape)


def silenced(model):
    for weight in sparse_weights(model).values():
        weight.noisy = False
    return model


def test_they_compute_what_the_plain_ones_do(case):
    plain, x = case
    model = silenced(gossamer.bayesianize(copy.deepcopy(plain), density=1.0, init="pretrained"))
    expected, actual = plain(x), model(x)
    torch.testing.assert_close(actual, expected)
    (expected.square().sum()).backward()
    (actual.square().sum()).backward()
    for name, weight in model[0].named_weights().items():
        grad = plain[0].get_parameter(name).grad
        grad = grad.t() if grad.shape != weight.shape or isinstance(plain[0], Conv1D) else grad
        torch.testing.assert_close(weight.mean.grad.view(weight.shape), grad)


@pytest.mark.parametrize("std", ["curvature", "gradient"])
def test_they_are_sparse_vary_train_and_can_be_drawn(case, std):
    plain, x = case
    model = gossamer.bayesianize(copy.deepcopy(plain), density=0.25, std=std)
    start = {weight: weight.std.detach().mean() for weight in sparse_weights(model).values()}
    assert gossamer.density(model) == pytest.approx(0.25, abs=0.02)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.01)
    if std == "curvature":
        gossamer.Curvature(model, optimizer, n_data=1000, weight_decay=None)
    subspace = gossamer.Subspace(model, optimizer, total_steps=10, update_period=2, replacement_rate=0.5)
    assert not torch.equal(model(x), model(x))
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        (loss if std == "curvature" else loss + gossamer.kl(model) / 1000).backward()
        optimizer.step()
        subspace.step()
    assert all(weight.std.mean() != std for weight, std in start.items())
    assert sum(sum(update.get("replaced", {}).values()) for update in subspace.record) > 0
    network = gossamer.draw(model, at_mean=True)
    assert type(network[0]) is type(plain[0])
    torch.testing.assert_close(network(x), silenced(model)(x))
    zeros = [float((network[0].get_parameter(name) == 0).float().mean()) for name in model[0].named_weights()]
    assert all(share > 0.7 for share in zeros)
    drawn = [next(iter(network.parameters())).clone() for network in gossamer.posterior.InLayers(model).draws(2)]
    assert drawn[0].shape == next(plain.parameters()).shape


def test_a_subclass_keeps_its_own_methods():
    assert gossamer.sparsify(nn.Sequential(Renamed()), 0.5)[0].describe() == "mine"


class Bespoke(nn.Module):
    def __init__(self):
        super().__init__()
        self.kernel, self.scale = nn.Parameter(torch.randn(30, 30)), nn.Parameter(torch.randn(30))

    def forward(self, x):
        return (x @ self.kernel) * self.scale


def test_a_partial_conversion_warns_and_counts_the_whole_network():
    """100 of 1,000 weights can be converted; the density is that of the whole network."""
    model = nn.Sequential(nn.Linear(10, 10), nn.LayerNorm((10, 10)), Bespoke())
    with pytest.warns(UserWarning, match=r"10\.0% of the weights .* 90\.0% in Bespoke \(no rule for Bespoke"):
        gossamer.bayesianize(model, density=0.2)
    assert gossamer.density(model) == (20 + 900) / 1000
    assert gossamer.active_parameters(model) == 20
    table = gossamer.summary(model)
    assert "920 / 1,000" in str(table).splitlines()[-1]


@pytest.mark.parametrize("quiet", ["excluded", "frozen", "small"])
def test_no_warning_where_the_rest_is_meant_or_small(quiet):
    model = nn.Sequential(nn.Linear(200, 200) if quiet == "small" else nn.Linear(10, 10), Bespoke())
    model[1].requires_grad_(quiet != "frozen")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        gossamer.bayesianize(model, density=0.2, exclude="1" if quiet == "excluded" else ())
    assert gossamer.density(model) > 0.2


def test_a_weight_tied_to_its_transpose_is_refused():
    model = nn.Sequential(Conv1D(6, 6), nn.Linear(6, 6))
    model[1].weight = model[0].weight
    with pytest.raises(ValueError, match="0 shares its weight with a layer that stores it transposed: exclude one"):
        gossamer.bayesianize(model, 0.5)
