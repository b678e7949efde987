"""The loop: one explicit training loop for every method, on Lightning Fabric (devices, precision, ranks)."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, TypeVar

import torch
import torch.distributed
from lightning_fabric import Fabric
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.capture import CapturedSteps, why_not
from gossamer.kernels.fused import Fused, check_fused
from gossamer.types import (
    Collector,
    Method,
    Posterior,
    Rule,
    Split,
    Step,
    Task,
    VariationalOptimizer,
    as_penalty,
    identity,
)

__all__ = ["Batches", "Training", "fit"]

Part = TypeVar("Part")
Record = Callable[[int, dict[str, Tensor]], None]

AT_ONCE = 4096  # examples that are augmented at a time: what that takes in between must fit beside the network


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
    for values in training.run():
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
        captures: bool = False,
        fused: Fused = "auto",
    ) -> None:
        check_fused(fused)
        self.method, self.task, self.steps = method, task, steps
        self.fabric = fabric or Fabric(accelerator="cpu", devices=1)
        torch.manual_seed(seed)
        self.model = method.prepare(model)
        self.module, self.optimizer = self.fabric.setup(self.model, method.optimizer(self.model))
        self.rules = _checked(Rule, method.rules(self.model, self.optimizer))
        self.penalty = as_penalty(method.penalty)
        (self.collector,) = _checked(Collector, [method.collector()])
        rank, n_ranks = self.fabric.global_rank, self.fabric.world_size
        self.batches = Batches(
            task.train, batch_size, seed, self.fabric.device, augment=task.augment, rank=rank, n_ranks=n_ranks
        )
        self.step = 0
        self._observes = type(self.collector).observe is not Collector.observe
        self._drawn = self.optimizer.sampled if isinstance(self.optimizer, VariationalOptimizer) else nullcontext
        self.captures = captures  # as long as nothing stands in the way
        self.fused: Fused = fused
        self._captured: CapturedSteps | None = None
        self._ratios = _lr_ratios(self.optimizer)
        if rank > 0:  # the same weights everywhere, noise of its own on each rank
            torch.manual_seed(seed + rank)
        self.module.train()

    def run(self, last: int | None = None) -> Iterator[dict[str, Tensor]]:
        """The one loop: take the steps up to ``last``, by default to the end, and yield what :meth:`advance` returns.

        Whatever happens between two steps (records, checkpoints, early stopping) is the body of the caller's loop.
        """
        while self.step < (self.steps if last is None else last):
            yield self.advance()

    def advance(self) -> dict[str, Tensor]:
        """One step; returns its loss and the loss's two parts, detached."""
        number = self.step + 1
        lr = self.method.lr(self.step)
        rates = [ratio * lr for ratio in self._ratios]
        x, y = self.batches[self.step]
        values = self._replay(x, y, number, rates) if self.captures else None
        if values is None:
            values = self._compute(x, y, number, rates)
        self.step = number
        if self._observes:
            self.collector.observe(self.model, number)
        return {"loss": values[0] + values[1], "nll": values[0], "penalty": values[1]}

    def _compute(self, x: Tensor, y: Tensor, number: int, rates: list[float]) -> tuple[Tensor, Tensor]:
        """A step on any device."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        x = self.task.transform(x)

        def loss() -> tuple[Tensor, Tensor]:
            nll = self.task.likelihood.loss(self.module(x), y)
            return nll, self.penalty(self.model, number).to(nll)

        self.optimizer.zero_grad()
        with self._drawn():
            nll, penalty = loss()
            self.fabric.backward(nll + penalty)
        if not self._ruled(number, lambda: sum(loss(), start=torch.zeros_like(nll))):
            self.optimizer.step()
        return nll.detach(), penalty.detach()

    def _ruled(self, number: int, loss: Callable[[], Tensor]) -> bool:
        """Let the rules act; whether one of them has spent the gradient."""
        step = Step(number, self.model, self.optimizer, loss)
        return any([rule(step) for rule in self.rules])

    def _replay(self, x: Tensor, y: Tensor, number: int, rates: list[float]) -> tuple[Tensor, Tensor] | None:
        """A step of one GPU by captured graphs; ``None`` where it cannot be, and then never again in this training."""
        try:
            steps = self._captured or self._capture()
            steps.gradients(x, y, number)
        except (RuntimeError, ValueError, torch.cuda.CudaError) as error:
            reason = str(error).splitlines()[0]
            logging.getLogger("gossamer").warning(f"training steps are not captured as CUDA graphs: {reason}")
            self.captures = False
            self._release()
            return None
        acts = any(rule.acts for rule in self.rules)
        spent = self._ruled(number, _no_loss)
        if acts:
            steps.refresh()
        if not spent:
            steps.apply(rates)
        nll, penalty = steps.values.clone()
        return nll, penalty

    def _capture(self) -> CapturedSteps:
        reason = "several ranks train together" if self.fabric.world_size > 1 else None
        reason = reason or why_not(self.model, self._inner_optimizer, self.penalty, self.rules)
        if reason is not None:
            raise ValueError(reason)
        dtype = torch.bfloat16 if "bf16" in str(self.fabric._precision.precision) else torch.float32
        parts = self.model, self._inner_optimizer, self.task, self.penalty
        self._captured = CapturedSteps(*parts, dtype, fused=self.fused)
        return self._captured

    @property
    def _inner_optimizer(self) -> Optimizer:
        """The optimizer itself, without what Fabric puts around it."""
        optimizer: Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return optimizer

    def _release(self) -> None:
        if self._captured is not None:
            self._captured.close()
            self._captured = None

    def posterior(self) -> Posterior:
        """The posterior as of now."""
        return self.collector.posterior(self.model, self.optimizer)

    def state_dict(self) -> dict[str, Any]:
        """All that an exact continuation needs. With several ranks every one of them must ask at the same step."""
        optimizer = self.optimizer.state_dict()
        if self._captured is not None:  # how a graph wants its options is nobody else's business
            for group, options in zip(optimizer["param_groups"], self._captured.on_device.options, strict=True):
                group.update(options)
        noise = {"cpu": torch.get_rng_state(), "device": _device_rng_state(self.fabric.device)}
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": optimizer,
            "rules": [rule.state_dict() for rule in self.rules],
            "collector": self.collector.state_dict(),
            "random": {name: self._from_every_rank(state) for name, state in noise.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: the same numbers follow as if nothing had happened."""
        self._release()
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

    The order of an epoch, and how its examples are augmented, depend on the seed and the number of the epoch alone, so
    that a run can continue anywhere. An epoch is augmented at once: on a GPU that is a few kernels instead of a few a
    batch. The last batch of an epoch may be smaller. With several ranks each takes its share of every batch.

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
        augment: Callable[[Tensor], Tensor] = identity,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        if batch_size < 1 or len(split[1]) == 0:
            raise ValueError(
                f"batch_size must be positive and data not empty; got {batch_size} and {len(split[1])} rows"
            )
        self.x, self.y = split[0].to(device), split[1].to(device)
        self.batch_size, self.seed, self.rank, self.n_ranks = batch_size, seed, rank, n_ranks
        self.augment = augment
        self.per_epoch = -(-len(self.y) // batch_size)
        self._epoch, self._order, self._augmented = -1, torch.empty(0), self.x[:0]

    def __getitem__(self, step: int) -> Split:
        """The batch of step ``step``, counted from 0."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._start(epoch)
        place = slice(index * self.batch_size, (index + 1) * self.batch_size)
        rows = self._order[place]
        x = self.x[rows] if self.augment is identity else self._augmented[place]
        y = self.y[rows]
        if len(rows) >= self.n_ranks > 1:  # a last batch too small to share is every rank's
            x, y = x[self.rank :: self.n_ranks], y[self.rank :: self.n_ranks]
        return x, y

    def _start(self, epoch: int) -> None:
        """Shuffle and augment."""
        # Seeds of neighbouring runs and epochs must not meet: a large odd factor keeps them apart.
        key = self.seed * 1_000_003 + epoch
        self._order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(key)).to(self.y.device)
        self._epoch = epoch
        if self.augment is not identity:
            device = self.x.device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(key)
                parts = [self.augment(self.x[rows]) for rows in self._order.split(AT_ONCE)]
                self._augmented = torch.cat(parts)


def _checked(kind: type, parts: Sequence[Part]) -> Sequence[Part]:
    """The rules or the collector of a method, which must be subclasses of what declares their defaults."""
    for part in parts:
        if not isinstance(part, kind):
            raise TypeError(f"{type(part).__name__} must be a subclass of gossamer.types.{kind.__name__}")
    return parts


def _no_loss() -> Tensor:
    raise ValueError("a rule that evaluates the loss again cannot act on captured steps")


def _lr_ratios(optimizer: Optimizer) -> list[float]:
    """Rates of the groups over the optimizer's own: a group with a rate of its own keeps its ratio to the schedule.

    Not over the schedule's first value, which is 0 where it warms up.
    """
    default = optimizer.defaults["lr"]
    return [group["lr"] / default if default else 1.0 for group in optimizer.param_groups]


def _device_rng_state(device: torch.device) -> Tensor:
    """Random state of a GPU; the CPU has no second one."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.empty(0, dtype=torch.uint8)
