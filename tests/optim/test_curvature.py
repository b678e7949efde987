"""The rule beside an optimizer: which backward passes teach it, and what it does to the optimizer's step."""

from __future__ import annotations

import copy
import importlib
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision import MixedPrecision
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

import gossamer
from gossamer import methods
from gossamer.data import two_moons
from gossamer.kernels.dispatch import move_means
from gossamer.layers import sparse_weights
from gossamer.layers.curvature import rate_of
from gossamer.models import mlp
from gossamer.optim.curvature import default_temperature
from gossamer.train import Training
from gossamer.types import Step

FOLDER = str(Path(__file__).parent)
X, Y = torch.randn(16, 6, generator=torch.Generator().manual_seed(0)), torch.arange(16) % 3


def network(noise: str = "local", **options) -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))
    return gossamer.bayesianize(plain, noise=noise, **({"density": 0.4} | options))


class Loop:
    """A user's loop, with the noise of each pass fixed by its number."""

    def __init__(self, model: nn.Module | None = None, optimizer=None, moves: bool = False, **options) -> None:
        self.model = network() if model is None else model
        make = optimizer or (lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9))
        self.optimizer = make(gossamer.param_groups(self.model))
        self.curvature = gossamer.Curvature(self.model, self.optimizer, n_data=100, **options)
        more = {"total_steps": 40, "update_period": 3, "until": 1.0}
        self.subspace = gossamer.Subspace(self.model, self.optimizer, **more) if moves else None
        self.n = 0

    def loss(self, x: Tensor = X, y: Tensor = Y) -> Tensor:
        self.n += 1
        torch.manual_seed(self.n)
        return F.cross_entropy(self.model(x), y)

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.loss().backward()
        self.optimizer.step()
        if self.subspace is not None:
            self.subspace.step()

    def steps(self, n: int) -> Loop:
        for _ in range(n):
            self.step()
        return self


def curvatures(model: nn.Module) -> list[Tensor]:
    return [weight.curvature.clone() for weight in sparse_weights(model).values()]


def same(one: nn.Module, other: nn.Module) -> None:
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def pending(model: nn.Module) -> list[Tensor]:
    return [weight.estimates.leaf.grad.clone() for weight in sparse_weights(model).values()]


# ---------------------------------------------------------------------- one step


@pytest.mark.parametrize("noise", ["local", "weights"])
def test_a_step_learns_and_decays(noise):
    loop = Loop(network(noise), lambda groups: torch.optim.SGD(groups, lr=0.5), weight_decay=0.01)
    before, means = curvatures(loop.model), [layer.mean.detach().clone() for layer in loop.model[::2]]
    loop.loss().backward()
    estimates, grads = pending(loop.model), [layer.mean.grad.clone() for layer in loop.model[::2]]
    loop.optimizer.step()
    for layer, h, estimate, mean, grad in zip(loop.model[::2], before, estimates, means, grads, strict=True):
        torch.testing.assert_close(layer.weight.curvature, (h + estimate) / 2)
        torch.testing.assert_close(layer.weight.grad_square, grad.square() / 2)
        torch.testing.assert_close(layer.mean.detach(), mean - 0.5 * (grad + 0.01 * mean))
        assert layer.weight.n_estimates == 1
        torch.testing.assert_close(layer.std.detach(), (layer.weight.noise_scale / (layer.weight.shrunk + 0.01)).sqrt())


def test_accumulated_parts_count_as_their_mean():
    loop = Loop()
    parts = []
    for part in range(4):
        loop.optimizer.zero_grad()
        loop.n = part
        loop.loss(X[part::4], Y[part::4]).backward()
        parts.append(pending(loop.model))
    loop.optimizer.zero_grad()
    loop.n = 0
    for part in range(4):
        (loop.loss(X[part::4], Y[part::4]) / 4).backward()
    for sum_, *each in zip(pending(loop.model), *parts, strict=True):
        torch.testing.assert_close(sum_, torch.stack(each).mean(0))
    loop.optimizer.step()
    assert loop.model[0].weight.n_estimates == 1


def test_two_passes_that_add_up_both_count():
    one, two = Loop(), Loop()
    (one.loss() + one.loss()).backward()
    two.loss().backward()
    two.loss().backward()
    for first, second in zip(pending(one.model), pending(two.model), strict=True):
        torch.testing.assert_close(first, second)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("moves", [False, True])
