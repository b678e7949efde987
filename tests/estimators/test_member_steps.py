"""Steps in native code are those of autograd and torch's Adam, and leave the same state behind."""

import copy
import itertools
from dataclasses import replace
from pathlib import Path

import mpmath
import pytest
import torch

from gossamer import methods
from gossamer.estimators.draws import Architecture
from gossamer.estimators.members import Members, MemberSteps, SumOverMembers, WithoutFolds, native_steps
from gossamer.kernels import library, native_members
from gossamer.layers import sparse_weights
from gossamer.layers.modules import SparseLinear
from gossamer.likelihoods import Categorical, Gaussian, Weighted
from gossamer.sparsity.criteria import multi_sample_gradient
from gossamer.train import EagerSteps, Training
from gossamer.train.divergence import DivergenceError
from gossamer.types import Step, Task

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")

LIKELIHOODS = {
    "numbers": (SumOverMembers(Gaussian()), 0),
    "weighted": (SumOverMembers(Weighted(Gaussian())), 1),
    "reach": (SumOverMembers(Weighted(Gaussian(reach=0.8))), 1),
    "folds": (WithoutFolds(Gaussian(reach=1.5), 3), 2),
    "classes": (SumOverMembers(Categorical()), 0),
    "weighted classes": (SumOverMembers(Weighted(Categorical())), 1),
    "folds of classes": (WithoutFolds(Categorical(), 3), 2),
}


def training_of(kind, constant_noise=True, *, hidden=(16, 8), rows=64, batch=16, inputs=7, seed=0, **options):
    """Three networks for two numbers or four classes."""
    torch.manual_seed(seed)
    likelihood, more = LIKELIHOODS[kind]
    of_classes = "classes" in kind
    x, y = torch.randn(rows, inputs), torch.randn(rows, 2)
    y = (torch.arange(rows) % 4).unsqueeze(1) if of_classes else y
    y = torch.cat([y, torch.rand(rows, more)], 1) if more else y
    if more == 2:
        y[:, -1] = torch.arange(rows) % 3
    y = y[:, 0] if of_classes and not more else y.float()
    task = Task((x, y), (x, y), (x, y), likelihood, 4)
    options = {"density": 0.3, "std": "gradient", "update_period": 5} | options
    method = methods.build("ssvi", task, 60, **options).suited_to(torch.nn.Identity())
    constant_noise = constant_noise and not of_classes
    shape = Architecture(inputs, hidden, 2 if constant_noise else 4, constant_noise)
    members = Members([method.prepare(shape.build()) for _ in range(3)])
    return Training(
        replace(method, prepare=lambda members: members), members, task, 60, batch_size=batch, steps_by=native_steps
    )


def steps_of(training):
    return MemberSteps(training.model, training.inner_optimizer, training.task, training.penalty)


