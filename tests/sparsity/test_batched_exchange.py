"""All weights at once or one after another: the same entries, the same numbers, in a tenth of the calls."""

from __future__ import annotations

import collections
import copy
import math
import warnings

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer
from gossamer.capture import FlatWeights
from gossamer.layers import sparse_weights
from gossamer.schedules import constant
from gossamer.sparsity import batched_exchange
from gossamer.sparsity import subspace as subspace_module
from gossamer.sparsity.criteria import magnitude

OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
}


@pytest.fixture
def calls(monkeypatch):
    """How often all weights were moved at once."""
    seen = []
    exchange = batched_exchange.exchange
    monkeypatch.setattr(subspace_module, "exchange", lambda *a, **k: (seen.append(1), exchange(*a, **k))[1])
    return seen


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.ModuleList(
        [
            nn.Conv2d(3, 8, 3),  # the first stays dense
            nn.Conv2d(8, 12, 3, groups=2),
            nn.Embedding(9, 5, padding_idx=4),
            nn.Linear(12, 7),
            nn.Linear(3, 1),
        ]
    )


def spread(model, levels: int = 0) -> None:
    """Means and stds of every size; with ``levels``, so few different ones that most are tied."""
    torch.manual_seed(1)
    for weight in sparse_weights(model).values():
        values = torch.randn_like(weight.mean)
        weight.mean.data.copy_((values * levels).round() / levels if levels else values)
        if "raw_std" in weight.vectors:
            weight.raw_std.data.copy_(torch.full_like(values, -3.0) if levels else torch.randn_like(values) - 3)


def with_gradients(model, number: int, levels: int = 0) -> None:
    """Gradients of every vector, and dense ones where an update has asked for them."""
    torch.manual_seed(100 + number)
    for weight in sparse_weights(model).values():
        for parameter in weight.parameters():
            parameter.grad = torch.randn_like(parameter)
        grad = torch.randn(weight.support.shape, dtype=weight.dtype, device=weight.device)
        if levels:
            grad = (grad * levels).round() / levels
        if weight.probe is not None:
            weight.probe.grad = grad.to(memory_format=torch.channels_last) if grad.dim() == 4 else grad


def run(model, optimizer_of, monkeypatch, devices, *, levels=0, n_updates=4, spoil=None, prepare=None, **options):
    monkeypatch.setattr(batched_exchange, "DEVICES", devices)
    monkeypatch.setattr(gossamer.Subspace, "_streams", lambda self: False)
    optimizer = optimizer_of(gossamer.param_groups(model))
    options = {"replacement_rate": constant(0.3), "until": 1.0, "update_period": 1} | options
    subspace = gossamer.Subspace(model, optimizer, total_steps=100, **options)
    for number in range(n_updates):
        with_gradients(model, number, levels)
        if spoil is not None:
            spoil(model, number)
        optimizer.step()
        if prepare is not None:
            prepare(model, number)
        subspace.step()
    return optimizer, subspace


def assert_same(one, other, optimizers) -> None:
    pairs = zip(sparse_weights(one).values(), sparse_weights(other).values(), strict=True)
    for mine, theirs in pairs:
        if mine.support.position is not None:
            assert torch.equal(mine.support.position, theirs.support.position)
            mine.support.check(mine.support.position)
        for name in mine.vectors:
            # The std of a new entry is a mean, and sums may be rounded in another order; all else is exact.
            exact = {"rtol": 1e-5, "atol": 1e-6} if name == "raw_std" else {"rtol": 0, "atol": 0}
            parameters = [mine.get_parameter(name), theirs.get_parameter(name)]
            states = [optimizer.state.get(p, {}) for optimizer, p in zip(optimizers, parameters, strict=True)]
            vectors = [{"": p.detach(), "grad": p.grad, **s} for p, s in zip(parameters, states, strict=True)]
            torch.testing.assert_close(*vectors, **exact)


def compare(model, monkeypatch, calls, optimizer="SGD", **options):
    """Records of both ways, after a check that they ended in the same place."""
    other = copy.deepcopy(model)
    of = OPTIMIZERS[optimizer]
    expected_optimizer, expected = run(model, of, monkeypatch, set(), **options)
    assert not calls
    actual_optimizer, actual = run(other, of, monkeypatch, {"cpu", "cuda"}, **options)
    assert calls
    assert actual.record == expected.record
    assert [list(entry) for entry in actual.record] == [list(entry) for entry in expected.record]
    assert_same(other, model, (actual_optimizer, expected_optimizer))
    return actual.record


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("levels", [0, 4])
@pytest.mark.parametrize("kind", ["ssvi", "ssvi reference", "rigl"])
def test_the_same_as_one_after_another(kind, levels, optimizer, monkeypatch, calls):
    if kind == "rigl":
        model, removal = gossamer.sparsify(network(), density=0.3), "magnitude"
    else:
        mode = "reference" if "reference" in kind else "default"
        model, removal = gossamer.bayesianize(network(), density=0.3, mode=mode), "snr_abs"
    spread(model, levels)
    record = compare(model, monkeypatch, calls, optimizer, levels=levels, removal=removal)
    assert len(calls) == len(record) == 4
    assert all(entry["removed"]["4"] == 0 for entry in record)  # one entry: nothing to remove, and it is not lost
    assert sum(sum(entry["replaced"].values()) for entry in record) > 20


