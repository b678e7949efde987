"""What is timed computes what it is said to compute."""

import sys
import types

import pytest
import torch
from torch import nn

import gossamer
from benchmarks import layers, networks, rivals
from benchmarks.measurements import DENSE, MASKED, PLAIN
from benchmarks.rivals import CsrLayer, PublishedWeight, published
from gossamer.layers import sparse_weights
from gossamer.models import mlp


def small():
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(6 * 16, 10))


def test_a_masked_network_is_dense_in_storage_and_sparse_in_what_it_computes():
    torch.manual_seed(0)
    network, dense = published(small, 0.1), gossamer.bayesianize(small(), density=1.0, std="gradient")
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in dense.parameters())
    first, *rest = sparse_weights(network).values()
    assert first.mask is None  # the first convolution stays dense, as in the paper
    for weight in rest:
        active = round(0.1 * weight.support.size)
        assert isinstance(weight, PublishedWeight)
        assert int(weight.mask.sum()) == active
        assert int((weight.std > 0).sum()) == active
        assert bool((weight.mean[weight.mask == 0] == 0).all())


def test_a_masked_network_learns_what_a_sparse_one_with_the_same_entries_would():
    torch.manual_seed(0)
    network = published(lambda: nn.Sequential(nn.Linear(6, 4)), 0.5)
    weight = next(iter(sparse_weights(network).values()))
    position = weight.mask.nonzero().flatten()
    sparse = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 4)), density=0.5, std="gradient")
    other = next(iter(sparse_weights(sparse).values()))
    with torch.no_grad():
        other.support.set_position(position)
        other.mean.copy_(weight.mean[position])
        other.raw_std.copy_(weight.raw_std[position])
    other.prior_std = weight.prior_std
    assert gossamer.kl(network).item() == pytest.approx(gossamer.kl(sparse).item(), rel=1e-5)
    gossamer.kl(network).backward()
    gossamer.kl(sparse).backward()
    torch.testing.assert_close(weight.mean.grad[position], other.mean.grad)
    torch.testing.assert_close(weight.raw_std.grad[position], other.raw_std.grad)
    assert bool((weight.raw_std.grad[weight.mask == 0] == 0).all())


def test_the_output_of_a_masked_layer_has_the_moments_of_its_active_entries():
    torch.manual_seed(0)
    network = published(lambda: nn.Sequential(nn.Linear(6, 4, bias=False)), 0.5)
    weight = next(iter(sparse_weights(network).values()))
    x = torch.randn(1, 6)
    with torch.no_grad():
        draws = network(x.expand(20_000, 6))
        mean = x @ (weight.mean * weight.mask).view(4, 6).T
        std = (x.square() @ weight.std.view(4, 6).square().T).sqrt()
    error = std.clamp_min(1e-12) / 20_000**0.5
    assert bool(((draws.mean(0) - mean).abs() <= 4 * error).all())  # four standard errors of a mean
    torch.testing.assert_close(draws.std(0)[None], std, rtol=4 / 40_000**0.5, atol=1e-6)  # and of a std


@pytest.fixture
def csr():
    torch.manual_seed(0)
    mask = torch.rand(7, 9) < 0.4
    mask[3] = False  # an output without inputs: its variance is zero
    mean, variance = torch.randn(7, 9) * mask, torch.rand(7, 9) * mask
    return CsrLayer(mean, variance), mean, variance


