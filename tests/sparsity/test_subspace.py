"""The subspace: exact sets on a weight made by hand, the clock, the shared budget, the record, the errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import gossamer
from gossamer import distributed
from gossamer.layers import sparse_weights
from gossamer.schedules import constant, cosine
from gossamer.sparsity.criteria import REMOVAL, snr_abs, snr_abs_reference
from gossamer.types import Step


def n_active(model):
    return {name: weight.support.n_active for name, weight in sparse_weights(model).items()}


def one_update(case, *, rate, removal="magnitude", regrow_std=None, order="optimizer first"):
    """Train one step at a learning rate of zero, then move; momentum buffers are 100 + position."""
    optimizer = torch.optim.SGD(gossamer.param_groups(case.layer), lr=0.0, momentum=0.9)
    subspace = gossamer.Subspace(
        case.layer,
        optimizer,
        total_steps=10,
        update_period=1,
        replacement_rate=constant(rate),
        removal=removal,
        regrow_std=regrow_std,
    )
    case.loss().backward()
    if order == "optimizer first":
        optimizer.step()
    for name in case.layer.weight.vectors:
        parameter = case.layer.weight.get_parameter(name)
        optimizer.state[parameter]["momentum_buffer"] = 100.0 + case.layer.support.position.float()
        parameter.grad = 200.0 + case.layer.support.position.float()
    assert subspace.step() is True
    return optimizer, subspace


@pytest.mark.parametrize(
    ("rate", "active"),
    [
        (0.0, [0, 2, 5, 7, 8, 11]),
        (0.2, [0, 5, 7, 8, 10, 11]),  # int(1.2) = 1: 2 leaves, 10 comes
        (0.5, [0, 1, 2, 5, 8, 10]),  # 2, 7, 11 leave, 10, 1 and again 2 come
        (0.7, [0, 1, 2, 4, 5, 10]),  # 8 leaves too, 4 comes
        (1.0, [1, 2, 4, 7, 9, 10]),  # all leave, 2 and 7 come back
    ],
)
@pytest.mark.parametrize("kind", ["hand_made", "hand_made_points"])
def test_replacement_rate_to_exact_set(kind, rate, active, request):
    case = request.getfixturevalue(kind)
    one_update(case, rate=rate)
    assert case.active() == active


@pytest.mark.parametrize("order", ["optimizer first", "subspace first"])
def test_who_stays_keeps_everything_and_who_is_new_starts_afresh(hand_made, order):
    layer = hand_made.layer
    mean, std, raw = (hand_made.by_position(v) for v in (layer.mean, layer.std, layer.weight.raw_std))
    optimizer, subspace = one_update(hand_made, rate=0.5, order=order)
    for position, value in hand_made.by_position(layer.mean).items():
        assert value == mean.get(position, 0.0)  # 2 was removed and taken in again
    new_std = (0.1 + 0.3 + 0.5) / 3  # of the survivors 0, 5 and 8
    for position, value in hand_made.by_position(layer.std).items():
        assert value == pytest.approx(std.get(position, new_std), rel=1e-6)
    for position, value in hand_made.by_position(layer.weight.raw_std).items():
        assert position not in raw or value == raw[position]
    for parameter in (layer.mean, layer.weight.raw_std):
        buffer = hand_made.by_position(optimizer.state[parameter]["momentum_buffer"])
        assert buffer == {0: 100, 1: 0, 2: 102, 5: 105, 8: 108, 10: 0}
        assert hand_made.by_position(parameter.grad) == {0: 200, 1: 0, 2: 202, 5: 205, 8: 208, 10: 0}
    assert subspace.record == [{"step": 1, "rate": 0.5, "removed": {"": 3}, "replaced": {"": 2}, "active": {"": 6}}]
    before = hand_made.by_position(layer.mean)
    optimizer.param_groups[0]["lr"] = 1.0
    optimizer.step()  # the gradient of the last pass belongs to the entries that were active in it
    after = hand_made.by_position(layer.mean)
    assert after[1] == 0
    assert after[10] == 0
    assert after[0] == before[0] - (0.9 * 100 + 200)


@pytest.mark.parametrize(
    ("regrow_std", "expected"),
    [
        ("mean", (0.1 + 0.3 + 0.5) / 3),
        ("mean_raw", math.log1p(math.exp(sum(math.log(math.expm1(s)) for s in (0.1, 0.3, 0.5)) / 3))),
        (0.123, 0.123),
        (7, 7.0),
    ],
)
def test_std_of_a_new_entry(hand_made, regrow_std, expected):
    one_update(hand_made, rate=0.5, regrow_std=regrow_std)
    std = hand_made.by_position(hand_made.layer.std)
    assert [std[1], std[10]] == pytest.approx([expected, expected], rel=1e-5)


def test_ties_are_broken_by_position(hand_made):
    hand_made.layer.mean.data.fill_(1.0)
    hand_made.gradient.fill_(-2.0)
    one_update(hand_made, rate=0.5)
    assert hand_made.active() == [0, 1, 2, 3, 4, 5]  # 0, 2, 5 stay, then the first three others


def train(subspace_options, seed=0, steps=60, order=("optimizer", "subspace")):
    torch.manual_seed(seed)
    model = gossamer.bayesianize(
        nn.Sequential(nn.Linear(9, 14), nn.Tanh(), nn.Linear(14, 3)), density=0.3, std="gradient"
    )
    optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
    subspace = gossamer.Subspace(model, optimizer, total_steps=steps, **subspace_options)
    x, moved = torch.randn(32, 9), []
    for number in range(1, steps + 1):
        optimizer.zero_grad()
        (model(x).square().mean() + gossamer.kl(model) / 1000).backward()
        for part in order:
            if part == "optimizer":
                optimizer.step()
            elif subspace.step():
                moved.append(number)
    return model, subspace, moved


@pytest.mark.parametrize("addition", ["sampled_gradient", "random"])
def test_the_same_seed_gives_the_same_supports(addition):
    options = {"update_period": 10, "addition": addition}
    first, second, other = (train(options, seed)[0].state_dict() for seed in (0, 0, 1))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["0.weight.support.position"], other["0.weight.support.position"])


@pytest.mark.parametrize("order", [("optimizer", "subspace"), ("subspace", "optimizer")])
@pytest.mark.parametrize(
    ("period", "until", "expected"),
    [(7, 0.75, range(7, 45, 7)), (15, 0.75, [15, 30]), (1, 0.1, range(1, 6)), (20, 1.0, [20, 40]), (5, 0.0, [])],
)
def test_clock_and_cosine_rate(period, until, expected, order):
    model, subspace, moved = train({"update_period": period, "until": until}, order=order)
    assert moved == list(expected)
    rate = cosine(0.3, max(1, int(until * 60)))
    counts = n_active(model)
    for entry, step in zip(subspace.record, expected, strict=True):
        assert entry["step"] == step
        assert entry["rate"] == rate(step)
        assert entry["removed"] == {name: int(rate(step) * count) for name, count in counts.items()}
        assert entry["active"] == counts


def test_reference_mode_is_the_released_code(hand_made_reference, hand_made):
    case = hand_made_reference
    reference = one_update(case, rate=0.5, removal="snr_abs")[1]
    assert reference.removal is snr_abs_reference
    assert case.active() == [0, 1, 2, 5, 8, 10]  # |mean|/std of 0, 5 and 8 is 60, 17 and 8, of the others 5
    raw = case.by_position(case.layer.weight.raw_std)
    assert raw[10] == pytest.approx(sum(math.log(math.expm1(std)) for std in (0.1, 0.3, 0.5)) / 3, rel=1e-5)

    ours = one_update(hand_made, rate=0.5, removal="snr_abs")[1]
    assert ours.removal is snr_abs
    for subspace, its_case, spent in ((reference, case, True), (ours, hand_made, False)):
        its_case.loss().backward()
        assert subspace(Step(2, its_case.layer, subspace.optimizers[0], its_case.loss)) is spent
        assert subspace.record[-1]["step"] == 2


def test_as_a_rule_only_updates_spend_the_gradient(hand_made_reference):
    case = hand_made_reference
    optimizer = torch.optim.SGD(gossamer.param_groups(case.layer), lr=0.0)
    subspace = gossamer.Subspace(case.layer, optimizer, total_steps=10, update_period=3)
    spent = []
    for number in range(1, 11):
        optimizer.zero_grad()
        case.loss().backward()
        spent.append(subspace(Step(number, case.layer, optimizer, case.loss)))
    assert [number for number, flag in enumerate(spent, 1) if flag] == [3, 6]


def test_a_global_budget_moves_to_where_the_gradient_is():
    torch.manual_seed(0)
    model = gossamer.bayesianize(
        nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 2)), 0.25, allocation="global", std="gradient"
    )
    optimizer = torch.optim.Adam(gossamer.param_groups(model), lr=0.01)
    options = {"total_steps": 20, "update_period": 1, "replacement_rate": constant(0.9)}
    subspace = gossamer.Subspace(model, optimizer, **options)
    assert subspace.scope == "global"
    x = torch.randn(16, 8)
    for _ in range(10):
        optimizer.zero_grad()
        (model[0](x).square().sum() * 1e-9 + model[1](x).square().sum()).backward()
        optimizer.step()
        subspace.step()
    assert n_active(model) == {"0": 20 - 16, "1": 16}
    # A weight that is full still gives entries away, also in a training that is resumed here.
    resumed = gossamer.Subspace(model, optimizer, **options)
    resumed.index = 0
    assert set(resumed.weights) == {"0", "1"}
    for _ in range(10):
        optimizer.zero_grad()
        (model[0](x).square().sum() + model[1](x).square().sum() * 1e-9).backward()
        optimizer.step()
        resumed.step()
    assert n_active(model)["0"] > 10


BAD_ARGUMENTS = {
    "total_steps": ({"total_steps": 0}, "count steps from 1"),
    "update_period": ({"update_period": 0}, "count steps from 1"),
    "negative rate": ({"replacement_rate": -0.1}, "replacement_rate is a share"),
    "large rate": ({"replacement_rate": 1.5}, "replacement_rate is a share"),
    "nan rate": ({"replacement_rate": math.nan}, "replacement_rate is a share"),
    "until": ({"until": 1.1}, "until is a share"),
    "unknown removal": ({"removal": "magnitud"}, "did you mean 'magnitude'"),
    "unknown addition": ({"addition": "gradient"}, "unknown addition criterion"),
    "regrow name": ({"regrow_std": "median"}, "regrow_std must be"),
    "regrow zero": ({"regrow_std": 0.0}, "regrow_std must be"),
    "regrow infinite": ({"regrow_std": math.inf}, "regrow_std must be"),
    "regrow list": ({"regrow_std": [0.1]}, "regrow_std must be"),
    "scope": ({"scope": "network"}, "scope must be"),
}


@pytest.mark.parametrize(("options", "message"), BAD_ARGUMENTS.values(), ids=BAD_ARGUMENTS)
def test_bad_arguments_are_refused(options, message):
    model = gossamer.bayesianize(nn.Linear(9, 4), density=0.5, std="gradient")
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    with pytest.raises(ValueError, match=message):
        gossamer.Subspace(model, optimizer, **{"total_steps": 10} | options)


def test_models_and_optimizers_that_do_not_fit_are_refused():
    plain = nn.Linear(9, 4)
    before = torch.optim.SGD(plain.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="no sparse weights"):
        gossamer.Subspace(plain, before, total_steps=10)
    with pytest.raises(ValueError, match="holds none of this model's sparse weights"):
        gossamer.Subspace(gossamer.bayesianize(plain, std="gradient"), before, total_steps=10)
    points = gossamer.sparsify(nn.Linear(9, 4), density=0.5)
    optimizer = torch.optim.SGD(gossamer.param_groups(points), lr=0.1)
    for options in ({}, {"removal": "snr"}):
        with pytest.raises(ValueError, match="needs a std; use removal='magnitude'"):
            gossamer.Subspace(points, optimizer, total_steps=10, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"replacement_rate": lambda step: 2.0}, "got 2.0 at step 1"),
        ({"removal": lambda stats: stats.mean[1:]}, r"removal criterion must give 18 scores.*got \(17,\)"),
        ({"addition": lambda stats: stats.grad.view(4, 9)}, r"addition criterion must give 36 scores.*got \(4, 9\)"),
    ],
)
def test_bad_parts_are_named_at_the_update(options, message):
    model = gossamer.bayesianize(nn.Linear(9, 4), density=0.5, std="gradient")
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    subspace = gossamer.Subspace(model, optimizer, total_steps=10, update_period=1, **options)
    model(torch.randn(2, 9)).sum().backward()
    with pytest.raises(ValueError, match=message):
        subspace.step()


@pytest.mark.parametrize("kernel", ["sparse", "dense"])
def test_positions_of_the_first_rank_replace_what_was_cached(kernel, monkeypatch):
    """A broadcast does not tell torch that it wrote: the network must not go on with plans for the old positions."""
    torch.manual_seed(0)
    model = gossamer.sparsify(nn.Linear(40, 30), density=0.2, keep_dense=())
    x = torch.randn(3, 40)
    with gossamer.kernels.use(kernel):
        model(x)
        others = torch.randperm(1200)[:240].sort().values.to(model.support.position.dtype)

        def broadcast(tensor, src):
            assert src == 0
            tensor.data.copy_(others)  # as c10d does, without a new version

        monkeypatch.setattr(distributed.dist, "is_initialized", lambda: True)
        monkeypatch.setattr(distributed.dist, "get_world_size", lambda: 2)
        monkeypatch.setattr(distributed.dist, "broadcast", broadcast)
        gossamer.Subspace(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=9, removal="magnitude")
        assert torch.equal(model.support.position, others)
        torch.testing.assert_close(model(x), gossamer.draw(model, at_mean=True)(x))


def lamp(stats):
    """Lee et al. 2021: the square of a weight over the sum of all squares that are not smaller, in its own layer."""
    squares = stats.mean.square()
    order = squares.argsort(descending=True, stable=True)
    score = torch.empty_like(squares)
    score[order] = squares[order] / squares[order].cumsum(0)
    return score


@pytest.mark.parametrize("scope", ["layer", "global"])
def test_a_criterion_is_the_same_by_name_and_as_a_function(scope, monkeypatch):
    """LAMP compares the entries of one layer: it must never be given those of several in one vector."""
    monkeypatch.setitem(REMOVAL, "lamp", lamp)
    found = []
    for removal in (lamp, "lamp"):
        torch.manual_seed(0)
        model = gossamer.sparsify(nn.Sequential(nn.Linear(20, 20), nn.Linear(20, 20)), density=0.3, keep_dense=())
        model[1].mean.data.mul_(100)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        options = {"update_period": 1, "replacement_rate": constant(0.5), "scope": scope}
        subspace = gossamer.Subspace(model, optimizer, total_steps=9, removal=removal, **options)
        model(torch.randn(4, 20)).square().sum().backward()
        assert subspace.step()
        found.append((subspace.record, [layer.support.position.tolist() for layer in model]))
    assert found[0] == found[1]


def test_a_training_without_a_planned_end():
    torch.manual_seed(0)
    model = gossamer.sparsify(nn.Linear(20, 10), density=0.3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    subspace = gossamer.Subspace(model, optimizer, removal="magnitude", update_period=5, replacement_rate=0.2)
    for _ in range(40):
        optimizer.zero_grad()
        model(torch.randn(8, 20)).square().mean().backward()
        optimizer.step()
        subspace.step()
    assert [entry["step"] for entry in subspace.record] == list(range(5, 41, 5))
    assert {entry["rate"] for entry in subspace.record} == {0.2}
    falling = gossamer.Subspace(
        model, torch.optim.SGD(model.parameters()), removal="magnitude", replacement_rate=lambda step: 1 / step
    )
    assert falling.rate(10) == 0.1
    with pytest.raises(ValueError, match="give total_steps as well"):
        gossamer.Subspace(model, optimizer, removal="magnitude", until=0.5)


def test_sharded_parameters_are_refused(tmp_path):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = gossamer.bayesianize(
            nn.Sequential(nn.Linear(20, 30), nn.ReLU(), nn.Linear(30, 4)), density=0.2, std="gradient"
        )
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match=r"FSDP2 .*ignored_params.* DistributedDataParallel"):
            gossamer.Subspace(model, torch.optim.SGD(model.parameters(), lr=0.1), total_steps=10)
    finally:
        torch.distributed.destroy_process_group()