@pytest.mark.parametrize(
    "options",
    [
        {"removal": "magnitude", "compare": ("snr", "expected_abs", "snr_exp", "magnitude")},
        {"removal": "expected_exp", "regrow_std": "mean_raw"},
        {"removal": "snr", "regrow_std": 0.2},
        {"removal": "snr_exp", "replacement_rate": constant(0.99)},
        {"removal": "snr_abs", "replacement_rate": constant(0.0), "compare": ("magnitude",)},
        {"addition": "mean_gradient"},
    ],
)
@pytest.mark.parametrize("limit", [1, 300, batched_exchange.LIMIT])
def test_options_and_groups(options, limit, monkeypatch, calls):
    monkeypatch.setattr(batched_exchange, "LIMIT", limit)
    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    compare(model, monkeypatch, calls, **options)


def test_entries_that_are_not_numbers_go_first(monkeypatch, calls):
    def prepare(model, number):
        weight = sparse_weights(model)["1"]
        weight.mean.data[[number, number + 3]] = math.nan
        weight.mean.data[number + 5] = -0.0
        weight.mean.data[number + 6] = 0.0

    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    compare(model, monkeypatch, calls, prepare=prepare)
    assert not any(weight.mean.isnan().any() for weight in sparse_weights(model).values())


def test_a_gradient_that_is_not_finite_changes_nothing(monkeypatch, calls):
    def spoil(model, number):
        if number == 1:
            weight = sparse_weights(model)["3"]
            before.append(copy.deepcopy(model.state_dict()))
            weight.probe.grad.view(-1)[int(weight.support.position[2])] = math.nan
        if number == 2:
            after.append(copy.deepcopy(model.state_dict()))

    before, after = [], []
    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    record = compare(model, monkeypatch, calls, spoil=spoil)
    assert [entry.get("postponed") for entry in record] == [None, "a gradient is not finite", None, None]
    assert all(torch.equal(before[1][name], after[1][name]) for name in before[1] if "position" in name)


def test_weights_without_gradient_or_state_follow_too(monkeypatch, calls):
    def some(groups):
        return torch.optim.SGD([{"params": group["params"][::2]} for group in groups], lr=0.01, momentum=0.9)

    def prepare(model, number):
        sparse_weights(model)["1"].mean.grad = None

    monkeypatch.setitem(OPTIMIZERS, "some", some)
    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    compare(model, monkeypatch, calls, "some", prepare=prepare)
    weights = sparse_weights(model)
    assert weights["1"].mean.grad is None
    assert weights["1"].raw_std.grad is not None


