"""Exactly as many entries come as go; all weights at once or one after another, with the same numbers."""

from __future__ import annotations

import collections
import copy
import math
import warnings

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

import gossamer
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.layers.curvature import attach
from gossamer.schedules import constant
from gossamer.sparsity import exchange, gradients, selection
from gossamer.sparsity.criteria import magnitude
from gossamer.sparsity.exchange import Exchange, keep, removal_scores
from gossamer.sparsity.moves import WeightBatch
from gossamer.sparsity.selection import Segments
from gossamer.train.capture import FlatWeights

OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.01, momentum=0.9),
    "Adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
}


@pytest.fixture
def calls(monkeypatch):
    """How often all weights were sorted at once."""
    seen = []
    best = selection.Segments.best
    monkeypatch.setattr(selection.Segments, "best", lambda *a: (seen.append(1), best(*a))[1])
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
        if weight.std is not None:
            weight.set_std(F.softplus(torch.full_like(values, -3.0) if levels else torch.randn_like(values) - 3))


def learn(model) -> None:
    """Standard deviations from curvature are said to learn, so that nobody warns; nobody gives estimates."""
    for weight in sparse_weights(model).values():
        if isinstance(weight, CurvatureWeight):
            attach(weight, 0.01, damping=5e-4)


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
    monkeypatch.setattr(selection, "DEVICES", devices)
    monkeypatch.setattr(gossamer.Subspace, "_streams", lambda self: False)
    optimizer = optimizer_of(gossamer.param_groups(model))
    learn(model)
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
            exact = {"rtol": 0, "atol": 0} if name == "mean" else {"rtol": 1e-5, "atol": 1e-6}
            parameters = [getattr(mine, name), getattr(theirs, name)]
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
    assert calls or actual.scope == "global"
    assert actual.record == expected.record
    assert [list(entry) for entry in actual.record] == [list(entry) for entry in expected.record]
    assert_same(other, model, (actual_optimizer, expected_optimizer))
    return actual.record


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("levels", [0, 4])
@pytest.mark.parametrize("kind", ["curvature", "gradient", "reference", "rigl"])
def test_the_same_as_one_after_another(kind, levels, optimizer, monkeypatch, calls):
    if kind == "rigl":
        model, removal = gossamer.sparsify(network(), density=0.3), "magnitude"
    else:
        options = {"mode": "reference"} if kind == "reference" else {"std": kind}
        model, removal = gossamer.bayesianize(network(), density=0.3, **options), "snr_abs"
    spread(model, levels)
    record = compare(model, monkeypatch, calls, optimizer, levels=levels, removal=removal)
    assert len(record) == 4
    assert all(entry["removed"]["4"] == 0 for entry in record)  # one entry: nothing to remove, and it is not lost
    assert sum(sum(entry["replaced"].values()) for entry in record) > 20


@pytest.mark.parametrize(
    "options",
    [
        {"removal": "magnitude"},
        {"removal": "expected_abs"},
        {"removal": "expected_exp", "regrow_std": "mean_raw"},
        {"removal": "snr", "regrow_std": 0.2},
        {"removal": "snr_exp", "replacement_rate": constant(0.99)},
        {"removal": "snr_abs", "replacement_rate": constant(0.0)},
        {"addition": "mean_gradient"},
    ],
)
@pytest.mark.parametrize("limit", [1, 300, exchange.LIMIT])
def test_options_and_groups(options, limit, monkeypatch, calls):
    monkeypatch.setattr(exchange, "LIMIT", limit)
    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
    spread(model)
    compare(model, monkeypatch, calls, **options)


