"""Dense gradients in the loops people write: accumulation, loss scaling, clipping, closures, compilation; memory."""

from __future__ import annotations

import gc
import math
import weakref
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend

import gossamer
from gossamer.layers import sparse_weights
from gossamer.schedules import constant
from gossamer.sparsity.criteria import GradientCriterion
from gossamer.types import WeightStats


@dataclass(frozen=True)
class Spy(GradientCriterion):
    """A gradient criterion that keeps what it saw."""

    seen: tuple[list[Tensor], ...] = ([],)

    def __call__(self, stats: WeightStats) -> Tensor:
        self.seen[0].append(stats.grad.clone())
        return super().__call__(stats)


def spy(**options) -> Spy:
    return Spy("spy", **options, seen=([],))


def mlp(convert=gossamer.bayesianize, seed=0, dtype=torch.float32, **options):
    torch.manual_seed(seed)
    plain = nn.Sequential(nn.Linear(12, 10), nn.Tanh(), nn.Linear(10, 4)).to(dtype)
    return convert(plain, density=0.3, **options)


def make(model, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(gossamer.param_groups(model), lr=0.05, momentum=0.9)
    options = {"total_steps": 40, "update_period": 3, "replacement_rate": constant(0.4), "until": 1.0} | options
    return optimizer, gossamer.Subspace(model, optimizer, **options)


def positions(model):
    return {name: weight.support.position.tolist() for name, weight in sparse_weights(model).items()}


@pytest.mark.parametrize("n_parts", [1, 2, 4])
def test_accumulated_gradients_are_those_of_the_whole_batch(n_parts):
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
    for seen, gradient in zip(criterion.seen[0], gradients.values(), strict=True):
        torch.testing.assert_close(seen, gradient)


def who_is_active(weight, gradient, rate=0.4):
    """After an update, found with sets: drop the lowest |mean|/std, take in the largest |gradient|."""
    ratio = dict(zip(weight.support.position.tolist(), (weight.mean.abs() / weight.std).tolist(), strict=True))
    n_removed = int(rate * len(ratio))
    kept = set(sorted(ratio, key=ratio.__getitem__)[n_removed:])
    size = gradient.abs().tolist()
    others = sorted(set(range(len(size))) - kept, key=size.__getitem__)
    return sorted(kept | set(others[len(others) - n_removed :]))


@pytest.mark.parametrize("kind", ["plain", "embedding", "recurrent", "attention", "conv"])
def test_dense_gradient_is_that_of_the_plain_network(kind):
    torch.manual_seed(0)
    plain = {
        "plain": lambda: nn.Linear(6, 5),
        "embedding": lambda: nn.Embedding(7, 4, padding_idx=2),
        "recurrent": lambda: nn.GRU(6, 5, batch_first=True),
        "attention": lambda: nn.MultiheadAttention(6, 2, batch_first=True),
        "conv": lambda: nn.Conv1d(6, 5, 3, padding=1),
    }[kind]()
    model = gossamer.bayesianize(plain, density=0.5)
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
    assert len(gradients) == len(criterion.seen[0]) > 0
    for expected, seen in zip(gradients, criterion.seen[0], strict=True):
        torch.testing.assert_close(seen, expected)


def test_autocast_and_a_scaler_with_an_infinite_gradient():
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


def test_a_postponed_update_that_comes_too_late_is_dropped(hand_made):
    _, subspace = make(hand_made.layer, total_steps=4, update_period=3)
    for _ in range(6):
        (hand_made.loss() * math.nan).backward()
        assert subspace.step() is False
    assert [entry["step"] for entry in subspace.record] == [3]
    assert hand_made.layer.weight.probe is None


def test_loss_scale_and_clipping_have_no_say(hand_made):
    optimizer, subspace = make(hand_made.layer, update_period=1, replacement_rate=constant(0.5), removal="magnitude")
    (hand_made.loss() * 2.0**16).backward()
    norm = nn.utils.clip_grad_norm_(hand_made.layer.parameters(), 1e-3)
    assert norm > 1
    optimizer.step()
    assert subspace.step()
    assert hand_made.active() == [0, 1, 2, 5, 8, 10]
    assert hand_made.by_position(hand_made.layer.mean.grad)[10] == 0


def test_closure_of_an_optimizer_and_parameter_groups():
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
    assert len(criterion.seen[0]) == 20
    assert positions(model) != start
    assert sum(losses[-5:]) < sum(losses[:5])


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("convert", "lr"), [(gossamer.sparsify, 0.05), (gossamer.bayesianize, 0.0)])
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # torch's own, in its tracer
def test_compiled_model(convert, lr, backend):
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
        results.append((positions(model), criterion.seen[0]))
        assert [entry["step"] for entry in subspace.record] == [3, 6, 9, 12]
    (eager, eager_seen), (compiled, compiled_seen) = results
    assert compiled == eager != positions(mlp(convert))
    for expected, seen in zip(eager_seen, compiled_seen, strict=True):
        torch.testing.assert_close(seen, expected, rtol=1e-4, atol=1e-6)
    assert graphs.frame_count == 2  # one for ordinary steps, one for those before an update
    torch._dynamo.reset()