@pytest.mark.parametrize(
    ("options", "change"),
    [
        ({"removal": lambda stats: magnitude(stats)}, None),
        ({"addition": lambda stats: stats.grad.abs()}, None),
        ({"addition": "random"}, None),
        ({"scope": "global"}, None),
        ({"replacement_rate": constant(1.0)}, None),
        ({}, lambda model: setattr(sparse_weights(model)["1"], "mode", "reference")),
        ({}, lambda model: sparse_weights(model)["1"].to(torch.float64)),
    ],
)
def test_anything_else_goes_one_after_another(options, change, monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    if change is not None:
        change(model)
    _, subspace = run(model, OPTIMIZERS["SGD"], monkeypatch, {"cpu"}, **options)
    assert not calls
    assert sum(sum(entry["replaced"].values()) for entry in subspace.record) > 20


def test_storage_stays_and_positions_know_that_they_changed(monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3)
    spread(model)
    weights = [weight for weight in sparse_weights(model).values() if not weight.support.is_dense]
    tensors = [t for w in weights for t in (w.support.position, w.mean, w.raw_std)]
    before = [t.data_ptr() for t in tensors]
    versions = [w.support.position._version for w in weights]
    run(model, OPTIMIZERS["SGD"], monkeypatch, {"cpu"}, n_updates=1)
    assert calls
    after = [t for w in weights for t in (w.support.position, w.mean, w.raw_std)]
    assert all(a is b for a, b in zip(after, tensors, strict=True))
    assert [t.data_ptr() for t in after] == before
    assert all(w.support.position._version > v for w, v in zip(weights, versions, strict=True))


def layers(n: int) -> nn.Module:
    """As many weights as a ResNet-18 has, but small ones."""
    torch.manual_seed(0)
    return nn.ModuleList([nn.Conv2d(4, 8, 3) if i % 4 else nn.Linear(20, 8) for i in range(n)])


class Counted(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: collections.Counter[str] = collections.Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls[str(function)] += 1
        return function(*args, **(kwargs or {}))


def worked(devices, monkeypatch, n_updates=3, mode="reference", optimizer="SGD"):
    """Updates with a working copy in bfloat16, and the calls of the last one."""
    monkeypatch.setattr(batched_exchange, "DEVICES", devices)
    model = gossamer.bayesianize(layers(21), density=0.2, mode=mode)
    spread(model)
    made = OPTIMIZERS[optimizer](gossamer.param_groups(model))
    subspace = gossamer.Subspace(model, made, total_steps=1000, update_period=1)
    working = FlatWeights(model, torch.bfloat16)
    for number in range(n_updates):
        torch.manual_seed(number)
        for leaf in working.leaves:
            leaf.grad = torch.randn_like(leaf)
        working.gather(torch.tensor(1e-7))
        made.step()
        with Counted() as counted:
            assert subspace.step()
            working.refresh()
    return model, made, subspace, working, counted.calls


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("mode", ["default", "reference"])
def test_working_copies_in_bfloat16(mode, optimizer, monkeypatch, calls):
    one, one_optimizer, expected, copied, _ = worked(set(), monkeypatch, mode=mode, optimizer=optimizer)
    other, other_optimizer, actual, working, _ = worked({"cpu"}, monkeypatch, mode=mode, optimizer=optimizer)
    assert len(calls) == 3
    assert actual.record == expected.record
    assert_same(other, one, (other_optimizer, one_optimizer))
    assert torch.equal(working.dense_mean, copied.dense_mean)


def test_an_update_is_few_calls_and_waits_once(monkeypatch):
    """21 weights, as a ResNet-18 has, with momentum, the working copy and the preparation of the next update."""
    *_, before = worked(set(), monkeypatch)
    *_, after = worked({"cpu"}, monkeypatch)
    assert before.total() > 1500
    assert after.total() < 320
    views = ("detach", "view", "split", "slice", "select", "unbind", "expand", "lift_fresh", "alias", "as_strided")
    launched = sum(n for name, n in after.items() if not name.removeprefix("aten.").startswith(views))
    assert launched < 220
    waiting = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal", "aten.is_nonzero")
    assert not [name for name in after if name.startswith(waiting)]


@pytest.mark.parametrize(("whole", "times"), [(batched_exchange.WHOLE, 3), (0, 0)])
def test_gradients_are_whole_where_a_gpu_can_hold_them(whole, times, monkeypatch, calls):
    """Elsewhere they pass by in pieces, and the choice is the same."""

    def trained(devices):
        monkeypatch.setattr(batched_exchange, "DEVICES", devices)
        monkeypatch.setattr(batched_exchange, "WHOLE", whole)
        torch.manual_seed(0)
        model = gossamer.bayesianize(nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5)), density=0.3)
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        subspace = gossamer.Subspace(model, optimizer, total_steps=100, update_period=3, removal="magnitude")
        for step in range(10):
            torch.manual_seed(step)
            with gossamer.kernels.use("dense"):
                model(torch.randn(16, 30)).square().mean().backward()
            optimizer.step()
            subspace.step()
            optimizer.zero_grad()
        return model, optimizer, subspace

    one, one_optimizer, expected = trained(set())
    assert not calls
    other, other_optimizer, actual = trained({"cpu"})
    assert len(calls) == times
    assert actual.record == expected.record
    assert len(actual.record) == 3
    assert_same(other, one, (other_optimizer, one_optimizer))


@pytest.mark.gpu
@pytest.mark.parametrize("levels", [0, 4])
@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
def test_the_same_on_a_gpu(convert, levels, monkeypatch, calls):
    model = convert(network(), density=0.3).cuda()
    spread(model, levels)
    compare(model, monkeypatch, calls, levels=levels, removal="magnitude", compare=("magnitude",))
    assert len(calls) == 4


@pytest.mark.gpu
def test_the_host_waits_once_on_a_gpu(monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3).cuda()
    spread(model)
    optimizer = OPTIMIZERS["SGD"](gossamer.param_groups(model))
    subspace = gossamer.Subspace(model, optimizer, total_steps=100, update_period=1)
    with_gradients(model, 0)
    optimizer.step()
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    try:
        torch.cuda.set_sync_debug_mode("warn")
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            assert subspace.step()
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    assert calls
    assert len([w for w in waits if "synchronizing CUDA operation" in str(w.message)]) == 1
