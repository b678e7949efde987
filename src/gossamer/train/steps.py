"""The one training step of every method, and steps that run operation by operation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.train.capture import CapturedPasses, CapturedSteps
from gossamer.types import Penalty, Rule, Step, VariationalOptimizer, no_penalty

__all__ = ["EagerSteps", "take_step"]


def take_step(
    steps: EagerSteps | CapturedSteps | CapturedPasses,
    rules: Sequence[Rule],
    number: int,
    rates: Sequence[float],
    x: Tensor,
    y: Tensor,
    *,
    check: Callable[[Tensor], None] = lambda loss: None,
) -> tuple[Tensor, Tensor]:
    """The one training step: gradients of a batch, then the rules, then the optimizer unless the gradient is spent.

    ``check`` may refuse a loss by raising, before anything is changed.

    Returns:
        Negative log-likelihood and penalty of the batch before the step, detached.
    """
    steps.set_rates(rates)
    nll, penalty, again = steps.gradients(x, y, number)
    check(nll + penalty)
    acts = any(rule.acts for rule in rules)
    step = Step(number, steps.model, steps.optimizer, again)
    is_spent = any([rule(step) for rule in rules])
    if acts:
        steps.refresh()
    if not is_spent:
        steps.apply()
    return nll, penalty


class EagerSteps:
    """Steps on any device, operation by operation: the interface of :class:`gossamer.train.capture.CapturedSteps`, too.

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
        objective: Callable[[Tensor, Tensor], Callable[[], Tensor]],
        penalty: Penalty = no_penalty,
        *,
        backward: Callable[[Tensor], None] = Tensor.backward,
        again: Callable[[Tensor, Tensor], Callable[[], Tensor]] | None = None,
    ) -> None:
        self.model, self.optimizer, self.objective, self.again = model, optimizer, objective, again or objective
        self.penalty, self.backward = penalty, backward
        self.weight = 1.0  # of the batch's loss: see Batches.weight
        self._drawn = optimizer.sampled if isinstance(optimizer, VariationalOptimizer) else nullcontext

    def set_rates(self, rates: Sequence[float]) -> None:
        """Learning rates of the parameter groups for the coming step."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
        """Forward and backward pass; returns nll, penalty, and a function that evaluates the loss again."""

        def loss(evaluate: Callable[[], Tensor]) -> tuple[Tensor, Tensor]:
            nll = evaluate() if self.weight == 1.0 else self.weight * evaluate()
            return nll, self.penalty(self.model, number).to(nll)

        self.optimizer.zero_grad()
        with self._drawn():
            nll, penalty = loss(self.objective(x, y))
            self.backward(nll + penalty)
        return nll.detach(), penalty.detach(), lambda: torch.add(*loss(self.again(x, y)))

    def refresh(self) -> None:
        """Nothing is copied from the weights, so nothing has to follow them."""

    def apply(self) -> None:
        """The optimizer's step."""
        self.optimizer.step()