class WithSpare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used, self.frozen, self.spare = nn.Linear(9, 9), nn.Linear(9, 9), nn.Linear(9, 9)

    def forward(self, x):
        return self.frozen(self.used(x))


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("freeze", ["before", "after"])
def test_weights_without_a_gradient_stay_where_they_are(freeze, scope):
    torch.manual_seed(0)
    model = gossamer.bayesianize(WithSpare(), density=0.3)
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
def test_an_update_without_any_gradient_moves_nothing(scope):
    model = mlp()
    _, subspace = make(model, update_period=1, scope=scope)
    start = positions(model)
    assert subspace.step() is False
    assert positions(model) == start


def test_mean_gradient_is_free_of_noise_at_that_pass_only():
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


@pytest.mark.xfail(reason="layers do not tell an evaluation from the training pass that was asked to be noise-free")
def test_mean_gradient_leaves_evaluations_alone():
    model = mlp()
    make(model, addition="mean_gradient", update_period=1)  # the coming pass is the one before an update
    x = torch.randn(8, 12)
    model.eval()
    with torch.no_grad():
        assert not torch.equal(model(x), model(x))


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(6, 5, bias=False), nn.BatchNorm1d(5, momentum=None)

    def forward(self, x):
        return self.norm(self.linear(x))


def test_multi_sample_gradient_is_the_mean_of_absolute_gradients():
    torch.manual_seed(0)
    model = gossamer.bayesianize(Normed(), density=0.5, init_std=1.0)
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
    assert subspace.step(lambda: (model(x) * weights).sum())
    torch.testing.assert_close(criterion.seen[0][0].view(5, 6), expected)
    assert all(torch.equal(p.grad, grads[name]) for name, p in model.norm.named_parameters())
    assert all(torch.equal(b, buffers[name]) for name, b in model.norm.named_buffers())
    assert buffers["num_batches_tracked"] == 1
    assert all(weight.probe is None for weight in sparse_weights(model).values())


def test_multi_sample_gradient_needs_a_closure():
    model = mlp()
    _, subspace = make(model, addition="multi_sample_gradient", update_period=1)
    with pytest.raises(ValueError, match=r"call subspace\.step\(closure\)"):
        subspace.step()


def n_alive(sizes):
    """Tensors that own as much memory as a dense weight."""
    tensors = [item for item in gc.get_objects() if issubclass(type(item), Tensor)]
    return sum(t.untyped_storage().nbytes() in sizes for t in tensors if t.device.type == "cpu")


@pytest.mark.parametrize("scope", ["layer", "global"])
@pytest.mark.parametrize("addition", ["sampled_gradient", "mean_gradient", "multi_sample_gradient", "random"])
def test_nothing_dense_is_alive_between_updates(addition, scope):
    torch.manual_seed(0)
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(37, 41), nn.Tanh(), nn.Linear(41, 43)), density=0.1)
    optimizer, subspace = make(model, addition=addition, scope=scope)
    x = torch.randn(8, 37)
    for number in range(1, 10):
        armed = number % 3 == 0 and addition in ("sampled_gradient", "mean_gradient")
        assert all((weight.probe is not None) is armed for weight in subspace.weights.values())
        optimizer.zero_grad()
        loss = model(x).square().mean()  # held while memory is looked at, and with it the graph
        loss.backward()
        watched = [weakref.ref(weight.probe.grad) for weight in subspace.weights.values() if armed]
        assert len(watched) == 2 * armed
        assert all(reference() is not None for reference in watched)
        optimizer.step()
        subspace.step(lambda: model(x).square().mean())
        assert all(reference() is None for reference in watched)
        assert number % 3 or n_alive({37 * 41 * 4, 41 * 43 * 4}) == 0
    assert len(subspace.record) == 3
    assert loss.grad_fn is not None
