"""Steps by hand are those of autograd and torch's Adam, and leave the same state behind."""

import copy

import pytest
import torch

from gossamer import methods
from gossamer.estimators.draws import Architecture
from gossamer.estimators.member_steps import MemberSteps, by_hand
from gossamer.estimators.members import Members, SumOverMembers, WithoutFolds, for_members
from gossamer.layers import sparse_weights
from gossamer.likelihoods import Categorical, Gaussian, Weighted
from gossamer.sparsity.criteria import multi_sample_gradient
from gossamer.train import EagerSteps, Training
from gossamer.types import Task

LIKELIHOODS = {
    "numbers": SumOverMembers(Gaussian()),
    "weighted": SumOverMembers(Weighted(Gaussian())),
    "classes": SumOverMembers(Categorical()),
    "folds": WithoutFolds(Gaussian(), 3),
}


def training_of(kind, constant_noise=True, **options):
    torch.manual_seed(0)
    likelihood, columns = LIKELIHOODS[kind], {"weighted": 3, "folds": 4}.get(kind, 2)
    x, y = torch.randn(64, 7), torch.rand(64, columns)
    y = torch.arange(64) % 4 if kind == "classes" else y
    if kind == "folds":
        y[:, -1] = torch.arange(64) % 3
    task = Task((x, y), (x, y), (x, y), likelihood, 4)
    options = {"density": 0.3, "std": "gradient", "update_period": 5} | options
    method = methods.build("ssvi", task, 60, **options).suited_to(torch.nn.Identity())
    shape = Architecture(7, (16, 8), 2 if constant_noise else 4, constant_noise)
    members = Members([method.prepare(shape.build()) for _ in range(3)])
    return Training(for_members(method), members, task, 60, batch_size=16)


@pytest.mark.parametrize(
    ("kind", "constant_noise"),
    [("numbers", True), ("numbers", False), ("weighted", True), ("classes", False), ("folds", True)],
)
def test_gradients_are_those_of_autograd(kind, constant_noise, monkeypatch):
    training, other = (training_of(kind, constant_noise) for _ in range(2))
    steps = MemberSteps(other.model, other.inner_optimizer, other.task, other.penalty)
    noise = list(steps._noise(16))
    drawn = iter(noise)
    monkeypatch.setattr(torch, "randn_like", lambda _: next(drawn).clone())
    monkeypatch.setattr(steps, "_noise", lambda _: [one.clone() for one in noise])
    batch = training.batches[0]
    expected = training.eager.gradients(*batch, 30)
    found = steps.gradients(*batch, 30)
    torch.testing.assert_close(found[:2], expected[:2])
    for (name, one), two in zip(training.model.named_parameters(), other.model.parameters(), strict=True):
        torch.testing.assert_close(two.grad, one.grad, rtol=1e-4, atol=1e-6, msg=name)


def test_adam_is_that_of_torch():
    training, other = (training_of("numbers") for _ in range(2))
    steps = MemberSteps(other.model, other.inner_optimizer, other.task, other.penalty)
    for number in range(1, 4):
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
    with by_hand(training):
        assert isinstance(training.eager, MemberSteps)
        for _ in training.run():
            working = training.eager.working
            dense = torch.zeros_like(working.dense_mean)
            dense[working.address] = working.mean
            torch.testing.assert_close(working.dense_mean, dense, rtol=0, atol=0)
    assert all(weight.dense_copy is None for weight in sparse_weights(training.model).values())
    after = {name: weight.support.position for name, weight in sparse_weights(training.model).items()}
    moved = [name for name in before if not torch.equal(before[name], after[name])]
    assert {name.split(".")[1] for name in moved} == {"0", "1", "2"}
    assert [update["step"] for update in training.updates] == list(range(5, 45, 5))


def test_they_go_on_from_any_state():
    """Interrupted, as between two calls of partial_fit, they lead where they lead without."""
    whole, first, second = (training_of("numbers") for _ in range(3))
    for training, last in ((whole, 30), (first, 15)):
        torch.manual_seed(1)
        with by_hand(training):
            list(training.run(last))
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    with by_hand(second):
        list(second.run(30))
    for one, two in zip(whole.model.parameters(), second.model.parameters(), strict=True):
        torch.testing.assert_close(two, one, rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"std": "curvature"}, {"addition": multi_sample_gradient(2)}])
def test_what_cannot_be_taken_by_hand_is_taken_as_usual(options):
    training = training_of("numbers", **options)
    with by_hand(training):
        assert type(training.eager) is EagerSteps
        list(training.run(12))
