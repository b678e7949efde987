"""Additions are decided by the gradient of the training step, whatever other backward passes a loop makes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.layers import sparse_weights
from gossamer.schedules import constant


def network() -> nn.Module:
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 4))
    return gossamer.sparsify(plain, density=0.2, keep_dense=())


def fgsm(model, optimizer, x, y, clear):
    """An attack on the input by ``backward``, and then a step on what it gave."""
    attacked = x.clone().requires_grad_()
    F.cross_entropy(model(attacked), y).backward()
    x = attacked.detach() + 0.1 * attacked.grad.sign()
    clear()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def saliency_before(model, optimizer, x, y, clear):
    model(x.clone().requires_grad_()).amax(1).sum().backward()
    clear()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()


def saliency_after(model, optimizer, x, y, clear):
    clear()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    model(x.clone().requires_grad_()).amax(1).sum().backward()


def saliency_of_input(model, optimizer, x, y, clear):
    """``autograd.grad`` of the input passes by every weight, and adds to the gradient of none."""
    clear()
    read = x.clone().requires_grad_()
    torch.autograd.grad(model(read).amax(1).sum(), read)
    F.cross_entropy(model(x), y).backward()
    model(read).amax(1).sum().backward(inputs=[read])
    optimizer.step()


def gan(model, optimizer, x, y, clear):
    """The discriminator steps; then a generator learns through it, and leaves gradients in it."""
    clear()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    generated = torch.full_like(x, 0.3, requires_grad=True)
    (-F.cross_entropy(model(generated * x), y)).backward()


def gan_that_clears_all(model, optimizer, x, y, clear):
    clear()
    F.cross_entropy(model(x), y).backward()
    optimizer.step()
    clear()
    (-F.cross_entropy(model(0.3 * x), y)).backward()


def closure(model, optimizer, x, y, clear):
    def loss():
        clear()
        value = F.cross_entropy(model(x), y)
        value.backward()
        return value

    loss()
    optimizer.step(loss)


def accumulation(model, optimizer, x, y, clear):
    clear()
    for part in range(2):
        (F.cross_entropy(model(x[part::2]), y[part::2]) / 2).backward()
    optimizer.step()


def clip(model) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 1e-2)


def clipping(model, optimizer, x, y, clear):
    handle = optimizer.register_step_pre_hook(lambda *_: clip(model))
    fgsm(model, optimizer, x, y, clear)
    handle.remove()


LOOPS = [
    fgsm,
    saliency_before,
    saliency_after,
    saliency_of_input,
    gan,
    gan_that_clears_all,
    closure,
    accumulation,
    clipping,
]
CLEARS = {
    "zero_grad": lambda model, optimizer: optimizer.zero_grad,
    "zero_grad in place": lambda model, optimizer: lambda: optimizer.zero_grad(set_to_none=False),
    "model.zero_grad": lambda model, optimizer: model.zero_grad,
}


@pytest.mark.parametrize("clear", CLEARS)
@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("loop", LOOPS)
def test_additions_follow_the_gradient_of_the_step(loop, streams, clear, monkeypatch):
    """At a rate of 0 the network is known at every update: who is taken in follows from its plain twin's gradient."""
    if not streams:
        monkeypatch.setattr(gossamer.Subspace, "_streams", lambda self: False)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"removal": "magnitude", "replacement_rate": constant(0.4), "update_period": 3, "until": 1.0}
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
    clear_ = CLEARS[clear](model, optimizer)
    for number in range(1, 10):
        torch.manual_seed(number)
        x, y = torch.randn(16, 20), torch.randint(0, 4, (16,))
        before = {name: weight.support.position.clone() for name, weight in sparse_weights(model).items()}
        mean = {name: weight.mean.detach().clone() for name, weight in sparse_weights(model).items()}
        plain = gossamer.draw(model, at_mean=True)
        gradients = {}
        handle = optimizer.register_step_post_hook(lambda *_, kept=gradients: kept.update(grads_of(model)))
        loop(model, optimizer, x, y, clear_)
        handle.remove()
        assert subspace.step() is (number % 3 == 0)
        if number % 3:
            continue
        dense = dense_gradients(plain, loop, x, y)
        for name, weight in sparse_weights(model).items():
            if loop is not clipping:
                torch.testing.assert_close(dense[name][before[name]], gradients[name])  # what .grad held at the step
            n_removed = int(0.4 * len(before[name]))
            kept = before[name][mean[name].abs().argsort(stable=True)[n_removed:]].tolist()
            score = dense[name].abs()
            score[kept] = -1.0
            expected = sorted(kept + score.topk(n_removed).indices.tolist())
            assert weight.support.position.tolist() == expected
    assert all("postponed" not in update for update in subspace.record)


