"""Dense gradients: the same as a plain network's, asked for only when needed, and gone afterwards."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer
from gossamer import kernels
from gossamer.layers import sparse_weights


@pytest.mark.parametrize("kind", ["plain", "embedding", "recurrent", "attention", "conv"])
def test_dense_gradient_is_that_of_the_plain_network(kind, make, spy):
    torch.manual_seed(0)
    plain = {
        "plain": lambda: nn.Linear(6, 5),
        "embedding": lambda: nn.Embedding(7, 4, padding_idx=2),
        "recurrent": lambda: nn.GRU(6, 5, batch_first=True),
        "attention": lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        "conv": lambda: nn.Conv1d(6, 5, 3, padding=1),
    }[kind]()
    model = gossamer.bayesianize(plain, density=0.5, std="gradient")
    criterion = spy(noise_free=True)
    _, subspace = make(model, addition=criterion, update_period=1)
    x = torch.randint(0, 7, (3, 6)) if kind == "embedding" else torch.randn(3, 6, 6)

    def output(network):
        inputs = (x, x, x) if kind == "attention" else (x,)
        y = network(*inputs)
        return y[0] if isinstance(y, tuple) else y

    reference = gossamer.draw(model, at_mean=True)
    output(reference).square().sum().backward()
    output(model).square().sum().backward()
    subspace.step()
    gradients = [p.grad.flatten() for name, p in reference.named_parameters() if "weight" in name]
    assert len(gradients) == len(criterion.seen) > 0
    for expected, seen in zip(gradients, criterion.seen, strict=True):
        torch.testing.assert_close(seen, expected)


class WithSpare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.spare = nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x):
        return self.frozen(self.used(x))


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("freeze", ["before", "after"])
def test_weights_without_a_gradient_stay_where_they_are(freeze, scope, make, positions):
    torch.manual_seed(0)
    model = gossamer.bayesianize(WithSpare(), density=0.3, std="gradient")
    optimizer = torch.optim.Adam(gossamer.param_groups(model))
    if freeze == "before":
        model.frozen.mean.requires_grad_(False)
    _, subspace = make(model, optimizer, update_period=2, scope=scope)
    if freeze == "after":
        model.frozen.mean.requires_grad_(False)
    start = positions(model)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(8, 9)).square().mean().backward()
        optimizer.step()
        moved = subspace.step()
    assert moved
    after = positions(model)
    assert after["used"] != start["used"]
    assert {name: after[name] for name in ("frozen", "spare")} == {name: start[name] for name in ("frozen", "spare")}
    assert list(subspace.record[-1]["active"]) == ["used"]


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_an_update_without_any_gradient_moves_nothing(scope, mlp, make, positions):
    model = mlp()
    _, subspace = make(model, update_period=1, scope=scope)
    start = positions(model)
    assert subspace.step() is False
    assert positions(model) == start


def test_mean_gradient_is_free_of_noise_at_that_pass_only(mlp, make):
    model = mlp()
    optimizer, subspace = make(model, addition="mean_gradient")
    x = torch.randn(8, 12)
    quiet = []
    for _ in range(10):
        optimizer.zero_grad()
        y = model(x)
        quiet.append(torch.equal(y, model(x)))
        if quiet[-1]:
            torch.testing.assert_close(y, gossamer.draw(model, at_mean=True)(x))
        y.square().mean().backward()
        optimizer.step()
        subspace.step()
    assert [number for number, flag in enumerate(quiet, 1) if flag] == [3, 6, 9]


@pytest.mark.parametrize("evaluate", ["eval", "no_grad", "both"])
def test_mean_gradient_leaves_evaluations_alone(evaluate, mlp, make):
    model = mlp()
    optimizer, subspace = make(model, addition="mean_gradient", update_period=1)  # the coming pass is before an update
    x = torch.randn(8, 12)
    model.train(evaluate == "no_grad")
    with torch.set_grad_enabled(evaluate == "eval"):
        assert not torch.equal(model(x), model(x))
    model.train()
    assert torch.equal(model(x), model(x))
    model(x).square().mean().backward()
    optimizer.step()
    assert not torch.equal(model(x), model(x))  # the gradient is spent: what follows is no part of the update
    assert subspace.step()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5, momentum=None)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_multi_sample_gradient_is_the_mean_of_absolute_gradients(make, spy):
    torch.manual_seed(0)
    model = gossamer.bayesianize(Normed(), density=0.6, init_std=1.0, std="gradient")  # torch draws its noise, as below
    n_draws, x, weights = 3, torch.randn(8, 6), torch.randn(8, 5)
    criterion = spy(n_draws=n_draws)
    optimizer, subspace = make(model, addition=criterion, update_period=1)

    # By hand: local reparameterization of a dense weight with the same noise.
    torch.manual_seed(5)
    expected = torch.zeros(5, 6)
    for _ in range(n_draws):
        dense = model.linear.dense_mean().detach().requires_grad_()
        variance = F.linear(x.square(), model.linear.dense_std().detach().square())
        y = F.linear(x, dense) + variance.sqrt() * torch.randn(8, 5)
        (F.batch_norm(y, None, None, model.norm.weight, model.norm.bias, training=True) * weights).sum().backward()
        expected += dense.grad.abs() / n_draws

    optimizer.zero_grad()
    (model(x) * weights).sum().backward()
    grads = {name: p.grad.clone() for name, p in model.norm.named_parameters()}
    buffers = {name: b.clone() for name, b in model.norm.named_buffers()}
    torch.manual_seed(5)
    with kernels.use("dense"):  # which takes its noise from torch
        assert subspace.step(lambda: (model(x) * weights).sum())
    torch.testing.assert_close(criterion.seen[0].view(5, 6), expected)
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.norm.named_parameters())
    assert all(torch.equal(b, buffers[name]) for name, b in model.norm.named_buffers())
    assert buffers["num_batches_tracked"] == 1
    assert all(weight.probe is None for weight in sparse_weights(model).values())


def test_multi_sample_gradient_needs_a_closure(mlp, make):
    model = mlp()
    _, subspace = make(model, addition="multi_sample_gradient", update_period=1)
    with pytest.raises(ValueError, match=r"call subspace\.step\(closure\)"):
        subspace.step()


def n_alive(sizes):
    """Tensors that own as much memory as a dense weight."""
    tensors = [item for item in gc.get_objects() if type(item) in (Tensor, nn.Parameter)]
    return sum(t.untyped_storage().nbytes() in sizes for t in tensors if t.device.type == "cpu")


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("addition", ["sampled_gradient", "mean_gradient", "multi_sample_gradient", "random"])
def test_nothing_dense_is_alive_between_updates(addition, scope, make):
    torch.manual_seed(0)
    model = gossamer.bayesianize(
        nn.Sequential(nn.Linear(37, 41), nn.Tanh(), nn.Linear(41, 43)), density=0.1, std="gradient"
    )
    optimizer, subspace = make(model, addition=addition, scope=scope)
    x = torch.randn(8, 37)
    for number in range(1, 10):
        armed = number % 3 == 0 and addition in ("sampled_gradient", "mean_gradient")
        assert all((weight.probe is not None) is armed for weight in subspace.weights.values())
        optimizer.zero_grad()
        loss = model(x).square().mean()  # held while memory is looked at, and with it the graph
        loss.backward()
        if armed and scope == "layer":  # only the best entries of it are kept
            assert n_alive({37 * 41 * 4, 41 * 43 * 4}) == 0
        whole = armed and scope == "global"
        watched = [weakref.ref(weight.probe.grad) for weight in subspace.weights.values() if whole]
        assert len(watched) == 2 * whole
        assert all(reference() is not None for reference in watched)
        optimizer.step()
        subspace.step(lambda: model(x).square().mean())
        assert all(reference() is None for reference in watched)
        assert number % 3 or n_alive({37 * 41 * 4, 41 * 43 * 4}) == 0
    assert len(subspace.record) == 3
    assert loss.grad_fn is not None
