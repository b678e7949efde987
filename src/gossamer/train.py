"""The loop: one explicit training loop for every method, on Lightning Fabric (devices, precision, ranks)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.data._batches import batches
from gossamer.types import Method, Posterior, Schedule, Step, Task

__all__ = ["fit"]

Record = Callable[[int, dict[str, float]], None]


def fit(
    method: Method,
    model: nn.Module,
    task: Task,
    steps: int,
    fabric: Fabric | None = None,
    record: Record | None = None,
    *,
    batch_size: int = 64,
    seed: int = 0,
) -> Posterior:
    """Train ``model`` (a plain network, converted in place) by ``method`` and return its posterior.

    Args:
        method: What :func:`gossamer.methods.build` gives.
        model: A plain network.
        task: Data and likelihood.
        steps: How many optimizer steps.
        fabric: Where and in which precision; ``None`` is one CPU process in float32.
        record: Called after each step with its number and its loss, penalty and learning rate.
        batch_size: Examples per step.
        seed: Of the order of the examples, the first active weights and all noise.

    Example:
        >>> from gossamer import methods
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> task = digits.load()
        >>> posterior = fit(methods.build("ssvi", task, steps=20), mlp(64), task, steps=20)
        >>> len(list(posterior.draws(3)))
        3
    """
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    torch.manual_seed(seed)
    model = method.prepare(model)
    module, optimizer = fabric.setup(model, method.optimizer(model))
    rules = method.rules(model, optimizer)
    collector = method.collector()
    set_lr = _lr_setter(optimizer, method.lr)
    inputs, targets = task.train
    stream = batches(
        (inputs.to(fabric.device), targets.to(fabric.device)), batch_size, torch.Generator().manual_seed(seed)
    )

    module.train()
    for number in range(1, steps + 1):
        x, y = next(stream)
        batch = (task.augment(x), y)
        set_lr(number - 1)

        def loss(batch: tuple[Tensor, Tensor] = batch, number: int = number) -> Tensor:
            likelihood_loss = task.likelihood.loss(module(task.transform(batch[0])), batch[1])
            return likelihood_loss + method.penalty(model, number).to(likelihood_loss)

        optimizer.zero_grad()
        value = loss()
        fabric.backward(value)
        spent = [rule(Step(number, model, optimizer, loss)) for rule in rules]
        if not any(spent):
            optimizer.step()
        collector.observe(model, number)
        if record is not None:
            record(number, {"loss": float(value.detach()), "lr": method.lr(number - 1)})
    return collector.posterior(model)


def _lr_setter(optimizer: Optimizer, lr: Schedule) -> Callable[[int], None]:
    """Sets every group to the schedule, groups with a rate of their own at their ratio to it."""
    start = lr(0)
    ratios = [group["lr"] / start for group in optimizer.param_groups]

    def set_lr(step: int) -> None:
        for group, ratio in zip(optimizer.param_groups, ratios, strict=True):
            group["lr"] = ratio * lr(step)

    return set_lr
