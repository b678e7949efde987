"""The best entries of a gradient seen in pieces: the same set as of the whole, at a fraction of its memory."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer
from gossamer.kernels import ConvMap, EmbeddingMap, LinearMap
from gossamer.kernels.ordered import top_mask
from gossamer.layers import PointWeight, Support, sparse_weights
from gossamer.sparsity import gradients as module
from gossamer.sparsity.gradients import Shortlist

# The map, the shape of the weight, of the input and of dL/dy.
MAPS = {
    "linear": (LinearMap(), (12, 7), (5, 7), (5, 12)),
    "sequence": (LinearMap(), (12, 7), (2, 3, 7), (2, 3, 12)),
    "rows": (LinearMap((3, 10)), (12, 7), (5, 7), (5, 7)),
    "conv": (ConvMap((1, 1), (1, 1), (1, 1)), (6, 4, 3, 3), (2, 4, 5, 5), (2, 6, 5, 5)),
    "strided": (ConvMap((2,), (0,), (1,)), (6, 4, 3), (2, 4, 9), (2, 6, 4)),
    "grouped": (ConvMap((1,), (1,), (1,), groups=3), (9, 2, 3), (2, 6, 5), (2, 9, 5)),
    "depthwise": (ConvMap((1,), (1,), (1,), groups=4), (4, 1, 3), (2, 4, 5), (2, 4, 5)),
    "transposed": (ConvMap((2,), (0,), (1,), 2, transposed=True), (6, 2, 2), (3, 6, 4), (3, 4, 8)),
    "embedding": (EmbeddingMap(10, 3), (10, 4), None, (8, 4)),
}


def weight_at(support: Support) -> PointWeight:
    return PointWeight(support, torch.zeros(support.n_active))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("rows", [1, 2, 5, 100])
@pytest.mark.parametrize("name", MAPS)
def test_the_set_is_that_of_the_whole_gradient(name, rows, ties, monkeypatch):
    weight_map, shape, x_shape, y_shape = MAPS[name]
    row_size = math.prod(shape[1:])
    monkeypatch.setattr(module, "LEAST", rows * row_size)
    monkeypatch.setattr(module, "SHARE", math.prod(shape))
    torch.manual_seed(rows)
    for _ in range(5):
        x = torch.randint(0, 10, y_shape[:-1]) if x_shape is None else torch.randn(x_shape)
        grad = torch.randn(y_shape)
        if ties:
            x, grad = (t if t.dtype == torch.int64 else t.sign() * (t.abs() > 0.7) for t in (x, grad))
        size = math.prod(shape)
        position = torch.randperm(size)[: size // 4].sort().values
        frozen = (3 * row_size, 4 * row_size) if name == "embedding" else (0, 0)
        position = position[(position < frozen[0]) | (position >= frozen[1])]
        kept = torch.rand(len(position)) < 0.6
        shortlist = Shortlist(weight_at(Support(shape, position, frozen=frozen)), int((~kept).sum()))
        shortlist(grad, x, weight_map)

        score = weight_map.weight_gradient(grad, x, shape).flatten().abs()
        score[position[kept]] = score[slice(*frozen)] = -math.inf
        expected = top_mask(score, int((~kept).sum())).nonzero().flatten()
        assert torch.equal(shortlist.whole().best(kept), expected)
        assert shortlist.whole().is_finite


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_what_is_not_finite_is_noticed(bad):
    grad = torch.ones(2, 3)
    grad[0, 1] = bad
    shortlist = Shortlist(weight_at(Support((3, 4), torch.tensor([0]))), 1)
    shortlist(grad, torch.ones(2, 4), LinearMap())
    assert not shortlist.whole().is_finite


class Largest(TorchDispatchMode):
    """Bytes of the largest tensor that anything made."""

    def __init__(self):
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for item in result if isinstance(result, tuple | list) else (result,):
            if isinstance(item, torch.Tensor):
                self.bytes = max(self.bytes, item.untyped_storage().nbytes())
        return result


@pytest.mark.parametrize("layer", [nn.Linear(1100, 1000), nn.Conv2d(256, 512, 3, padding=1)], ids=["linear", "conv"])
def test_no_tensor_of_an_update_takes_an_eighth_of_the_gradient(layer):
    torch.manual_seed(0)
    x = torch.randn(2, 1100) if isinstance(layer, nn.Linear) else torch.randn(2, 256, 2, 2)
    model = gossamer.bayesianize(nn.Sequential(layer), density=0.05, keep_dense=(), std="gradient")
    size = sparse_weights(model)["0"].support.size
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.01)
    subspace = gossamer.Subspace(model, optimizer, total_steps=100, update_period=2)
    for _ in range(2):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        with Largest() as largest:
            loss.backward()
            optimizer.step()
            moved = subspace.step()
    assert moved
    assert size > 1_000_000
    assert largest.bytes <= 4 * size / 8


def train(streams: bool, monkeypatch, loss=None, period=3, n_steps=12, density=0.2):
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(2, 6, 3, padding=1), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(96, 5))
    model = gossamer.bayesianize(plain, density=density, keep_dense=(), std="gradient")
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
    with monkeypatch.context() as patch:
        if not streams:
            patch.setattr(gossamer.Subspace, "_streams", lambda self: False)
        subspace = gossamer.Subspace(model, optimizer, total_steps=2 * n_steps, update_period=period)
        used = []
        for step in range(1, n_steps + 1):
            torch.manual_seed(step)
            x, y = torch.randn(8, 2, 4, 4), torch.randint(0, 5, (8,))
            optimizer.zero_grad()
            (loss or (lambda model, x, y: F.cross_entropy(model(x), y).backward()))(model, x, y)
            used.append(len(subspace._collector.shortlists))
            optimizer.step()
            subspace.step()
    return model, subspace, used


@pytest.mark.parametrize("mode", ["once", "twice"])
def test_training_is_the_same_to_the_bit(mode, monkeypatch):
    def accumulate(model, x, y):
        for part in range(2):
            F.cross_entropy(model(x[part::2]), y[part::2]).backward()

    loss = accumulate if mode == "twice" else None
    model, subspace, used = train(True, monkeypatch, loss)
    twin, plain, never = train(False, monkeypatch, loss)
    assert set(never) == {0}
    assert used[2] == (2 if mode == "once" else 0)  # the step before was watched: its gradients were sums, or were not
    assert [update["step"] for update in subspace.record] == [3, 6, 9, 12]
    assert subspace.record == plain.record
    for (name, tensor), other in zip(model.state_dict().items(), twin.state_dict().values(), strict=True):
        assert torch.equal(tensor, other), name


def test_a_second_pass_that_nobody_could_foresee_postpones_the_update(monkeypatch):
    calls = []

    def sometimes(model, x, y):
        calls.append(1)
        for _ in range(2 if len(calls) == 3 else 1):
            F.cross_entropy(model(x), y).backward()

    _, subspace, used = train(True, monkeypatch, sometimes, n_steps=6)
    assert [(u["step"], u.get("postponed")) for u in subspace.record] == [
        (3, "gradients of several backward passes add up"),
        (4, None),
        (6, None),
    ]
    assert used == [0, 0, 2, 0, 0, 2]  # whole gradients at step 4, and pieces again once a step was watched


def test_what_was_watched_survives_a_checkpoint(monkeypatch):
    model, subspace, _ = train(True, monkeypatch, n_steps=5)
    state = subspace.state_dict()
    assert sorted(state["single"]) == ["0", "3"]
    other = gossamer.Subspace(model, subspace.optimizers, total_steps=24, update_period=3)
    other.load_state_dict(state)
    assert sorted(other._collector.shortlists) == ["0", "3"]