def test_a_refused_step_has_no_say_where_the_rules_are_told_that_gradients_are_cleared(set_to_none, moves):
    """Neither estimates nor dense gradients: single passes are not followed then."""

    def stepped(refused: int | None) -> nn.Module:
        loop = Loop(moves=moves)
        rules = [loop.curvature] + ([loop.subspace] if moves else [])
        for number in range(1, 8):
            for attempt in range(2 if number == refused else 1):
                loop.n = 0 if attempt == 0 and number == refused else number
                loop.optimizer.zero_grad(set_to_none)
                for rule in rules:
                    rule.zero_grad()
                loop.loss().backward()
            for rule in rules:
                rule(Step(number, loop.model, loop.optimizer, loop.loss))
            loop.optimizer.step()
        assert not moves or len(loop.subspace.record) == 2
        return loop.model

    plain = stepped(None)
    for refused in (2, 3, 5, 6):  # before, at and after updates
        same(plain, stepped(refused))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("clears", ["optimizer", "model"])
def test_a_pass_that_is_cleared_has_no_say(set_to_none, clears):
    plain, attacked = Loop().steps(2), Loop().steps(2)
    for _ in range(3):
        plain.step()
        x = X.clone().requires_grad_()
        torch.manual_seed(99)
        F.cross_entropy(attacked.model(x), Y).backward()
        getattr(attacked, clears).zero_grad(set_to_none=set_to_none)
        attacked.loss().backward()
        attacked.optimizer.step()
    same(attacked.model, plain.model)


def test_a_pass_that_is_cleared_before_the_step_has_no_say():
    loop = Loop()
    loop.loss().backward()
    loop.optimizer.zero_grad()
    before = curvatures(loop.model)
    loop.optimizer.step()
    assert all(map(torch.equal, curvatures(loop.model), before))


def test_a_pass_that_does_not_reach_the_means_has_no_say():
    plain, other = Loop(), Loop()
    for _ in range(3):
        plain.step()
        x = X.clone().requires_grad_()
        other.optimizer.zero_grad()
        other.loss().backward()
        torch.manual_seed(99)
        torch.autograd.grad(F.cross_entropy(other.model(x), Y), x)
        other.optimizer.step()
    same(other.model, plain.model)


def test_clipping_changes_no_estimate():
    plain, clipped = Loop(weight_decay=1e-9), Loop(weight_decay=1e-9)
    for loop in (plain, clipped):
        loop.loss().backward()
    clip_grad_norm_(clipped.model.parameters(), 1e-3)
    for loop in (plain, clipped):
        loop.optimizer.step()
    assert all(map(torch.equal, curvatures(plain.model), curvatures(clipped.model)))
    assert not torch.equal(plain.model[0].mean, clipped.model[0].mean)


# ---------------------------------------------------------------------- scaled losses


OPTIMIZERS = {
    "sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "adam": lambda groups: torch.optim.Adam(groups, lr=0.01),
    "fused sgd": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, fused=True),
    "fused adam": lambda groups: torch.optim.Adam(groups, lr=0.01, fused=True),
}


@pytest.mark.parametrize("unscales", [False, True])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_loss_gives_the_same_curvature(name, unscales):
    plain = Loop(optimizer=OPTIMIZERS[name])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    scaled = Loop(optimizer=OPTIMIZERS[name], scaler=scaler)
    for number in range(6):
        if number == 3:  # an overflow: nothing changes
            before = copy.deepcopy(scaled.model)
            scaled.optimizer.zero_grad()
            torch.manual_seed(0)
            loss = F.cross_entropy(scaled.model(X), Y)
            scaler.scale(loss * torch.tensor([1.0, torch.inf])).sum().backward()
            scaler.step(scaled.optimizer)
            scaler.update()
            same(scaled.model, before)
            assert scaler.get_scale() == 2.0**11
        plain.step()
        scaled.optimizer.zero_grad()
        scaler.scale(scaled.loss()).backward()
        if unscales:
            scaler.unscale_(scaled.optimizer)
        scaler.step(scaled.optimizer)
        scaler.update()
    assert all(map(torch.equal, curvatures(plain.model), curvatures(scaled.model)))
    torch.testing.assert_close(scaled.model[0].mean, plain.model[0].mean)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_scaler_that_was_not_given_is_noticed(name):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    loop = Loop(optimizer=OPTIMIZERS[name])
    scaler.scale(loop.loss()).backward()
    with pytest.raises(ValueError, match=r"divided by 4096 .* scaler=scaler"):
        scaler.step(loop.optimizer)


