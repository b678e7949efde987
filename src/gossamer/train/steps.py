"""The training step of every method, its parts, and steps that run operation by operation."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.types import Penalty, Rule, Step, Task, VariationalOptimizer, identity, no_penalty

__all__ = ["EagerSteps", "Steps", "objective_of", "take_step"]

Evaluate = Callable[[], Tensor]
Objective = Callable[[Tensor, Tensor], Evaluate]
"""For a batch, the function that evaluates its loss."""


class Steps(ABC):
    """The two halves of a training step: gradients of a batch, and the optimizer's step. Subclasses differ in speed.

    A new kind needs ``gradients`` alone; :class:`gossamer.train.Training` takes it by ``steps_by``.

    Attributes:
        model: The converted network.
        optimizer: Its optimizer, in any state.
        weight: What the loss of the batch is multiplied by, see :meth:`gossamer.train.Batches.weight`; set before each
            step.
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer) -> None:
        self.model, self.optimizer, self.weight = model, optimizer, 1.0

    @abstractmethod
    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Evaluate]:
        """Forward and backward pass of a batch as the task stores it, into the gradients that the optimizer reads.

        Returns:
            Negative log-likelihood and penalty of step ``number``, detached, and a function that evaluates the loss
            again.
        """

    def set_rates(self, rates: Sequence[float]) -> None:
        """Learning rates of the parameter groups for the coming step."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def refresh(self) -> None:  # noqa: B027 (what is not copied from the weights need not follow them)
        """Follow what a rule has changed."""

    def apply(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()

    def restore_options(self, groups: Sequence[dict[str, Any]]) -> None:  # noqa: B027 (most change no options)
        """Give copies of the optimizer's groups the options that they were given with."""

    def close(self) -> None:  # noqa: B027 (most hold nothing)
        """Return network and optimizer to eager computation, with the same numbers."""


def take_step(
    steps: Steps,
    rules: Sequence[Rule],
    number: int,
    rates: Sequence[float],
    x: Tensor,
    y: Tensor,
    check: Callable[[Tensor], None] = lambda loss: None,
) -> tuple[Tensor, Tensor]:
    """Take a training step: gradients of a batch, then the rules, then the optimizer unless the gradient is spent.

    ``check`` may refuse a loss by raising, before anything is changed.

    Returns:
        Negative log-likelihood and penalty of the batch before the step, detached.
    """
    steps.set_rates(rates)
    for rule in rules:
        rule.zero_grad()
    nll, penalty, again = steps.gradients(x, y, number)
    check(nll + penalty)
    step, acts, is_spent = Step(number, steps.model, steps.optimizer, again), False, False
    for rule in rules:
        acts |= rule.acts
        is_spent |= rule(step)
    if acts:
        steps.refresh()
    if not is_spent:
        steps.apply()
    return nll, penalty


class EagerSteps(Steps):
    """Steps on any device, operation by operation.

    Args:
        model: The converted network.
        optimizer: Its optimizer; one that holds a posterior draws the weights for the pass.
        objective: For a batch, the function that evaluates its loss.
        penalty: Added to the loss.
        backward: Differentiates a loss.
        again: As ``objective``, for rules that evaluate the loss again, whose gradient ``torch.autograd.grad`` takes.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        objective: Objective,
        penalty: Penalty = no_penalty,
        *,
        backward: Callable[[Tensor], None] = Tensor.backward,
        again: Objective | None = None,
    ) -> None:
        super().__init__(model, optimizer)
        self.objective, self.penalty, self.backward, self.again = objective, penalty, backward, again or objective
        self.drawn = optimizer.sampled if isinstance(optimizer, VariationalOptimizer) else nullcontext

    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Evaluate]:
        def loss(evaluate: Evaluate) -> tuple[Tensor, Tensor]:
            nll = evaluate() if self.weight == 1.0 else self.weight * evaluate()
            return nll, nll.new_zeros(()) if self.penalty is no_penalty else self.penalty(self.model, number).to(nll)

        self.optimizer.zero_grad()
        with self.drawn():
            nll, penalty = loss(self.objective(x, y))
            self.backward(nll + penalty)
        return nll.detach(), penalty.detach(), lambda: torch.add(*loss(self.again(x, y)))


def objective_of(task: Task, network: Callable[[Tensor], Tensor]) -> Objective:
    """The objective of a network for batches as a task stores them."""

    def objective(x: Tensor, y: Tensor) -> Evaluate:
        inputs = x if task.transform is identity else task.transform(x)
        return lambda: task.likelihood.loss(network(inputs), y)

    return objective