def grads_of(model):
    return {name: weight.mean.grad.clone() for name, weight in sparse_weights(model).items()}


def dense_gradients(plain, loop, x, y):
    optimizer = torch.optim.SGD(plain.parameters(), lr=0.0)
    grads = {}

    def keep(*_):
        grads.update({name: plain.get_submodule(name).weight.grad.flatten().clone() for name in ("0", "2")})

    optimizer.register_step_post_hook(keep)
    loop(plain, optimizer, x, y, optimizer.zero_grad)
    return grads


def test_a_gradient_of_zeros_is_not_a_cleared_one():
    """The first half of an accumulated batch may leave every active entry without a gradient."""
    layer = gossamer.sparsify(nn.Embedding(4, 3), density=0.5)
    layer.support.position.copy_(torch.arange(6))  # the first two rows
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    options = {"removal": "magnitude", "replacement_rate": constant(0.5), "update_period": 1, "until": 1.0}
    subspace = gossamer.Subspace(layer, optimizer, total_steps=9, addition=lambda stats: stats.grad.abs(), **options)
    optimizer.zero_grad()
    (layer(torch.tensor([3])) * 5).sum().backward()  # no entry of the last row is active
    layer(torch.tensor([0])).sum().backward()
    optimizer.step()
    assert subspace.step()
    assert {9, 10, 11} <= set(layer.support.position.tolist())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, in its tracer
def test_a_compiled_network_forgets_cleared_passes_too(positions):
    results = []
    for wrap in (lambda model: model, lambda model: torch.compile(model, backend="aot_eager")):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"removal": "magnitude", "replacement_rate": constant(0.4), "update_period": 3, "until": 1.0}
        subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
        compiled = wrap(model)
        for number in range(1, 7):
            torch.manual_seed(number)
            fgsm(compiled, optimizer, torch.randn(16, 20), torch.randint(0, 4, (16,)), optimizer.zero_grad)
            subspace.step()
        results.append(positions(model))
    assert results[0] == results[1]
    torch._dynamo.reset()


def by_hand(loss, parameters):
    for parameter, grad in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = grad


@pytest.mark.parametrize("differentiate", [by_hand, lambda loss, parameters: loss.backward(inputs=parameters)])
def test_a_loop_that_forms_no_dense_gradients_is_warned_of_a_subspace_at_rest(differentiate):
    """A criterion of one's own needs whole gradients, which only ``loss.backward()`` forms."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"removal": "magnitude", "addition": lambda stats: stats.grad.abs(), "update_period": 2}
    subspace = gossamer.Subspace(model, optimizer, total_steps=20, **options)
    for number in range(1, 6):
        optimizer.zero_grad()
        differentiate(F.cross_entropy(model(torch.randn(16, 20)), torch.zeros(16).long()), list(model.parameters()))
        optimizer.step()
        if number % 2:
            assert not subspace.step()
        else:
            with pytest.warns(UserWarning, match="call loss.backward"):
                assert not subspace.step()
    assert subspace.record == [{"step": step, "postponed": "no dense gradient was formed"} for step in (2, 4)]
