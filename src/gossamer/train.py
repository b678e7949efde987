"""The loop: one explicit training loop for every method, on Lightning Fabric (devices, precision, ranks)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.optim import sampled
from gossamer.types import Method, Posterior, Split, Step, Task

__all__ = ["Batches", "Training", "fit"]

Record = Callable[[int, dict[str, Tensor]], None]


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
        record: Called after each step with its number and its ``loss``, ``nll`` and ``penalty`` as tensors.
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
    training = Training(method, model, task, steps, fabric, batch_size=batch_size, seed=seed)
    while training.step < steps:
        values = training.advance()
        if record is not None:
            record(training.step, values)
    return training.posterior()


class Training:
    """A training in progress: everything that changes from step to step, and how to save and restore it.

    Example:
        >>> from gossamer import methods
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> task = digits.load()
        >>> training = Training(methods.build("vi", task, steps=5), mlp(64), task, steps=5)
        >>> sorted(training.advance()), training.step
        (['loss', 'nll', 'penalty'], 1)
    """

    def __init__(
        self,
        method: Method,
        model: nn.Module,
        task: Task,
        steps: int,
        fabric: Fabric | None = None,
        *,
        batch_size: int = 64,
        seed: int = 0,
    ) -> None:
        self.method, self.task, self.steps = method, task, steps
        self.fabric = fabric or Fabric(accelerator="cpu", devices=1)
        torch.manual_seed(seed)
        self.model = method.prepare(model)
        self.module, self.optimizer = self.fabric.setup(self.model, method.optimizer(self.model))
        self.rules = method.rules(self.model, self.optimizer)
        self.collector = method.collector()
        rank, n_ranks = self.fabric.global_rank, self.fabric.world_size
        self.batches = Batches(task.train, batch_size, seed, self.fabric.device, rank=rank, n_ranks=n_ranks)
        self.step = 0
        self._ratios = _lr_ratios(self.optimizer)
        if rank > 0:  # the same weights everywhere, noise of its own on each rank
            torch.manual_seed(seed + rank)
        self.module.train()

    def advance(self) -> dict[str, Tensor]:
        """One step; returns its loss and the loss's two parts, detached."""
        number = self.step + 1
        lr = self.method.lr(self.step)
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            group["lr"] = ratio * lr
        x, y = self.batches[self.step]
        x = self.task.transform(self.task.augment(x))

        def loss() -> tuple[Tensor, Tensor]:
            nll = self.task.likelihood.loss(self.module(x), y)
            return nll, self.method.penalty(self.model, number).to(nll)

        self.optimizer.zero_grad()
        with sampled(self.optimizer):
            nll, penalty = loss()
            self.fabric.backward(nll + penalty)
        step = Step(number, self.model, self.optimizer, lambda: sum(loss(), start=torch.zeros_like(nll)))
        if not any([rule(step) for rule in self.rules]):
            self.optimizer.step()
        self.step = number
        self.collector.observe(self.model, number)
        nll, penalty = nll.detach(), penalty.detach()
        return {"loss": nll + penalty, "nll": nll, "penalty": penalty}

    def posterior(self) -> Posterior:
        """The posterior as of now."""
        return self.collector.posterior(self.model, self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """All that an exact continuation needs. With several ranks every one of them must ask at the same step."""
        noise = {"cpu": torch.get_rng_state(), "device": _device_rng_state(self.fabric.device)}
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "rules": [rule.state_dict() for rule in self.rules],
            "collector": self.collector.state_dict(),
            "random": {name: self._from_every_rank(state) for name, state in noise.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: the same numbers follow as if nothing had happened."""
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(saved)
        self.collector.load_state_dict(state.get("collector", {}))
        # Copies: torch reads the state of a view from the wrong place in memory.
        cpu, device = (state["random"][name][self.fabric.global_rank].cpu().clone() for name in ("cpu", "device"))
        torch.set_rng_state(cpu)
        if len(device) and self.fabric.device.type == "cuda":  # a run of a GPU may be read on a machine without
            torch.cuda.set_rng_state(device, self.fabric.device)

    def _from_every_rank(self, state: Tensor) -> Tensor:
        """``(n,)`` of each rank -> ``(ranks, n)``: each has noise of its own to go on with."""
        if self.fabric.world_size == 1 or not len(state):
            return state.expand(self.fabric.world_size, -1)
        own = state.to(self.fabric.device)
        gathered = [torch.empty_like(own) for _ in range(self.fabric.world_size)]
        torch.distributed.all_gather(gathered, own)
        return torch.stack(gathered)


class Batches:
    """The batch of any step, from tensors that stay where they are: one shuffle an epoch, one gather a batch.

    The order of an epoch depends on the seed and the number of the epoch alone, so that a run can continue anywhere.
    The last batch of an epoch may be smaller. With several ranks each takes its share of every batch.

    Example:
        >>> batches = Batches((torch.arange(5), torch.arange(5)), batch_size=2, seed=0)
        >>> [len(batches[step][0]) for step in range(4)], batches.per_epoch
        ([2, 2, 1, 2], 3)
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        if batch_size < 1 or len(split[1]) == 0:
            raise ValueError(
                f"batch_size must be positive and data not empty; got {batch_size} and {len(split[1])} rows"
            )
        self.x, self.y = split[0].to(device), split[1].to(device)
        self.batch_size, self.seed, self.rank, self.n_ranks = batch_size, seed, rank, n_ranks
        self.per_epoch = -(-len(self.y) // batch_size)
        self._epoch, self._order = -1, torch.empty(0)

    def __getitem__(self, step: int) -> Split:
        """The batch of step ``step``, counted from 0."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            # Seeds of neighbouring runs and epochs must not meet: a large odd factor keeps them apart.
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            self._order = torch.randperm(len(self.y), generator=generator).to(self.y.device)
            self._epoch = epoch
        rows = self._order[index * self.batch_size : (index + 1) * self.batch_size]
        if len(rows) >= self.n_ranks:  # a last batch too small to share is every rank's
            rows = rows[self.rank :: self.n_ranks]
        return self.x[rows], self.y[rows]


def _lr_ratios(optimizer: Optimizer) -> list[float]:
    """Rates of the groups over the optimizer's own: a group with a rate of its own keeps its ratio to the schedule.

    Not over the schedule's first value, which is 0 where it warms up.
    """
    default = optimizer.defaults["lr"]
    return [group["lr"] / default if default else 1.0 for group in optimizer.param_groups]


def _device_rng_state(device: torch.device) -> Tensor:
    """Random state of a GPU; the CPU has no second one."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.empty(0, dtype=torch.uint8)
