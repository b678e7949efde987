"""The loops people write: accumulation, loss scaling, clipping, closures, parameter groups, compiled networks."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

import gossamer
from gossamer.schedules import constant


@pytest.mark.parametrize("n_parts", [1, 2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(n_parts, mlp, make, positions, spy):
    model = mlp(dtype=torch.float64)
    x, y = torch.randn(3, 32, 12, dtype=torch.float64), torch.randn(3, 32, 4, dtype=torch.float64)
    still = torch.optim.SGD(gossamer.param_groups(model), lr=0.0)
    optimizer, subspace = make(model, still, addition=(criterion := spy(noise_free=True)))
    plain = gossamer.draw(model, at_mean=True)
    F.mse_loss(plain(x[2]), y[2]).backward()
    gradients = {name: plain[int(name)].weight.grad.flatten() for name in ("0", "2")}
    expected = {name: who_is_active(weight, gradients[name]) for name, weight in subspace.weights.items()}
    for step in range(3):
        optimizer.zero_grad()
        for part, target in zip(x[step].chunk(n_parts), y[step].chunk(n_parts), strict=True):
            (F.mse_loss(model(part), target) / n_parts).backward()
        optimizer.step()
        subspace.step()
    assert positions(model) == expected
    for seen, gradient in zip(criterion.seen, gradients.values(), strict=True):
        torch.testing.assert_close(seen, gradient)


def who_is_active(weight, gradient, rate=0.4):
    """After an update, found with sets: drop the lowest |mean|/std, take in the largest |gradient|."""
    ratio = dict(zip(weight.support.position.tolist(), (weight.mean.abs() / weight.std).tolist(), strict=True))
    n_removed = int(rate * len(ratio))
    kept = set(sorted(ratio, key=ratio.__getitem__)[n_removed:])
    size = gradient.abs().tolist()
    others = sorted(set(range(len(size))) - kept, key=size.__getitem__)
    return sorted(kept | set(others[len(others) - n_removed :]))


def test_autocast_and_a_scaler_with_an_infinite_gradient(mlp, make, positions):
    model = mlp()
    optimizer, subspace = make(model, total_steps=20, until=1.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    x, y = torch.randn(32, 12), torch.randn(32, 4)
    start, moved = positions(model), []
    for number in range(1, 10):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = F.mse_loss(model(x), y)
        bad = number in (3, 4)
        scaler.scale(loss * math.inf if bad else loss).backward()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        scaler.step(optimizer)
        scaler.update()
        skipped = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert skipped is bad
        if subspace.step():
            moved.append(number)
        if number < 5:
            assert positions(model) == start
    assert moved == [5, 6, 9]
    assert subspace.record[:2] == [{"step": n, "postponed": "a gradient is not finite"} for n in (3, 4)]
    assert [entry["step"] for entry in subspace.record] == [3, 4, 5, 6, 9]
    assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_a_postponed_update_that_comes_too_late_is_dropped(hand_made, make):
    _, subspace = make(hand_made.layer, total_steps=4, update_period=3)
    for _ in range(6):
        (hand_made.loss() * math.nan).backward()
        assert subspace.step() is False
    assert [entry["step"] for entry in subspace.record] == [3]
    assert hand_made.layer.weight.probe is None


def test_loss_scale_and_clipping_have_no_say(hand_made, make):
    optimizer, subspace = make(hand_made.layer, update_period=1, replacement_rate=constant(0.5), removal="magnitude")
    (hand_made.loss() * 2.0**16).backward()
    norm = nn.utils.clip_grad_norm_(hand_made.layer.parameters(), 1e-3)
    assert norm > 1
    optimizer.step()
    assert subspace.step()
    assert hand_made.active() == [0, 1, 2, 5, 8, 10]
    assert hand_made.by_position(hand_made.layer.mean.grad)[10] == 0


def test_closure_of_an_optimizer_and_parameter_groups(mlp, make, positions, spy):
    """One group a layer, another rate for its stds, and a step that evaluates the loss itself."""
    model = mlp()
    groups = [{"params": [layer.mean, layer.bias], "lr": lr} for layer, lr in ((model[0], 0.05), (model[2], 0.01))]
    groups.append({"params": [model[0].weight.raw_std, model[2].weight.raw_std], "lr": 1.0})
    optimizer, subspace = make(model, torch.optim.SGD(groups, momentum=0.9), addition=(criterion := spy()))
    x, y = torch.randn(32, 12), torch.randn(32, 4)
    start, losses = positions(model), []

    def closure():
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        return loss

    for _ in range(30):
        losses.append(float(optimizer.step(closure).detach()))
        subspace.step()
    assert len(subspace.record) == 10
    assert len(criterion.seen) == 20
    assert positions(model) != start
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("convert", "lr"), [(gossamer.sparsify, 0.05), (partial(gossamer.bayesianize, std="gradient"), 0.0)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its tracer and compiler
def test_compiled_model(convert, lr, backend, mlp, make, positions, spy):
    """A compiled network moves as the plain one does; at a rate of 0 also where the noise is another."""
    x, y = torch.randn(32, 12), torch.randn(32, 4)
    results, graphs = [], CompileCounterWithBackend(backend)
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend=graphs)):
        torch._dynamo.reset()
        model = mlp(convert)
        network = wrap(model)
        optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=lr, momentum=0.9)
        _, subspace = make(network, optimizer, removal="magnitude", addition=(criterion := spy(noise_free=True)))
        assert list(subspace.weights) == ["0", "2"]
        for _ in range(13):
            optimizer.zero_grad()
            F.mse_loss(network(x), y).backward()
            optimizer.step()
            subspace.step()
        results.append((positions(model), criterion.seen))
        assert [entry["step"] for entry in subspace.record] == [3, 6, 9, 12]
    (eager, eager_seen), (compiled, compiled_seen) = results
    assert compiled == eager != positions(mlp(convert))
    for expected, seen in zip(eager_seen, compiled_seen, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)
    assert graphs.frame_count == 2  # one for ordinary steps, one for those before an update
    torch._dynamo.reset()


class Wrapped(torch.optim.Optimizer):
    """As accelerate wraps an optimizer: an ``Optimizer`` by name, which never called its constructor."""

    def __init__(self, optimizer) -> None:
        self.optimizer = optimizer

    state = property(lambda self: self.optimizer.state)
    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self, closure=None):
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none=True):
        self.optimizer.zero_grad(set_to_none)


def test_a_wrapped_optimizer(mlp, make, positions):
    results = []
    for wrap in (lambda optimizer: optimizer, Wrapped):
        model = mlp(gossamer.sparsify)
        optimizer = wrap(torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9))
        _, subspace = make(model, optimizer, removal="magnitude")
        for number in range(7):
            torch.manual_seed(number)
            optimizer.zero_grad()
            model(torch.randn(8, 12)).square().mean().backward()
            optimizer.step()
            model(torch.randn(8, 12)).sum().backward()
            subspace.step()
        results.append(positions(model))
        assert len(subspace.record) == 2
    assert results[0] == results[1]