def test_a_fused_optimizer_says_itself_how_its_gradients_are_scaled():
    plain, scaled = (Loop(optimizer=OPTIMIZERS["fused sgd"]) for _ in range(2))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    plain.step()
    scaler.scale(scaled.loss()).backward()
    scaler.step(scaled.optimizer)
    assert all(map(torch.equal, curvatures(plain.model), curvatures(scaled.model)))


def test_the_scaler_of_fabric_is_found():
    """On a CPU Fabric takes bfloat16 for "16-mixed" unless the plugin is given."""
    task = two_moons.load()
    plain = Training(methods.build("ssvi", task, 20, density=0.5), mlp(2, (16,), 2), task, 20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    fabric = Fabric(accelerator="cpu", devices=1, plugins=MixedPrecision("16-mixed", "cpu", scaler))
    mixed = Training(methods.build("ssvi", task, 20, density=0.5), mlp(2, (16,), 2), task, 20, fabric)
    assert mixed.rules[0].scaler is scaler
    assert plain.rules[0].scaler is None
    losses = [[float(one["loss"]) for one in training.run()] for training in (plain, mixed)]
    assert losses[1][-1] < losses[1][0]
    for one, other in zip(*(sparse_weights(training.model).values() for training in (plain, mixed)), strict=True):
        assert one.n_estimates == other.n_estimates == 20
        # A curvature that is not unscaled would be thousands of times as large.
        torch.testing.assert_close(other.shrunk.mean(), one.shrunk.mean(), rtol=5.0, atol=1e-3)


# ---------------------------------------------------------------------- other loops


def test_closures():
    plain, closed = Loop(), Loop()

    def closure():
        closed.optimizer.zero_grad()
        loss = closed.loss()
        loss.backward()
        return loss

    for number in range(4):
        plain.step()
        closed.optimizer.step(closure) if number % 2 else closed.optimizer.step(closure=closure)
    same(closed.model, plain.model)


def test_lbfgs():
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=5)
    gossamer.Curvature(model, optimizer, n_data=100)
    calls = []

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(model(X), Y)
        loss.backward()
        calls.append(loss)
        return loss

    before = curvatures(model)
    optimizer.step(closure)
    assert model[0].weight.n_estimates == len(calls) > 1
    assert not any(map(torch.equal, curvatures(model), before))


def test_a_line_search_sees_the_loss_whose_gradient_it_follows():
    """Of a loss without noise: LBFGS with a line search then ends where that of loss + δ/2 ‖μ‖² by hand does."""
    ends = []
    for by_hand in (False, True):
        model, decay = network(), 0.3
        with torch.no_grad():
            for weight in sparse_weights(model).values():
                weight.curvature.fill_(1e12)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=30, line_search_fn="strong_wolfe")
        if not by_hand:
            gossamer.Curvature(model, optimizer, n_data=100, temperature=1e-20, weight_decay=decay)

        def closure(model=model, optimizer=optimizer, by_hand=by_hand, decay=decay):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(X), Y)
            if by_hand:
                loss = loss + decay / 2 * sum(w.mean.square().sum() for w in sparse_weights(model).values())
            loss.backward()
            return loss

        first = optimizer.step(closure)
        with torch.no_grad():
            ends.append((first.detach(), *(weight.mean.clone() for weight in sparse_weights(model).values())))
    for mine, other in zip(*ends, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-3)


def test_several_optimizers():
    plain, model = Loop(optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1)), network()
    two = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    gossamer.Curvature(model, two, n_data=100)
    for number in range(1, 4):
        plain.step()
        torch.manual_seed(number)
        F.cross_entropy(model(X), Y).backward()
        for one in two:
            one.step()
            one.zero_grad()
    same(model, plain.model)


def test_an_optimizer_of_all_parameters():
    plain = Loop(optimizer=lambda groups: torch.optim.SGD(groups, lr=0.1)).steps(3)
    other = Loop(optimizer=lambda groups: torch.optim.SGD([p for g in groups for p in g["params"]], lr=0.1)).steps(3)
    same(other.model, plain.model)


