"""Mistakes in a loop of one's own that would cost the posterior in silence."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import gossamer

N = 150


def parts(n_data=N, optimizer=torch.optim.Adam):
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)), density=0.3)
    optimizer = optimizer(gossamer.param_groups(model), lr=0.01)
    curvature = gossamer.Curvature(model, optimizer, n_data=n_data)
    return model, optimizer, curvature, gossamer.Subspace(model, optimizer, total_steps=200, update_period=10)


def loop(model, optimizer, *subspaces, epochs=15, reduction="mean"):
    torch.manual_seed(1)
    data = TensorDataset(torch.randn(N, 6), torch.randint(3, (N,)))
    for _ in range(epochs):
        for x, y in DataLoader(data, batch_size=32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(x), y, reduction=reduction).backward()
            optimizer.step()
            for subspace in subspaces:
                subspace.step()


def said(act):
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        act()
    return [str(one.message) for one in found]


def test_a_loop_without_mistakes_says_nothing():
    model, optimizer, _, subspace = parts()
    assert said(lambda: loop(model, optimizer, subspace)) == []


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("never", "without subspace.step()"),
        ("summed", "the sum over a batch of 32 examples"),
        ("batches", "the loop passes over 150 examples"),
        ("few", "n_data is 5, but a batch has 32 examples"),
        ("two", "another Subspace was made"),
    ],
)
def test_each_mistake_is_said_once(kind, message):
    model, optimizer, _, subspace = parts({"batches": 10_000, "few": 5}.get(kind, N))
    subspaces = [] if kind == "never" else [subspace]
    if kind == "two":
        subspaces.append(gossamer.Subspace(model, optimizer, total_steps=200))
    reduction = "sum" if kind == "summed" else "mean"
    (found,) = said(lambda: loop(model, optimizer, *subspaces, reduction=reduction))
    assert message in found


def test_another_optimizer_that_takes_over():
    model, optimizer, _, subspace = parts()
    loop(model, optimizer, subspace, epochs=2)
    other = torch.optim.SGD(gossamer.param_groups(model), lr=0.01, momentum=0.9)
    (found,) = said(lambda: loop(model, other, subspace))
    assert "takes no steps any more" in found


def test_a_new_subspace_with_the_old_curvature():
    model, *_ = parts()
    other = torch.optim.SGD(gossamer.param_groups(model), lr=0.01, momentum=0.9)
    subspace = gossamer.Subspace(model, other, total_steps=200, update_period=10)
    (found,) = said(lambda: loop(model, other, subspace))
    assert "σ has not learnt for 20 steps" in found


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda parts: pickle.loads(pickle.dumps(parts))])
def test_copies_go_on_as_the_original(copied):
    model, optimizer, curvature, _ = parts()
    loop(model, optimizer, epochs=1)
    others = copied((model, optimizer, curvature))
    loop(model, optimizer, epochs=1)
    loop(*others[:2], epochs=1)
    assert torch.equal(model[0].std, others[0][0].std)
    assert torch.equal(model[0].mean, others[0][0].mean)


def test_the_state_of_another_density_is_refused_as_it_is_loaded():
    model, optimizer, _, subspace = parts()
    loop(model, optimizer, subspace, epochs=1)
    before = model[0].mean.detach().clone()
    other = gossamer.bayesianize(nn.Sequential(nn.Linear(6, 20), nn.ReLU(), nn.Linear(20, 3)), density=0.1)
    with pytest.raises(
        RuntimeError, match=r"0\.weight of the state has 12 active weights, that of the network in train"
    ):
        model.load_state_dict(other.state_dict())
    assert torch.equal(model[0].mean, before)
    loop(model, optimizer, subspace, epochs=1)
    other.load_state_dict(model.state_dict())  # what no subspace trains takes any
