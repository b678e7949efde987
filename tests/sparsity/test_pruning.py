"""Pruning during training: what is cut, where it goes, whether it comes back, and that a resume changes nothing."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.optim import SGHMC, CVAdam
from gossamer.sparsity import Prune
from gossamer.sparsity.groups import grouped_weights

OPTIMIZERS = {
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "sghmc": lambda model: SGHMC(model.parameters(), 0.05, n_data=100, weight_decay=1e-2),
}


def prunable(model):
    return gossamer.sparsify(model, density=1.0, init="pretrained", keep_dense=())


def network(sparse=True, dtype=torch.float32):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4)).to(dtype)
    return prunable(model) if sparse else model


def train(model, optimizer, prune, n_steps, start=0):
    for step in range(start, start + n_steps):
        torch.manual_seed(step)
        optimizer.zero_grad()
        model(torch.randn(16, 12, dtype=next(model.parameters()).dtype)).square().mean().backward()
        prune.step()
        optimizer.step()


def dense(model):
    return torch.cat([weight.values() for weight in grouped_weights(model).values()])


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_forward_pruning_is_the_training_of_a_plain_network_with_zeros_held_by_hand(kind):
    """Double precision: the products are summed in another order."""
    models = [network(True, torch.float64), network(False, torch.float64)]
    optimizers = [OPTIMIZERS[kind](model) for model in models]
    for group in (group for optimizer in optimizers for group in optimizer.param_groups if kind == "sghmc"):
        group["temperature"] = 0.0  # noise would go to other entries
    prune = Prune(models[0], optimizers[0], threshold=0.02, update_period=3)
    plain = [models[1][0].weight, models[1][2].weight]

    def hold():
        for parameter, weight in zip(plain, grouped_weights(models[0]).values(), strict=True):
            gone = (weight.values() == 0).view_as(parameter)
            state = [value for value in optimizers[1].state[parameter].values() if torch.is_tensor(value)]
            for tensor in (parameter.data, parameter.grad, *state):
                if tensor.shape == gone.shape:
                    tensor[gone] = 0

    for step in range(12):
        for model, optimizer in zip(models, optimizers, strict=True):
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(16, 12, dtype=torch.float64)).square().mean().backward()
        prune.step()
        hold()
        for optimizer in optimizers:
            optimizer.step()
        hold()
    assert 0 < prune.density < 0.9
    torch.testing.assert_close(dense(models[0]), dense(models[1]), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_what_is_cut_leaves_the_storage_and_the_optimizer(kind):
    model = network()
    optimizer = OPTIMIZERS[kind](model)
    prune = Prune(model, optimizer, target_density=0.3, update_period=2, groups="input")
    train(model, optimizer, prune, 5)
    weights = sparse_weights(model)
    assert [weight.support.n_active for weight in weights.values()] == [30, 12]  # 3 of 12 units, 3 of 10
    for weight in weights.values():
        assert weight.mean.shape == weight.mean.grad.shape == weight.support.position.shape
        states = [value for value in optimizer.state[weight.mean].values() if torch.is_tensor(value) and value.dim()]
        assert states
        assert all(value.shape == weight.mean.shape for value in states)


def test_noise_does_not_wake_what_is_cut():
    model = network()
    optimizer = SGHMC(model.parameters(), 0.1, n_data=10)
    prune = Prune(model, optimizer, target_density=0.2, update_period=2)
    train(model, optimizer, prune, 2)
    gone = dense(model) == 0
    assert gone.float().mean() > 0.7
    train(model, optimizer, prune, 5, start=2)
    assert not dense(model)[gone].any()


def test_the_largest_units_stay():
    model = nn.Linear(5, 3, bias=False)
    model.weight.data = torch.tensor([1.0, 5.0, 2.0, 4.0, 3.0]).expand(3, 5).clone()
    model = prunable(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    prune = Prune(model, optimizer, target_density=0.4)
    model(torch.ones(1, 5)).sum().backward()
    assert prune.step()
    assert (dense(model)[:5] != 0).tolist() == [False, True, False, True, False]
    assert prune.record == [{"step": 1, "density": 0.4, "active": {"": 6}, "removed": {"": 9}}]


def test_channels_of_convolutions_are_cut_by_their_range_in_both_directions():
    model = nn.Conv2d(3, 4, 2, bias=False)
    torch.manual_seed(0)
    model.weight.data = torch.randn(4, 3, 2, 2)
    model.weight.data[:, 1] = 0.001 * torch.randn(4, 2, 2)
    model.weight.data[2] = 0.5  # all alike, though large: eq. (9) takes them for concentrated at zero
    model.weight.data[2, 1] = 0.4999
    model = prunable(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(torch.ones(1, 3, 4, 4)).sum().backward()
    Prune(model, optimizer, threshold=0.01).step()
    alive = dense(model).view(4, 3, 4).ne(0).any(2)
    assert not alive[2].any()
    assert alive[[0, 1, 3]][:, [0, 2]].all()
    assert alive[:, 1].any()  # the 0.4999 stretched the range of that channel


def test_with_feedback_the_network_computes_without_and_the_held_weight_goes_on():
    """Eq. (8), step by step: w ← w - lr · gradient at m ∘ w."""
    model = network(True, torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.01)
    prune = Prune(model, optimizer, target_density=0.5, feedback=True, update_period=4)
    twin = network(False, torch.float64)  # computes with m ∘ w, keeps w by hand
    held = {name: parameter.detach().clone() for name, parameter in twin.named_parameters()}
    mask = {name: torch.ones_like(value) for name, value in held.items()}
    for step in range(1, 10):
        torch.manual_seed(step)
        x = torch.randn(16, 12, dtype=torch.float64)
        for network_ in (model, twin):
            network_.zero_grad()
            network_(x).square().mean().backward()
        prune.step()
        optimizer.step()
        if step % 4 == 0:
            for name in ("0.weight", "2.weight"):
                score = held[name].square().mean(0)
                best = score.topk(round(0.5 * len(score))).indices
                mask[name] = torch.zeros_like(mask[name]).index_fill(1, best, 1.0)
        for name, parameter in twin.named_parameters():
            held[name] -= 0.1 * (parameter.grad + 0.01 * held[name])
            parameter.data = held[name] * mask[name]
        twin_weights = torch.cat([twin[0].weight.flatten(), twin[2].weight.flatten()])
        torch.testing.assert_close(dense(model), twin_weights.detach(), rtol=0, atol=1e-13)
    assert prune.density == 0.5


def test_with_feedback_a_unit_comes_back_and_forward_it_does_not():
    """A unit too small at the check, whose gradient makes it the larger one later."""
    for feedback, returns in ((True, True), (False, False)):
        model = nn.Linear(2, 1, bias=False)
        model.weight.data = torch.tensor([[1.0, 0.5]])
        model = prunable(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        prune = Prune(model, optimizer, target_density=0.5, feedback=feedback, update_period=5)
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.tensor([[0.01, -1.0]])).sum().backward()
            prune.step()
            optimizer.step()
        assert bool(dense(model)[1] != 0) == returns


@pytest.mark.parametrize("feedback", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_resume_goes_on_to_the_bit(kind, feedback):
    def fresh():
        model = network()
        optimizer = OPTIMIZERS[kind](model)
        prune = Prune(
            model, optimizer, target_density=lambda step: max(0.3, 1 - step / 10), feedback=feedback, update_period=3
        )
        return model, optimizer, prune

    whole = fresh()
    train(*whole, 7)
    saved = copy.deepcopy([part.state_dict() for part in whole])
    train(*whole, 6, start=7)
    again = fresh()
    for part, state in zip(again, saved, strict=True):
        part.load_state_dict(state)
    train(*again, 6, start=7)
    assert torch.equal(dense(whole[0]), dense(again[0]))
    assert again[2].record == [entry for entry in whole[2].record if entry["step"] > 7]
    assert len({entry["density"] for entry in whole[2].record}) > 1


def test_what_is_held_back_leaves_for_good_at_the_last_check():
    model = network()
    optimizer = OPTIMIZERS["sgd"](model)
    prune = Prune(model, optimizer, target_density=0.3, feedback=True, update_period=2, total_steps=8, until=0.5)
    train(model, optimizer, prune, 3)
    assert [len(weight.mean) for weight in sparse_weights(model).values()] == [120, 40]
    train(model, optimizer, prune, 3, start=3)
    assert [len(weight.mean) for weight in sparse_weights(model).values()] == [30, 12]
    assert prune.density == 42 / 160
    assert [entry["step"] for entry in prune.record] == [2, 4]
    fresh = network()
    resumed = Prune(
        fresh, OPTIMIZERS["sgd"](fresh), target_density=0.3, feedback=True, update_period=2, total_steps=8, until=0.5
    )
    fresh.load_state_dict(model.state_dict())
    resumed.load_state_dict(prune.state_dict())
    assert resumed.density == prune.density


def test_a_global_budget_is_shared_by_all_layers():
    model = network()
    sparse_weights(model)["0"].mean.data.mul_(10)
    optimizer = OPTIMIZERS["sgd"](model)
    prune = Prune(model, optimizer, target_density=0.25, scope="global", groups="weight")
    train(model, optimizer, prune, 1)
    counts = [len(weight.mean) for weight in sparse_weights(model).values()]
    assert sum(counts) == 40
    assert counts[1] < 5


def test_every_weight_keeps_a_group_under_any_threshold():
    model = network()
    optimizer = OPTIMIZERS["sgd"](model)
    train(model, optimizer, Prune(model, optimizer, threshold=1e9), 1)
    assert [len(weight.mean) for weight in sparse_weights(model).values()] == [10, 4]


def test_an_excluded_layer_stays_whole_and_so_does_a_frozen_one():
    model = network()
    optimizer = OPTIMIZERS["sgd"](model)
    train(model, optimizer, Prune(model, optimizer, target_density=0.1, exclude=["2"]), 1)
    assert [len(weight.mean) for weight in sparse_weights(model).values()] == [10, 40]
    model = network()
    model[0].mean.requires_grad_(False)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    train(model, optimizer, Prune(model, optimizer, target_density=0.1), 1)
    assert [len(weight.mean) for weight in sparse_weights(model).values()] == [120, 4]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either threshold or target_density"),
        ({"threshold": 0.1, "target_density": 0.1}, "either threshold or target_density"),
        ({"threshold": -1.0}, "not be negative"),
        ({"target_density": 0.0}, r"in \(0, 1\]"),
        ({"target_density": 0.5, "scope": "all"}, "'layer' or 'global'"),
        ({"target_density": 0.5, "warmup": -1}, "warmup is a share"),
        ({"target_density": 0.5, "criterion": "range", "groups": "weight"}, "has no range"),
        ({"target_density": 0.5, "criterion": "magnitude"}, "unknown criterion"),
    ],
)
def test_what_cannot_work_is_refused_at_once(options, message):
    model = network()
    with pytest.raises(ValueError, match=message):
        Prune(model, OPTIMIZERS["sgd"](model), **options)


@pytest.mark.parametrize("groups", ["kernel", "weight"])
def test_groups_of_one_weight_go_by_their_square_where_no_criterion_is_given(groups):
    """A residual network has convolutions of one tap: their kernels have no range."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Conv2d(4, 4, 1))
    small = model[1].weight.detach().abs().flatten().argsort()[:8]
    model = prunable(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    model(torch.randn(1, 2, 5, 5)).sum().backward()
    Prune(model, optimizer, target_density=0.5, groups=groups).step()
    assert [len(layer.mean) for layer in model] == [36, 8]
    assert not dense(model)[72:][small].any()


def test_a_step_that_a_gradient_scaler_skips_is_noticed_and_can_be_made_good():
    model = network()
    optimizer = OPTIMIZERS["sgd"](model)
    prune = Prune(model, optimizer, target_density=0.5, feedback=True, update_period=2)
    train(model, optimizer, prune, 3)
    gone, scaler = dense(model) == 0, torch.amp.GradScaler("cpu", init_scale=2.0)
    assert gone.float().mean() == 0.5

    def step(factor):
        optimizer.zero_grad()
        scaler.scale(model(torch.ones(2, 12)).sum() * factor).backward()
        prune.step()
        scaler.step(optimizer)
        scaler.update()

    step(float("inf"))  # the fourth: a check, so other groups may go
    prune.hide()
    assert (dense(model) == 0).float().mean() == 0.5
    held = copy.deepcopy(prune.state_dict()["held"])
    prune.hide()  # which may be called once too often
    assert all(torch.equal(held[name]["values"], now["values"]) for name, now in prune.state_dict()["held"].items())
    step(float("inf"))
    with pytest.warns(UserWarning, match=r"computed with the weights that are held back: call hide\(\)"):
        step(1.0)
    assert (dense(model) == 0).float().mean() == 0.5


def test_a_posterior_around_the_means_is_pruned_by_leaving_it():
    model = network()
    optimizer = CVAdam(model.parameters(), 0.1, n_data=100)
    with pytest.raises(ValueError, match=r"draws all weights that it holds.* prune without feedback"):
        Prune(model, optimizer, target_density=0.5, feedback=True)
    prune = Prune(model, optimizer, target_density=0.5, update_period=2)
    for _ in range(5):
        optimizer.zero_grad()
        with optimizer.sampled():
            model(torch.randn(16, 12)).square().mean().backward()
            assert int((dense(model) != 0).sum()) == sum(len(w.mean) for w in sparse_weights(model).values())
        prune.step()
        optimizer.step()
    assert prune.density == 0.5
    assert all(len(optimizer.std(weight.mean)) == len(weight.mean) for weight in sparse_weights(model).values())


def test_one_order_over_layers_needs_one_criterion():
    model = prunable(nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="one criterion for all"):
        Prune(model, optimizer, target_density=0.5, scope="global")


def test_a_threshold_for_each_layer_and_a_state_that_brings_it_back():
    model = network()
    optimizer = OPTIMIZERS["sgd"](model)
    scores = {
        name: weight.values()[weight.members("input")].square().mean(1)
        for name, weight in grouped_weights(model).items()
    }
    limits = {"0": float(scores["0"].median()), "2": 0.0}
    prune = Prune(model, optimizer, threshold=limits, update_period=1)
    train(model, optimizer, prune, 1)
    active = prune.record[0]["active"]
    assert active == {"0": 10 * int((scores["0"] >= limits["0"]).sum()), "2": 40}
    other = network()
    later = Prune(other, OPTIMIZERS["sgd"](other), threshold={"0": 9.0, "2": 9.0})
    other.load_state_dict(model.state_dict())
    later.load_state_dict(prune.state_dict())
    assert later.threshold == limits


def test_a_plain_network_is_refused():
    model = gossamer.sparsify(nn.Sequential(nn.Linear(12, 10), nn.Linear(10, 4)), density=1.0, exclude=["1"])
    optimizer = OPTIMIZERS["sgd"](model)
    with pytest.raises(ValueError, match=r"and 1 is plain: convert it with gossamer\.sparsify"):
        Prune(model, optimizer, target_density=0.5)
    Prune(model, optimizer, target_density=0.5, exclude=["1"])


def test_a_threshold_for_each_layer_names_them_all():
    model = network()
    with pytest.raises(ValueError, match="must name them all, or exclude them; missing: 2"):
        Prune(model, OPTIMIZERS["sgd"](model), threshold={"0": 1.0})
    Prune(model, OPTIMIZERS["sgd"](model), threshold={"0": 1.0}, exclude=["2"])