def test_frozen_means_and_means_of_no_optimizer_keep_their_std():
    model = network()
    model[0].mean.requires_grad_(False)
    loop = Loop(model)
    before = curvatures(model)
    loop.steps(2)
    assert torch.equal(model[0].weight.curvature, before[0])
    assert not torch.equal(model[2].weight.curvature, before[1])
    model = network()
    optimizer = torch.optim.SGD(model[2].parameters(), lr=0.1)
    gossamer.Curvature(model, optimizer, n_data=100)
    before = curvatures(model)
    F.cross_entropy(model(X), Y).backward()
    optimizer.step()
    assert torch.equal(model[0].weight.curvature, before[0])
    assert not torch.equal(model[2].weight.curvature, before[1])


def test_the_last_of_two_takes_the_place_of_the_first():
    plain, twice = Loop(), Loop(temperature=1.0)
    gossamer.Curvature(twice.model, twice.optimizer, n_data=100)
    assert not torch.equal(twice.model[0].std, network()[0].std)  # of temperature 1, at first
    twice.model.load_state_dict(plain.model.state_dict())
    plain.steps(3)
    twice.steps(3)
    same(twice.model, plain.model)


# ---------------------------------------------------------------------- beside a subspace


@pytest.mark.parametrize("allocation", ["uniform", "global"])
@pytest.mark.parametrize("order", ["step, move", "move, step", "rule, move, step", "move, rule, step"])
def test_estimates_follow_the_entries(allocation, order):
    """Wherever the subspace moves, an entry that stays has learnt from the estimate of its own position."""
    loop = Loop(network(allocation=allocation), moves=True)
    rule = Step(1, loop.model, loop.optimizer, loop.loss)
    n_moved, lengths = 0, {tuple(len(h) for h in curvatures(loop.model))}
    for _ in range(7):
        loop.optimizer.zero_grad()
        loop.loss().backward()
        expected = []
        for weight in sparse_weights(loop.model).values():
            h, v = weight.curvature.clone(), weight.grad_square.clone()
            move_means(h, v, weight.estimates.leaf.grad, weight.mean.grad, rate_of(weight))
            expected.append(dict(zip(weight.support.position.tolist(), h.tolist(), strict=True)))
        old = [set(entries) for entries in expected]
        for part in order.split(", "):
            if part == "step":
                loop.optimizer.step()
            elif part == "rule":
                loop.curvature(rule)
            else:
                loop.subspace.step()
        for weight, entries in zip(sparse_weights(loop.model).values(), expected, strict=True):
            found = dict(zip(weight.support.position.tolist(), weight.curvature.tolist(), strict=True))
            n_moved += len(found.keys() - entries.keys())
            for position in found.keys() & entries.keys():
                assert found[position] == pytest.approx(entries[position], rel=1e-6)
            new = [found[position] for position in found.keys() - entries.keys()]
            assert len(set(new)) <= 1  # none of them has learnt anything
        assert old
        lengths.add(tuple(len(h) for h in curvatures(loop.model)))
    assert n_moved > 0
    assert (len(lengths) > 1) == (allocation == "global")
    assert {weight.n_estimates for weight in sparse_weights(loop.model).values()} == {7}


def test_updates_at_the_means_give_no_estimate():
    model = network()
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    gossamer.Curvature(model, optimizer, n_data=100)
    subspace = gossamer.Subspace(model, optimizer, total_steps=40, update_period=3, addition="mean_gradient")
    for _ in range(7):
        optimizer.zero_grad()
        F.cross_entropy(model(X), Y).backward()
        optimizer.step()
        subspace.step()
    assert model[0].weight.n_estimates == 5


def test_a_subspace_warns_if_nothing_learns_the_stds():
    model = network()
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    subspace = gossamer.Subspace(model, optimizer, total_steps=40, update_period=3)
    F.cross_entropy(model(X), Y).backward()
    with pytest.warns(UserWarning, match=r"do not learn: give them gossamer.Curvature.* std='gradient'"):
        subspace.step()
    subspace.step()
    late = gossamer.Subspace(model, optimizer, total_steps=40, update_period=3)
    late.index = 0
    gossamer.Curvature(model, optimizer, n_data=100)
    late.step()


