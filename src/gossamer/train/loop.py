"""The training loop, and the state of a training that is saved and restored."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed import OneProcess, OwnNoise, from_first_rank, world_size
from gossamer.layers.support import alike_on_ranks, leave_broadcast
from gossamer.posterior import Calibration
from gossamer.train.batches import Batches
from gossamer.train.capture import CaptureError, captured_steps
from gossamer.train.divergence import PERIOD, DivergenceWatch, OnNan, Recovery
from gossamer.train.limit import RateLimit, is_due
from gossamer.train.members import Build, Succession
from gossamer.train.steps import EagerSteps, Steps, objective_of, take_step
from gossamer.types import Collector, Method, Posterior, Rule, Split, Task, as_penalty, at_least_float32

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Training"]

Part = TypeVar("Part")


class Training:
    """A training in progress: everything that changes from step to step, which can be saved and restored.

    Args:
        captures: Whether steps are CUDA graphs where that is possible.
        rounds: The largest number of rounds of all steps. Another one begins if the loss still falls at the end, with
            the same schedules at half the rate. It needs ``build``.
        steps_by: Builds the steps before the first one, and again after a state was loaded; by default they are
            captured, or run operation by operation, which they also do if it raises ``CaptureError``.

    Attributes:
        inner_optimizer: The optimizer itself, without Fabric's wrapper.
        begun: The last step before the present member, or its present round.
        noise: The random state of all that it does; torch's own stays as it is.
        taking: What takes the steps; ``None`` before the first one.
        updates: What the rules did, for a caller that records it and clears the list.

    The other arguments are those of :func:`gossamer.fit`.

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
        fabric: OneProcess | Fabric | None = None,
        *,
        batch_size: int = 64,
        seed: int = 0,
        captures: bool = False,
        on_nan: OnNan = "stop",
        build: Build | None = None,
        rounds: int = 1,
        steps_by: Callable[[Training], Steps] | None = None,
    ) -> None:
        method = method.suited_to(model)
        self.method, self.task, self.seed = method, task, seed
        self.steps = steps if method.shares_steps else method.members * steps
        self.fabric = fabric or OneProcess()
        self.succession = Succession(method, model, build, seed, self.steps, rounds)
        self.noise = OwnNoise(seed, self.fabric.device)
        with self.noise:
            self.model = method.prepare(model)
            placed: tuple[nn.Module, Optimizer] = self.fabric.setup(self.model, method.optimizer(self.model))
            self.module, self.optimizer = placed
            self.inner_optimizer: Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
            self.rules = _checked(Rule, method.rules(self.model, self.optimizer))
            (self.collector,) = _checked(Collector, [method.collector()])
        leave_broadcast(self.module)
        self.penalty = as_penalty(method.penalty)
        self.batches = _batches(self, batch_size)
        self.step, self.begun, self._next_begins = 0, 0, self.succession.next_begins
        self.calibration: Calibration | None = None
        self.updates: list[dict[str, Any]] = []
        self.watch, self.recovery, self.limit = DivergenceWatch(self.model), Recovery(on_nan), RateLimit()
        self._is_alone = world_size() == 1
        self._observes = type(self.collector).observe is not Collector.observe  # most look at the last network alone
        self._is_limited = method.one_rate and not method.lr_is_given and task.has_numbers
        # Fabric's wrapper refuses gradients that its own backward does not take.
        again = objective_of(task, partial(_pass, self.fabric, self.model))
        parts = self.model, self.optimizer, objective_of(task, self.module), self.penalty
        self.eager = EagerSteps(*parts, backward=self.fabric.backward, again=again)
        self.steps_by = steps_by or (captured_steps if captures else _eager_steps)
        self.taking: Steps | None = None
        # A group with its own rate keeps its ratio to the optimizer's default: a schedule that warms up starts at 0.
        default, groups = self.optimizer.defaults["lr"], self.optimizer.param_groups
        self._ratios = [group["lr"] / default if default else 1.0 for group in groups]
        if self.fabric.global_rank > 0:  # the same weights on all ranks, but different noise
            self.noise = OwnNoise(seed + self.fabric.global_rank, self.fabric.device)
        self.module.train()

    def run(self, last: int | None = None) -> Iterator[dict[str, Tensor]]:
        """Take the steps up to ``last``, by default to the end, and yield what :meth:`advance` returns.

        Whatever happens between two steps (records, checkpoints, early stopping) is the body of the caller's loop.

        Raises:
            DivergenceError: If the loss is far above the first or weights explode.
        """
        while self.step < (self.steps if last is None else last):
            yield self.advance()
        self.check()
        if self.fabric.world_size > 1:  # each has the statistics of its own shares: take the first's, as checkpoints do
            alike = alike_on_ranks(self.model)
            for name, buffer in self.model.named_buffers():
                if name not in alike:
                    from_first_rank(buffer)

    def check(self) -> None:
        """Raise if training has diverged: :meth:`advance` looks every 50 steps, and :meth:`run` at its end."""
        self.watch.check(self.model, self.lr)

    @property
    def chosen(self) -> dict[str, Any]:
        """What is used where options were left open, as the method and its parts say, and rate and optimizer."""
        values = {"lr": self.optimizer.defaults["lr"], "optimizer": type(self.inner_optimizer).__name__}
        values |= self.penalty.chosen(self.model, self.succession.steps_each)
        for rule in self.rules:
            values |= rule.chosen
        return {name: value for name, value in (values | dict(self.method.chosen)).items() if value is not None}

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return self._rate(max(0, self.step - self.begun - 1))

    @property
    def epochs(self) -> int:
        """Passes over the training data in all steps, of all members together."""
        return self.steps // self.batches.per_epoch

    def advance(self) -> dict[str, Tensor]:
        """One step; returns its loss and the loss's two parts, detached.

        With several ranks these are parts of a mean: averaged over ranks, they are those of the whole batch.
        """
        with self.noise:
            if self.step == self._next_begins:
                self.succession.finish(self.model, self.collector, self.inner_optimizer)
                self._begin_again()
            values = self.take() if self.recovery.on_nan == "stop" else self.recovery.advance(self)
            if self.succession.rounds > 1 and self.succession.begins_round(values["nll"]):
                self.steps += self.succession.steps_each
                self._begin_again({"model": self.model.state_dict()})  # the weights stay
            return values

    def take(self) -> dict[str, Tensor]:
        """One step by the batch that is due, as :meth:`advance` takes it; one that is not finite is refused."""
        number = self.step - self.begun + 1
        index = number - 1 + self.recovery.shift
        batch = self.batches[index]
        if not self._is_sound(batch[0]):
            self.recovery.check_inputs(self, batch[0])
        if self._is_limited and is_due(number):
            highest = max(map(self.method.lr, range(self.succession.steps_each))) if number == 1 else 0.0
            self.limit.look(self.model, self.eager.again(*batch), highest)
        before = [len(rule.record) for rule in self.rules]
        weight = 1.0 if self._is_alone else self.batches.weight(index)
        nll, penalty = self._take(batch, weight, number)
        for rule, n in zip(self.rules, before, strict=True):  # in steps of the whole training
            self.updates += [{**new, "step": new["step"] + self.begun} for new in rule.record[n:]]
        self.step += 1
        if self._observes:
            self.collector.observe(self.model, number)
        self.watch.recent.append((number, nll))
        if number % PERIOD == 0:
            self.check()
        return {"loss": nll + penalty, "nll": nll, "penalty": penalty}

    def _take(self, batch: Split, weight: float, number: int) -> tuple[Tensor, Tensor]:
        def check(loss: Tensor) -> None:
            if not self._is_sound(loss):
                self.recovery.check_loss(self, batch, loss)

        rate = self._rate(number - 1)
        try:
            self.taking = self.taking or self.steps_by(self)
            self.taking.weight = weight
            return take_step(self.taking, self.rules, number, [ratio * rate for ratio in self._ratios], *batch, check)
        except CaptureError as error:
            logging.getLogger("gossamer").warning(f"training steps are not captured as CUDA graphs: {error}")
        if self.taking is not None:
            self.taking.close()
        self.taking, self.steps_by = None, _eager_steps
        return self._take(batch, weight, number)

    def _is_sound(self, values: Tensor) -> bool:
        """Whether inputs or a loss need no closer look at what is not finite."""
        if self.recovery.on_nan != "stop":
            return False
        if values.is_cuda:
            return True  # the losses will tell, without a wait in every step
        return self._is_alone and (not values.is_floating_point() or math.isfinite(float(values.detach().sum())))

    def _rate(self, number: int) -> float:
        rate = self.method.lr(number)
        return 0.5**self.succession.round * (self.limit.lowered(rate) if self._is_limited else rate)

    def _begin_again(self, kept: dict[str, Any] | None = None) -> None:
        """Go back to the state in which the training of the present member began, except for what is ``kept``."""
        succession, size = self.succession, self.batches.batch_size
        parts = replace(self.method, members=1), succession.next_network(self.fabric.device), self.task
        seed = succession.seed_of(len(succession.finished))
        fresh = Training(*parts, succession.steps_each, self.fabric, batch_size=size, seed=seed)
        self.load_state_dict(fresh.state_dict() | succession.state_dict() | {"step": self.step} | (kept or {}))
        self.recovery.forget()  # a member does not go back to the one before it

    def posterior(self) -> Posterior:
        """The posterior as of now, as calibrated; of several members, the mixture of those that are trained."""
        with self.noise:
            last = self.collector.posterior(self.model, self.optimizer)
        posterior = self.succession.posterior(last, self.model, self.step, self.noise)
        if self.calibration is not None:
            posterior.set_width(self.calibration.temperature)
            posterior.temperature = self.calibration.logit_temperature
        return posterior

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact continuation needs. With several ranks, all must call this at the same step."""
        optimizer = self.optimizer.state_dict()
        if self.taking is not None:  # not the options that only graphs need
            self.taking.restore_options(optimizer["param_groups"])
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": optimizer,
            "rules": [rule.state_dict() for rule in self.rules],
            "collector": self.collector.state_dict(),
            "watch": self.watch.state_dict(),
            **({"shift": self.recovery.shift} if self.recovery.shift else {}),
            **({"limit": asdict(self.limit)} if self.limit != RateLimit() else {}),
            "random": self.noise.state_dict(self.fabric.world_size),
            **self.succession.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: the same numbers follow as if nothing had happened."""
        if self.taking is not None:
            self.taking.close()
        self.taking = None
        self.step, self.steps = state["step"], self.steps - self.succession.extra
        self.succession.load_state_dict(state)
        self.steps += self.succession.extra
        self.begun, self._next_begins = self.succession.begun, self.succession.next_begins
        if self.method.members > 1:
            self.batches = _batches(self, self.batches.batch_size)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(saved)
        self.collector.load_state_dict(state.get("collector", {}))
        self.watch.load_state_dict(state.get("watch", {"first": None}))
        self.recovery.shift = state.get("shift", 0)
        self.limit = RateLimit(**state.get("limit", {}))
        # Each rank goes on with its own noise; one that was not there before begins with new noise.
        rank = self.fabric.global_rank
        self.noise.load_state_dict(state["random"], rank, self.succession.seed_of(self.step) + rank)


def _eager_steps(training: Training) -> Steps:
    return training.eager


def _batches(training: Training, batch_size: int) -> Batches:
    """The batches of the present member for this rank."""
    fabric, succession, task = training.fabric, training.succession, training.task
    ranks = {"rank": fabric.global_rank, "n_ranks": fabric.world_size}
    seed = succession.seed_of(len(succession.finished))
    return Batches(task.train, batch_size, seed, fabric.device, augment=task.augment, **ranks)


def _checked(kind: type, parts: Sequence[Part]) -> Sequence[Part]:
    """The rules or the collector of a method, which must be subclasses of ``kind``."""
    for part in parts:
        if not isinstance(part, kind):
            raise TypeError(f"{type(part).__name__} must be a subclass of gossamer.types.{kind.__name__}")
    return parts


def _pass(fabric: OneProcess | Fabric, model: nn.Module, x: Tensor) -> Tensor:
    """The network's output in the precision of the training, in float32, without the wrapper of Fabric."""
    with fabric.autocast():
        return at_least_float32(model(x))