def noise_of(seed, model, rows):
    """What native code draws for each layer, ``(members, rows, out)``: units of a member are padded rows apart."""
    widths, padded = [layers[0].weight.support.shape[0] for layers in model.layers], -(-rows // 8) * 8
    size = -(-sum(widths) * padded // 32) * 32
    flat = library.normals(torch.tensor(seed), (len(model.networks), size))
    parts = flat[:, : sum(widths) * padded].split([width * padded for width in widths], dim=1)
    return [part.unflatten(1, (width, padded))[..., :rows].mT for part, width in zip(parts, widths, strict=True)]


def autograd_of(training, batch, number, seed, monkeypatch, noise=None):
    """Loss, penalty and gradients in double precision, with the noise that native code draws from the seed."""
    model = copy.deepcopy(training.model).double()
    of_layers = noise_of(seed, model, len(batch[0])) if noise is None else noise
    drawn = (noise[member] for member in range(len(model.networks)) for noise in of_layers)
    x, y = (part.double() if part.is_floating_point() else part for part in batch)
    with monkeypatch.context() as patch:
        patch.setattr(torch, "randn_like", lambda _: next(drawn).double())
        nll = training.task.likelihood.loss(model(x), y)
    penalty = training.penalty(model, number)
    (nll + penalty).backward()
    return nll.detach(), penalty.detach(), [parameter.grad for parameter in model.parameters()]


def assert_close(found, expected, name=""):
    """Up to the rounding of float32: a gradient is a sum of rows of order 1, or as large as its largest entry."""
    scale = max(1.0, float(expected.abs().max()))
    torch.testing.assert_close(found.double(), expected, rtol=1e-5, atol=2e-6 * scale, msg=lambda m: f"{name}: {m}")


CASES = [(kind, constant) for kind in LIKELIHOODS for constant in (True, False) if constant or "classes" not in kind]
SHAPES = list(itertools.product([((), 13), ((16, 8), 21), ((9, 50, 11), 64), ((17,), 100)], [0.1, 0.3, 1.0]))


@pytest.mark.parametrize(("kind", "constant_noise"), CASES)
@pytest.mark.parametrize(("shape", "density"), SHAPES)
def test_gradients_are_those_of_autograd(kind, constant_noise, shape, density, monkeypatch):
    hidden, rows = shape
    training = training_of(kind, constant_noise, hidden=hidden, rows=rows, batch=rows, density=density, seed=rows)
    steps, batch = steps_of(training), training.batches[0]
    torch.manual_seed(3)
    nll, penalty, _ = steps.gradients(*batch, 30)
    nll64, penalty64, grads = autograd_of(training, batch, 30, int(steps.seed), monkeypatch)
    assert_close(nll, nll64, "nll")
    assert_close(penalty, penalty64, "penalty")
    for (name, parameter), grad in zip(training.model.named_parameters(), grads, strict=True):
        assert_close(parameter.grad, grad, name)


@pytest.mark.parametrize("path", sorted(Path(library.__file__).parent.glob("_cpu_*.so")), ids=lambda path: path.stem)
def test_every_library_that_runs_here_agrees(path, monkeypatch):
    functions = library._functions_of(path)
    if not functions:
        pytest.skip("this processor cannot run it, or it is of another version")
    monkeypatch.setattr(library, "LIBRARY", functions)
    test_gradients_are_those_of_autograd("folds", False, ((9, 50, 11), 77), 0.3, monkeypatch)
    test_gradients_are_those_of_autograd("classes", False, ((16, 8), 21), 0.3, monkeypatch)
    test_adam_is_that_of_torch()


@pytest.mark.parametrize("criterion", ["sampled_gradient", "mean_gradient"])
def test_dense_gradients_are_there_before_a_move(criterion):
    """Those of the noisy network, or of that at its means where the criterion asks for it."""
    training = training_of("numbers", batch=61, addition=criterion, update_period=1)
    steps, (x, y) = steps_of(training), training.batches[0]
    weights = list(sparse_weights(training.model).values())
    steps.gradients(x, y, 1)
    means = [weight.dense_mean().detach().double().requires_grad_() for weight in weights]
    noise = noise_of(int(steps.seed), training.model, len(x))
    for member, network in enumerate(training.model.networks):
        h, layers = x.double(), [part for part in network.modules() if isinstance(part, SparseLinear)]
        for i, layer in enumerate(layers):
            h = h.relu() if i else h
            std = (h.square() @ layer.weight.dense_std().double().square().mT).clamp_min(1e-30).sqrt()
            own = noise[i][member].double() * (criterion == "sampled_gradient")
            h = h @ means[len(layers) * member + i].mT + layer.bias.double() + std * own
        Gaussian().loss(torch.cat([h, network.raw_noise.double().expand_as(h)], -1), y.double()).backward()
    for weight, mean in zip(weights, means, strict=True):
        assert_close(weight.probe.grad, mean.grad)
    training.rules[0](Step(1, training.model, training.optimizer, lambda: None))
    assert all(weight.probe is not None and weight.probe.grad is None for weight in weights)  # asked for anew


def test_the_kl_is_exact_from_the_smallest_std_to_the_largest():
    """Against 50 digits: floats of a log of so many orders of magnitude."""
    training = training_of("numbers")
    weights = sparse_weights(training.model).values()
    raw = torch.cat([torch.linspace(-90, 90, 181), torch.linspace(-1e-3, 1e-3, 11), torch.tensor([-30.0, 17.0])])
    with torch.no_grad():
        for i, weight in enumerate(weights):
            weight.raw_std.copy_(raw.roll(50 * i)[: len(weight.raw_std)])
    steps, scale = steps_of(training), training.penalty.scale(30)
    _, penalty, _ = steps.gradients(*training.batches[0], 30)
    with mpmath.workdps(50):
        total = mpmath.mpf(0)
        for weight in weights:
            prior = mpmath.mpf(weight.prior_std)
            for m, r in zip(weight.mean.tolist(), weight.raw_std.tolist(), strict=True):
                std = max(mpmath.log1p(mpmath.exp(r)), mpmath.mpf(1e-30))
                total += mpmath.log(prior / std) + (std**2 + mpmath.mpf(m) ** 2) / (2 * prior**2) - mpmath.mpf(0.5)
        assert float(penalty) == pytest.approx(float(scale * total), rel=2e-7)


@pytest.mark.parametrize("where", ["mean", "raw_std", "bias", "target"])
def test_what_is_not_finite_is_seen(where):
    training = training_of("numbers")
    weight = training.model.networks[1].mean[3].weight
    with torch.no_grad():
        if where in ("mean", "raw_std"):
            getattr(weight, where)[2] = torch.nan
        if where == "bias":
            training.model.networks[1].mean[1].bias[:] = torch.nan
        if where == "target":
            training.batches.y[:, 0] = torch.nan
    with pytest.raises(DivergenceError, match="at step 1: a loss of nan"):
        training.advance()


def test_adam_is_that_of_torch():
    training, other = (training_of("numbers", weight_decay=0.01) for _ in range(2))
    steps = steps_of(other)
    for number in range(1, 6):
        torch.manual_seed(number)
        training.eager.gradients(*training.batches[0], number)
        for one, two in zip(training.model.parameters(), other.model.parameters(), strict=True):
            two.grad.copy_(one.grad)
        for taken in (training.eager, steps):
            taken.set_rates([0.01, 0.02, 0.03])
            taken.apply()
    for one, two in zip(training.model.parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(two, one)
    states = training.optimizer.state_dict()["state"], other.optimizer.state_dict()["state"]
    for number, state in states[0].items():
        for name, value in state.items():
            torch.testing.assert_close(states[1][number][name], value)


def test_a_subspace_moves_by_the_dense_gradients():
    training = training_of("numbers")
    before = {name: weight.support.position.clone() for name, weight in sparse_weights(training.model).items()}
    list(training.run())
    assert isinstance(training.taking, MemberSteps)
    after = {name: weight.support.position for name, weight in sparse_weights(training.model).items()}
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert {name.split(".")[1] for name in moved} == {"0", "1", "2"}
    assert [update["step"] for update in training.updates] == list(range(5, 45, 5))
    assert not any("postponed" in update for update in training.updates)


def test_gradients_are_right_after_moves(monkeypatch):
    training = training_of("numbers", False)
    list(training.run(23))
    batch = training.batches[23]
    found = training.taking.gradients(*batch, 24)
    expected = autograd_of(training, batch, 24, int(training.taking.seed), monkeypatch)
    assert_close(found[0], expected[0])
    for (name, parameter), grad in zip(training.model.named_parameters(), expected[2], strict=True):
        assert_close(parameter.grad, grad, name)


def test_they_go_on_from_any_state():
    """Interrupted, they lead where they lead without."""
    whole, first, second = (training_of("numbers") for _ in range(3))
    for training, last in ((whole, 30), (first, 15)):
        torch.manual_seed(1)
        list(training.run(last))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    list(second.run(30))
    for one, two in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=0)


def test_threads_change_nothing(monkeypatch):
    one, several = (training_of("numbers", False) for _ in range(2))
    for training, threads in ((one, 1), (several, 3)):
        monkeypatch.setattr(native_members, "MANY", 0)
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        torch.manual_seed(1)
        list(training.run(12))
    for first, second in zip(one.model.parameters(), several.model.parameters(), strict=True):
        torch.testing.assert_close(second, first, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"std": "curvature"}, {"addition": multi_sample_gradient(2)}])
def test_what_native_code_does_not_know_is_done_as_usual(options):
    training = training_of("numbers", **options)
    list(training.run(12))
    assert type(training.taking) is EagerSteps


def test_without_the_library_autograd_takes_the_steps(monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", {})
    training = training_of("numbers")
    list(training.run(6))
    assert type(training.taking) is EagerSteps
