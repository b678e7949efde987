"""Passes as graphs: the numbers of plain steps for every kind of method, and graphs that follow moved tensors."""

import logging

import pytest
import torch
from lightning_fabric import Fabric
from torch import nn

from gossamer import methods
from gossamer.likelihoods import Categorical
from gossamer.train import Training
from gossamer.train.capture import CapturedPasses, CaptureError
from gossamer.train.capture import passes as module
from gossamer.types import Rule, Task, as_penalty

STEPS = 24
METHODS = {
    "vd": {},
    "bayes_compression": {},
    "sbp": {},
    "svbnn": {},
    "splbnn": {},
    "rank1": {},
    "ivon": {},
    "cv_adam": {},
    "csgld": {},
    "csghmc": {},
    "cv_sghmc": {},
    "aeb": {"samples": 2},
    "em_mcmc": {"density": 0.3},
    "magnitude": {"density": 0.3},
    "dpf": {"density": 0.3},
    "sm": {"density": 0.3, "update_period": 6},
    "dsr": {"density": 0.3, "update_period": 6},
}


def training(method, device="cpu", precision="32-true", captures=False):
    torch.manual_seed(0)
    split = (torch.randn(70, 1, 6, 6), torch.randint(4, (70,)))
    task = Task(split, split, split, Categorical(), 4)
    network = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(128, 16), nn.ReLU(), nn.Linear(16, 4)
    )
    fabric = Fabric(accelerator=device, devices=1, precision=precision)
    parts = methods.build(method, task, STEPS, **METHODS[method])
    return Training(parts, network, task, STEPS, fabric, batch_size=16, seed=3, captures=captures)


def passed(plain):
    """The same training by captured passes, without a graph."""
    plain.taking = CapturedPasses(plain.eager, captures=False)
    return plain


@pytest.mark.parametrize("method", METHODS)
def test_the_numbers_of_plain_steps(method):
    plain, other = training(method), passed(training(method))
    for step in range(STEPS):
        torch.manual_seed(step)
        expected = plain.advance()
        torch.manual_seed(step)
        torch.testing.assert_close(other.advance(), expected, rtol=1e-4, atol=1e-5)
    assert other.taking is not other.eager
    for mine, theirs in zip(other.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-4)


def test_a_penalty_that_is_no_number_times_a_function_is_differentiated_beside_the_graph():
    other = passed(training("csgld"))
    other.taking.penalty = as_penalty(lambda model, step: step * sum(p.square().sum() for p in model.parameters()))
    before = [parameter.detach().clone() for parameter in other.model.parameters()]
    _, penalty, _ = other.taking.gradients(*other.batches[0], 3)
    assert float(penalty) == pytest.approx(3 * sum(float(p.square().sum()) for p in before), rel=1e-5)
    with_it = [parameter.grad.clone() for parameter in other.model.parameters()]
    other.taking.penalty = as_penalty(lambda model, step: 0.0 * next(model.parameters()).sum())
    other.taking.gradients(*other.batches[0], 3)
    for one, parameter, value in zip(with_it, other.model.parameters(), before, strict=True):
        torch.testing.assert_close(one - parameter.grad, 6 * value, rtol=1e-4, atol=1e-5)


class Move(Rule):
    def __call__(self, step):
        for parameter in step.model.parameters():
            parameter.data = parameter.data.clone()
        return False


def test_weights_that_move_in_every_step_are_not_worth_graphs(monkeypatch):
    monkeypatch.setattr(module, "FIRST", 3)
    other = passed(training("csgld"))
    other.rules = [Move()]
    for number in range(1, 4):
        other.taking.gradients(*other.batches[0], number)
        other.rules[0](type("Step", (), {"model": other.model}))
    with pytest.raises(CaptureError, match="almost every step"):
        other.taking.gradients(*other.batches[0], 4)


@pytest.mark.gpu
@pytest.mark.parametrize("method", METHODS)
def test_passes_are_captured(method, caplog):
    graphs = training(method, "cuda", "bf16-mixed", captures=True)
    plain = training(method, "cuda", "bf16-mixed")
    with caplog.at_level(logging.WARNING, "gossamer"):
        found = [float(graphs.advance()["nll"]) for _ in range(STEPS)]
    assert isinstance(graphs.taking, CapturedPasses), caplog.text
    assert "only the passes" in caplog.text
    expected = [float(plain.advance()["nll"]) for _ in range(STEPS)]
    assert found[0] == pytest.approx(expected[0], rel=0.3)  # other noise
    assert sum(found[-4:]) < 1.5 * sum(expected[-4:]) + 0.5