def test_entries_that_are_not_numbers_go_first(monkeypatch, calls):
    def prepare(model, number):
        weight = sparse_weights(model)["1"]
        weight.mean.data[[number, number + 3]] = math.nan
        weight.mean.data[number + 5] = -0.0
        weight.mean.data[number + 6] = 0.0

    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
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
    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
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
    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
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
def test_the_same_for_every_criterion_scope_and_mixture(options, change, monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
    spread(model)
    if change is not None:
        change(model)
    record = compare(model, monkeypatch, calls, **options)
    assert sum(sum(entry["replaced"].values()) for entry in record) > 20


def test_storage_stays_and_positions_know_that_they_changed(monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3, std="gradient")
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


def worked(devices, monkeypatch, n_updates=3, kind="reference", optimizer="SGD"):
    """Updates with a working copy in bfloat16, and the calls of the last one."""
    monkeypatch.setattr(selection, "DEVICES", devices)
    options = {"mode": "reference"} if kind == "reference" else {"std": kind}
    model = gossamer.bayesianize(layers(21), density=0.2, **options)
    spread(model)
    learn(model)
    made = OPTIMIZERS[optimizer](gossamer.param_groups(model))
    subspace = gossamer.Subspace(model, made, total_steps=1000, update_period=1)
    working = FlatWeights(model, torch.bfloat16)
    for number in range(n_updates):
        torch.manual_seed(number)
        for leaf in working.leaves:
            leaf.grad = torch.randn_like(leaf)
        working.collect()
        working.differentiate(torch.tensor(1e-7))
        made.step()
        with Counted() as counted:
            assert subspace.step()
            working.refresh()
    return model, made, subspace, working, counted.calls


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("kind", ["curvature", "gradient", "reference"])
def test_working_copies_in_bfloat16(kind, optimizer, monkeypatch, calls):
    one, one_optimizer, expected, copied, _ = worked(set(), monkeypatch, kind=kind, optimizer=optimizer)
    other, other_optimizer, actual, working, _ = worked({"cpu"}, monkeypatch, kind=kind, optimizer=optimizer)
    assert calls
    assert actual.record == expected.record
    assert_same(other, one, (other_optimizer, one_optimizer))
    assert torch.equal(working.dense_mean, copied.dense_mean)


@pytest.mark.parametrize("kind", ["curvature", "reference"])
def test_an_update_is_few_calls_and_waits_once(kind, monkeypatch):
    """21 weights, as a ResNet-18 has, with momentum, the working copy and the preparation of the next update."""
    *_, before = worked(set(), monkeypatch, kind=kind)
    *_, after = worked({"cpu"}, monkeypatch, kind=kind)
    assert before.total() > 2 * after.total()
    assert after.total() < 370
    views = ("detach", "view", "split", "slice", "select", "unbind", "expand", "lift_fresh", "alias", "as_strided")
    launched = sum(n for name, n in after.items() if not name.removeprefix("aten.").startswith(views))
    assert launched < 220
    waiting = ("aten._local_scalar_dense", "aten.nonzero", "aten.masked_select", "aten.equal", "aten.is_nonzero")
    assert not [name for name in after if name.startswith(waiting)]


@pytest.mark.parametrize(("whole", "streamed"), [(gradients.WHOLE, 0), (0, 6)])
def test_gradients_are_whole_where_a_gpu_can_hold_them(whole, streamed, monkeypatch, calls):
    """Elsewhere they pass by in pieces, and the choice is the same."""

    def trained(devices):
        monkeypatch.setattr(selection, "DEVICES", devices)
        monkeypatch.setattr(gradients, "WHOLE", whole)
        torch.manual_seed(0)
        model = gossamer.bayesianize(
            nn.Sequential(nn.Linear(30, 20), nn.ReLU(), nn.Linear(20, 5)), density=0.3, std="gradient"
        )
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        subspace = gossamer.Subspace(model, optimizer, total_steps=100, update_period=3, removal="magnitude")
        for step in range(10):
            torch.manual_seed(step)
            with gossamer.kernels.use("dense"):
                model(torch.randn(16, 30)).square().mean().backward()
            in_pieces.append(len(subspace._collector.shortlists))
            optimizer.step()
            subspace.step()
            optimizer.zero_grad()
        return model, optimizer, subspace

    in_pieces: list[int] = []
    one, one_optimizer, expected = trained(set())
    assert not calls
    in_pieces.clear()
    other, other_optimizer, actual = trained({"cpu"})
    assert calls
    assert sum(in_pieces) == streamed
    assert actual.record == expected.record
    assert len(actual.record) == 3
    assert_same(other, one, (other_optimizer, one_optimizer))


@pytest.mark.gpu
@pytest.mark.parametrize("levels", [0, 4])
@pytest.mark.parametrize("convert", [gossamer.bayesianize, gossamer.sparsify])
def test_the_same_on_a_gpu(convert, levels, monkeypatch, calls):
    model = convert(network(), density=0.3).cuda()
    spread(model, levels)
    compare(model, monkeypatch, calls, levels=levels, removal="magnitude")


@pytest.mark.gpu
def test_the_host_waits_once_on_a_gpu(monkeypatch, calls):
    model = gossamer.bayesianize(network(), density=0.3, std="gradient").cuda()
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


def kept(scores, rate, scope):
    segments = Segments([len(score) for score in scores], torch.device("cpu"))
    mask, removed = keep(torch.cat(scores), segments, rate, scope)
    parts = mask.split(segments.lengths)
    assert removed == [int((~part).sum()) for part in parts]
    return [part.tolist() for part in parts]


@pytest.mark.parametrize(
    ("rate", "scope", "a", "b"),
    [
        (0.5, "layer", [False, True, True, False], [False, True]),
        (0.5, "global", [False, True, True, False], [False, True]),  # 3 of 6; b's best is safe
        (0.99, "layer", [False, True, False, False], [False, True]),
        (0.99, "global", [False, True, False, False], [False, True]),
        (1.0, "layer", [False] * 4, [False] * 2),
        (1.0, "global", [False, True, False, False], [False, True]),
        (0.0, "global", [True] * 4, [True] * 2),
    ],
)
def test_keep(rate, scope, a, b):
    assert kept([torch.tensor([1.0, 9.0, 8.0, 7.0]), torch.tensor([0.1, 0.2])], rate, scope) == [a, b]


def test_a_lone_infinite_score_does_not_push_out_the_best_of_another_weight(hand_made):
    """±∞ and NaN of a criterion become finite, below and above all else."""
    values = torch.tensor([math.inf, math.inf, 0.0, -math.inf, math.nan, math.inf])
    score = removal_scores(lambda stats: values, WeightBatch({"": hand_made.layer.weight}))
    assert score.isfinite().all()
    assert score[3] == score[4] < 0 < score[0]
    assert values[0] == math.inf  # what the criterion gave is its own
    assert kept([score, torch.tensor([0.0, -1.0])], 0.75, "global") == [[True] + [False] * 5, [True, False]]


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_only_what_may_be_added_is(scope, hand_made):
    hand_made.layer.support.frozen = (0, 4)
    hand_made.layer.support.position.copy_(torch.tensor([4, 5, 7, 8, 9, 11]))
    worst = Exchange(lambda stats: torch.tensor([0.0, 1, 0, 1, 0, 1]), lambda stats: -torch.inf * stats.grad, scope)
    record = worst({"": hand_made.layer.weight}, {"": torch.ones(3, 4)}, {}, 0.5)
    assert record == {"removed": {"": 3}, "replaced": {"": 1}, "active": {"": 6}}
    assert hand_made.active() == [4, 5, 6, 7, 8, 11]  # of equal scores the first positions