def test_torch_csr_computes_the_local_reparameterization_and_its_gradients(csr):
    layer, mean, variance = csr
    x, noise, grad = torch.randn(5, 9, dtype=torch.float64), torch.randn(5, 7), torch.randn(5, 7)
    leaves = [tensor.double().requires_grad_() for tensor in (x, mean, variance)]
    v = leaves[0].square() @ leaves[2].T
    y = leaves[0] @ leaves[1].T + torch.where(v > 0, v, 1).sqrt() * (v > 0) * noise
    found, factor = layer.forward(x.float(), noise.T.contiguous())
    torch.testing.assert_close(found.double(), y.detach(), rtol=1e-5, atol=1e-5)
    expected = torch.autograd.grad(y, leaves, grad.double())
    dx, dmean, dvariance = layer.backward(x.float(), grad, factor)
    active = mean != 0
    torch.testing.assert_close(dx.double(), expected[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dmean.double(), expected[1][active], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(dvariance.double(), expected[2][active], rtol=1e-4, atol=1e-5)


class FakeSparse(nn.Module):
    """As SparseProp's modules look from outside; ``wrong`` gives another answer."""

    def __init__(self, layer, wrong):
        super().__init__()
        self.layer, self.W_val, self.wrong = layer, nn.Parameter(layer.weight[layer.weight != 0].detach()), wrong
        self.calls = []

    def forward(self, x):
        self.calls.append(x.requires_grad)
        return self.layer(x) + 0 * self.W_val.sum() + (1.0 if self.wrong else 0.0)


@pytest.fixture
def sparseprop(monkeypatch):
    """A package of that name, whose second way to do a convolution is wrong."""
    made = []

    def conv(layer, vectorizing_over_on):
        made.append(FakeSparse(layer, wrong=vectorizing_over_on))
        return made[-1]

    def linear(layer):
        made.append(FakeSparse(layer, wrong=False))
        return made[-1]

    modules = types.ModuleType("sparseprop.modules")
    modules.SparseConv2d = types.SimpleNamespace(from_dense=conv)
    modules.SparseLinear = types.SimpleNamespace(from_dense=linear)
    monkeypatch.setitem(sys.modules, "sparseprop", types.ModuleType("sparseprop"))
    monkeypatch.setitem(sys.modules, "sparseprop.modules", modules)
    monkeypatch.setattr(rivals.importlib.metadata, "version", lambda name: "9.9")
    return made


def test_a_rival_takes_part_if_it_is_installed_and_only_where_it_is_right(sparseprop):
    assert rivals.sparseprop_version() == "9.9"
    works = rivals.rivals(nn.Conv2d(4, 4, 3), 0.2, torch.randn(2, 4, 5, 5), learns=True)
    assert {name: len(ways) for name, ways in works.items()} == {"SparseProp 0.2": 1}
    (work,) = works["SparseProp 0.2"]
    work()
    right, wrong = sparseprop
    assert right.calls == [False, True, True]  # the question whether it is right, the shape of its output, the work
    assert wrong.calls == [False]
    assert set(rivals.rivals(nn.Linear(8, 4), 0.5, torch.randn(2, 8), learns=False)) == {
        "torch CSR 0.5",
        "SparseProp 0.5",
    }


def test_a_rival_that_is_not_installed_has_no_work(monkeypatch):
    monkeypatch.setitem(sys.modules, "sparseprop.modules", None)
    assert rivals.sparseprop_version() is None
    assert rivals.rivals(nn.Conv2d(4, 4, 3), 0.2, torch.randn(2, 4, 5, 5), learns=True) == {}


def test_rivals_have_as_many_weights_as_the_density_says():
    torch.manual_seed(0)
    layer = nn.Linear(200, 100)
    rivals.rivals(layer, 0.1, torch.randn(2, 200), learns=False)
    share = float((layer.weight != 0).float().mean())
    assert share == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / 20_000) ** 0.5)  # four standard errors


def test_every_way_has_its_network():
    found = {way: networks.network_for(lambda: mlp(20, (30,)), way) for way in (PLAIN, DENSE, MASKED, "sparse 0.2")}
    assert not sparse_weights(found[PLAIN])
    assert gossamer.density(found[DENSE]) == 1.0
    assert all(isinstance(weight, PublishedWeight) for weight in sparse_weights(found[MASKED]).values())
    assert gossamer.density(found["sparse 0.2"]) == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("way", [PLAIN, DENSE, MASKED, "sparse 0.2"])
def test_a_training_step_trains(way):
    torch.manual_seed(0)
    model = networks.network_for(lambda: mlp(20, (30,)), way)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    networks.training(model, torch.randn(8, 20))()
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_predictions_are_made_in_evaluation_mode_and_leave_no_graph():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    networks.one_draw(model, torch.randn(8, 4))()
    assert int(model[1].num_batches_tracked) == 0
    assert not model.training


def test_the_layers_of_the_tables_have_the_shapes_of_their_names():
    for case in layers.LAYERS:
        layer = case.build()
        y = layer(torch.randn(1, *case.shape))
        assert y.shape[0] == 1
        if isinstance(layer, torch.nn.Linear):
            assert case.name == f"linear {layer.in_features}x{layer.out_features}"
        else:
            assert case.name.startswith(f"conv {layer.in_channels}@{case.shape[1]}x{case.shape[2]}")
