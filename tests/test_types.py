"""The protocols tell the truth: what is missing cannot be built, and what is minimal works everywhere."""

import io
from dataclasses import replace

import pytest
import torch
from torch import nn

from gossamer import methods
from gossamer.data import digits
from gossamer.evaluate import evaluate
from gossamer.models import mlp
from gossamer.optim import Sampler
from gossamer.train import Training, fit
from gossamer.train.capture import why_not
from gossamer.types import Collector, Penalty, Posterior, Rule, as_penalty, no_penalty

STEPS = 4


class Counts(Rule):
    """A rule that is nothing but its call."""

    def __call__(self, step):
        self.last = step.number
        return False


class Itself(Posterior):
    """A posterior that is nothing but its draws."""

    def __init__(self, model):
        self.model = model

    def draws(self, n):
        yield from [self.model] * n


class Takes(Collector):
    """A collector that is nothing but its posterior."""

    def posterior(self, model, optimizer=None):
        return Itself(model)


@pytest.fixture(scope="module")
def task():
    return digits.load()


def minimal(task, **parts):
    own = {"rules": lambda model, optimizer: [Counts()], "collector": Takes}
    return replace(methods.build("sgd", task, STEPS), **own | parts)


@pytest.mark.parametrize("base", [Rule, Penalty, Posterior, Collector, Sampler])
def test_what_is_incomplete_cannot_be_built(base):
    incomplete = type("Incomplete", (base,), {})
    arguments = ([nn.Parameter(torch.zeros(1))], {}, None) if base is Sampler else ()
    with pytest.raises(TypeError, match="abstract"):
        incomplete(*arguments)


def test_minimal_parts_train_and_predict(task):
    posterior = fit(minimal(task), mlp(64, (8,)), task, STEPS)
    assert 0 <= evaluate(posterior, task, 2)["accuracy"] <= 1
    assert posterior.n_bytes == 4 * (64 * 8 + 8 + 2 * 8 + 8 * 10 + 10 - 2 * 8)


def test_minimal_parts_are_saved_and_restored(task):
    def start():
        torch.manual_seed(0)
        return Training(minimal(task), mlp(64, (8,)), task, STEPS)

    first, second = start(), start()
    first.advance()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(first.advance()["loss"], second.advance()["loss"])
    assert second.rules[0].last == 2


def test_minimal_parts_say_why_they_are_not_captured(task):
    training = Training(minimal(task), mlp(64, (8,)), task, STEPS)
    reason = why_not(training.model, training.inner_optimizer, training.penalty, training.rules)
    assert reason == "Counts as it is set changes shapes or evaluates the loss again"
    training = Training(minimal(task, penalty=lambda model, step: torch.ones(())), mlp(64, (8,)), task, STEPS)
    reason = why_not(training.model, training.inner_optimizer, training.penalty, ())
    assert reason == "its penalty is not the KL of Gaussian weights"


def test_a_penalty_may_be_a_plain_function(task):
    training = Training(minimal(task, penalty=lambda model, step: torch.tensor(float(step))), mlp(64), task, STEPS)
    assert [float(training.advance()["penalty"]) for _ in range(2)] == [1, 2]
    assert as_penalty(no_penalty) is no_penalty
    assert (no_penalty.scale(3), float(no_penalty(nn.Linear(1, 1), 3))) == (0, 0)


@pytest.mark.parametrize(
    ("part", "error"), [({"rules": lambda model, optimizer: [print]}, "Rule"), ({"collector": lambda: print}, "Coll")]
)
def test_parts_of_another_kind_are_refused_at_the_start(task, part, error):
    with pytest.raises(TypeError, match=f"must be a subclass of gossamer.types.{error}"):
        Training(minimal(task, **part), mlp(64), task, STEPS)


def test_a_collector_that_overrides_observe_sees_every_step(task):
    seen = []

    class Watches(Takes):
        def observe(self, model, step):
            seen.append(step)

    fit(minimal(task, collector=Watches), mlp(64), task, STEPS)
    assert seen == [1, 2, 3, 4]