def test_weight_decay_of_the_means_warns_and_that_of_the_rest_does_not(recwarn):
    model = network()
    groups = gossamer.param_groups(model)
    groups[1]["weight_decay"] = 0.1
    gossamer.Curvature(model, torch.optim.AdamW(groups, weight_decay=0.1), n_data=100)
    assert not recwarn
    with pytest.warns(UserWarning, match=r"decays the means by 0\.01, .* gossamer.param_groups\(model\)"):
        gossamer.Curvature(model, torch.optim.AdamW(model.parameters()), n_data=100)


def test_gradients_without_a_backward_pass_warn():
    loop = Loop()
    parameters = list(loop.model.parameters())
    for parameter, grad in zip(parameters, torch.autograd.grad(loop.loss(), parameters), strict=True):
        parameter.grad = grad
    with pytest.warns(UserWarning, match=r"call loss.backward\(\)"):
        loop.optimizer.step()


# ---------------------------------------------------------------------- checkpoints


@pytest.mark.parametrize("tensors_only", [False, True])
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("allocation", ["uniform", "global"])
def test_a_training_resumes_to_the_bit(allocation, late, tensors_only):
    one = Loop(network(allocation=allocation), moves=True).steps(5)
    state = {name: tensor.clone() for name, tensor in one.model.state_dict().items()}
    if tensors_only:
        state = load(save(state))
    model = network(allocation=allocation, generator=torch.Generator().manual_seed(5))
    if late:
        model.load_state_dict(state)
    two = Loop(model, moves=True)
    if not late:
        model.load_state_dict(state)
    two.optimizer.load_state_dict(copy.deepcopy(one.optimizer.state_dict()))
    two.subspace.load_state_dict(copy.deepcopy(one.subspace.state_dict()))
    two.n = one.n
    one.steps(8)
    two.steps(8)
    same(two.model, one.model)
    assert one.model[0].weight.n_estimates == 13


# ---------------------------------------------------------------------- ranks


@pytest.mark.skipif(not (dist.is_available() and dist.is_gloo_available()), reason="torch was built without gloo")
def test_ranks_average_their_estimates(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(FOLDER)
    ranks = importlib.import_module("curvature_ranks")
    torch.multiprocessing.spawn(ranks.worker, args=(str(tmp_path),), nprocs=2)
    first, second = (torch.load(tmp_path / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    sys.modules.pop("curvature_ranks")
    for name, tensor in first["state"].items():
        assert torch.equal(tensor, second["state"][name]), name
    for index, (before, after) in enumerate(zip(first["before"], first["after"], strict=True)):
        mean = (first["estimates"][index] + second["estimates"][index]) / 2
        assert not torch.equal(first["estimates"][index], second["estimates"][index])
        torch.testing.assert_close(after, (before + mean) / 2)


# ---------------------------------------------------------------------- arguments


def test_errors_name_the_fix():
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, options in (
        ("n_data", {"n_data": 0}),
        ("temperature", {"n_data": 10, "temperature": 0.0}),
        ("weight_decay", {"n_data": 10, "weight_decay": float("inf")}),
        ("memory", {"n_data": 10, "memory": 1.5}),
    ):
        with pytest.raises(ValueError, match=wrong):
            gossamer.Curvature(model, optimizer, **options)
    with pytest.raises(ValueError, match="std='curvature'"):
        gossamer.Curvature(network(std="gradient"), optimizer, n_data=10)
    with pytest.raises(ValueError, match="param_groups"):
        gossamer.Curvature(network(), optimizer, n_data=10)


def test_the_prior_of_the_conversion_is_kept_where_no_decay_is_given():
    loop = Loop(network(prior_std=0.3), weight_decay=None)
    weight = loop.model[0].weight
    assert weight.prior_std == pytest.approx(0.3)
    assert weight.damping == pytest.approx(weight.noise_scale / 0.09)


@pytest.mark.parametrize("norm", [nn.BatchNorm1d(50), nn.LayerNorm(50), nn.GroupNorm(5, 50)])
def test_default_temperature_of_normalised_networks(norm):
    """N/6s up to 0.01, and √(N/s)/20 up to 0.05 for others."""
    layer = gossamer.bayesianize(nn.Linear(100, 50), density=0.1)
    assert default_temperature(nn.Sequential(layer, norm), 15) == pytest.approx(15 / 500 / 6)
    assert default_temperature(nn.Sequential(layer, norm), 600) == 0.01
    assert default_temperature(nn.Sequential(layer), 600) == 0.05
    assert default_temperature(nn.Sequential(layer), 45) == pytest.approx(0.3 / 20)
