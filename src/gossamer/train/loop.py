"""The one loop, and the state of a training that is saved and restored."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed.devices import OneProcess, OwnNoise, is_bf16
from gossamer.distributed.ranks import from_every_rank, from_first_rank, on_any_rank
from gossamer.layers import replica
from gossamer.layers.support import alike_on_ranks, leave_broadcast
from gossamer.posterior import LEAST_HELD_OUT, Calibration, Mixture, calibrate
from gossamer.posterior.constant import learnt_nothing
from gossamer.posterior.snapshots import pack, unpack
from gossamer.train.batches import Batches
from gossamer.train.capture import CapturedPasses, CapturedSteps, CaptureError, why_not
from gossamer.train.divergence import (
    MAX_ATTEMPTS,
    PERIOD,
    DivergenceError,
    DivergenceWatch,
    OnNan,
    bad_rows,
    first_not_finite,
)
from gossamer.train.limit import RateLimit, is_due
from gossamer.train.renew import renew
from gossamer.train.steps import EagerSteps, take_step
from gossamer.types import (
    Collector,
    Likelihood,
    Method,
    Posterior,
    Rule,
    Split,
    Task,
    VariationalOptimizer,
    as_penalty,
    at_least_float32,
    identity,
)

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Training", "fit"]

Part = TypeVar("Part")
Record = Callable[[int, dict[str, Tensor]], None]
Build = Callable[[], nn.Module]

WIDTHS = (0.0, 0.1, 0.3, 1.0)  # of the posterior, as factors of its variances
N_DRAWS, MOST_HELD_OUT = 10, 1000  # of a calibration: its cost is some 30,000 examples, forward
SEEDS_APART = 2_654_435_761  # between members: far in the 32 bits that torch's generator reads


def fit(
    method: Method,
    model: nn.Module,
    task: Task,
    steps: int,
    fabric: OneProcess | Fabric | None = None,
    record: Record | None = None,
    *,
    batch_size: int = 64,
    seed: int = 0,
    on_nan: OnNan = "stop",
    build: Build | None = None,
    calibrate: bool = True,
) -> Posterior:
    """Train ``model`` (a plain network, converted in place) by ``method`` and return its posterior.

    Args:
        method: From :func:`gossamer.methods.build`, or your own.
        model: A plain network.
        task: Data and likelihood.
        steps: How many optimizer steps. A method whose members do not share them takes them for each.
        fabric: Device and precision, a :class:`gossamer.distributed.devices.OneProcess` or a
            ``lightning_fabric.Fabric``; ``None`` is the CPU in float32.
        record: Called after each step with its number and its ``loss``, ``nll`` and ``penalty`` as tensors.
        batch_size: Examples per step.
        seed: Seed of the order of the examples, the first active weights and all noise. torch's own random state stays
            as it is.
        on_nan: What to do where inputs, the loss or a gradient are not finite. ``"stop"`` raises: on the CPU before a
            step by such inputs or such a loss, on a GPU up to 50 steps later, because each look makes it wait.
            ``"skip"`` takes the step with the next batch, ``"rollback"`` goes back to the weights of up to 50 steps
            before and goes on with the batches that follow; both look before every step.
        build: Builds the plain network anew, with weights from torch's random state: the other members of an ensemble
            start from what it returns. Without it they start from the weights that ``reset_parameters`` of the layers
            draws, and it is an error if those have another law than the given ones.
        calibrate: Fit the width of the posterior, and for classes a temperature of its logits, on the held-out examples
            of the task, if there are at least 500 (:meth:`Training.calibrate`).

    Example:
        >>> from gossamer import methods
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> task = digits.load()
        >>> posterior = fit(methods.build("ssvi", task, steps=20), mlp(64), task, steps=20)
        >>> len(list(posterior.draws(3)))
        3
    """
    options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "on_nan": on_nan, "build": build}
    training = Training(method, model, task, steps, fabric, **options)
    for values in training.run():
        if record is not None:
            record(training.step, values)
    if calibrate:
        training.calibrate()
    posterior = training.posterior()
    if found := training.learnt_nothing(posterior):
        logging.getLogger("gossamer").warning(found)
    return posterior


class Training:
    """A training in progress: everything that changes from step to step, which can be saved and restored.

    Attributes:
        noise: The random state of all that it does; torch's own stays as it is.

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
    ) -> None:
        method = method.suited_to(model)
        self.method, self.task, self.seed = method, task, seed
        self.steps = steps if method.shares_steps else method.members * steps
        self.fabric = fabric or OneProcess()
        self._plain = replica(model) if method.members > 1 else model  # which members after the first start from
        self._build = build
        self._finished: list[dict[str, Any]] = []  # the members trained so far
        self.noise = OwnNoise(seed, self.fabric.device)
        with self.noise:
            self.model = method.prepare(model)
            placed: tuple[nn.Module, Optimizer] = self.fabric.setup(self.model, method.optimizer(self.model))
            self.module, self.optimizer = placed
            self.rules = _checked(Rule, method.rules(self.model, self.optimizer))
            (self.collector,) = _checked(Collector, [method.collector()])
        leave_broadcast(self.module)
        self.penalty = as_penalty(method.penalty)
        self.batches = self._batches_of(0, batch_size)
        self.step = 0
        self.calibration: Calibration | None = None
        self.updates: list[dict[str, Any]] = []  # what the rules did, for whoever records it and clears the list
        self._n_noted = [len(rule.record) for rule in self.rules]
        self._watch = DivergenceWatch(self.model, on_nan)
        self._shift = 0  # how many batches were left out because something in them was not finite
        self._good: dict[str, Any] | None = None  # where a rollback goes back to
        self._observes = type(self.collector).observe is not Collector.observe
        objective = partial(_objective, task, self.module)
        # Fabric's wrapper refuses gradients that its own backward does not take.
        parts = self.model, self.optimizer, objective, self.penalty
        again = partial(_objective, task, partial(_pass, self.fabric, self.model))
        self.eager = EagerSteps(*parts, backward=self.fabric.backward, again=again)
        self.limit = RateLimit()
        self._is_limited = method.one_rate and not method.lr_is_given and task.has_numbers
        self.captures = captures  # until it turns out to be impossible
        self._captured: CapturedSteps | CapturedPasses | None = None
        # A group with its own rate keeps its ratio to the optimizer's default: a schedule that warms up starts at 0.
        default, groups = self.optimizer.defaults["lr"], self.optimizer.param_groups
        self._ratios = [group["lr"] / default if default else 1.0 for group in groups]
        if self.fabric.global_rank > 0:  # the same weights on all ranks, but different noise
            self.noise = OwnNoise(seed + self.fabric.global_rank, self.fabric.device)
        self.module.train()

    def run(self, last: int | None = None) -> Iterator[dict[str, Tensor]]:
        """The one loop: take the steps up to ``last``, by default to the end, and yield what :meth:`advance` returns.

        Whatever happens between two steps (records, checkpoints, early stopping) is the body of the caller's loop.

        Raises:
            DivergenceError: If the loss is far above the first or weights explode.
        """
        while self.step < (self.steps if last is None else last):
            yield self.advance()
        self.check()
        self._share_statistics()

    def check(self) -> None:
        """Raise if training has diverged: :meth:`advance` looks every 50 steps, and :meth:`run` at its end."""
        self._watch.check(self.model, self.lr)

    def _share_statistics(self) -> None:
        """Of several ranks each has the statistics of its own shares: all take the first rank's, as in checkpoints."""
        if self.fabric.world_size > 1:
            alike = alike_on_ranks(self.model)
            for name, buffer in self.model.named_buffers():
                if name not in alike:
                    from_first_rank(buffer)

    @property
    def on_nan(self) -> OnNan:
        """What happens where something is not finite."""
        return self._watch.on_nan

    @property
    def chosen(self) -> dict[str, Any]:
        """What is used where options were left open, as the method and its parts say, and rate and optimizer."""
        values = {"lr": self.optimizer.defaults["lr"], "optimizer": type(self.inner_optimizer).__name__}
        values |= self.penalty.chosen(self.model, self._steps_each)
        for rule in self.rules:
            values |= rule.chosen
        return {name: value for name, value in (values | dict(self.method.chosen)).items() if value is not None}

    @property
    def lr(self) -> float:
        """The learning rate of the last step."""
        return self.limit.lowered(self.method.lr(max(0, self.step - self._begun - 1)))

    def _note_updates(self) -> None:
        """Collect what the rules have just done, in steps of the whole training."""
        for at, rule in enumerate(self.rules):
            new = rule.record[self._n_noted[at] :]
            self.updates += [{**update, "step": update["step"] + self._begun} for update in new]
        self._n_noted = [len(rule.record) for rule in self.rules]

    @property
    def _begun(self) -> int:
        """The last step before the present member."""
        return len(self._finished) * self._steps_each

    @property
    def epochs(self) -> int:
        """Passes over the training data in all steps, of all members together."""
        return self.steps // self.batches.per_epoch

    @property
    def _steps_each(self) -> int:
        """Steps of a member; the last one takes what is left."""
        return self.steps // self.method.members

    def advance(self) -> dict[str, Tensor]:
        """One step; returns its loss and the loss's two parts, detached.

        With several ranks these are parts of a mean: averaged over ranks, they are those of the whole batch.
        """
        with self.noise:
            if self.step - self._begun == self._steps_each and len(self._finished) + 1 < self.method.members:
                self._begin_next_member()
            return self._advance_by_one()

    def _advance_by_one(self) -> dict[str, Tensor]:
        """One step, with other batches if something is not finite and ``on_nan`` says to go on."""
        target, on_nan = self.step + 1, self._watch.on_nan
        for _ in range(MAX_ATTEMPTS):
            kept = _buffers(self.model) if on_nan == "skip" else []
            try:
                while True:  # once, unless a rollback has steps to take again
                    if on_nan == "rollback" and (self._good is None or self.step % PERIOD == 0):
                        self._good = copy.deepcopy(self.state_dict())
                    values = self._advance()
                    if self.step == target:
                        return values
            except _NotFiniteError as found:
                error = DivergenceError(f"training diverged at step {self.step + 1}: {found}")
            if on_nan == "stop":
                raise error
            logging.getLogger("gossamer").warning(f"{error} ({on_nan} goes on with other batches)")
            self._leave_out(kept)
        raise error

    def _leave_out(self, kept: list[tuple[Tensor, Tensor]]) -> None:
        """Go on with other batches: after the present one, or after all of those that a rollback undoes."""
        self.optimizer.zero_grad()
        for buffer, before in kept:
            buffer.copy_(before)
        failed, shift = self.step + 1, self._shift
        if self._good is not None:
            self.load_state_dict(copy.deepcopy(self._good))
            self.updates.append({"step": failed, "rolled_back": self.step})
        self._shift = shift + failed - self.step

    def _advance(self) -> dict[str, Tensor]:
        number = self.step - self._begun + 1
        index = number - 1 + self._shift
        batch, self.eager.weight = self.batches[index], self.batches.weight(index)
        self._check_inputs(batch[0])
        if self._is_limited and is_due(number):
            highest = max(map(self.method.lr, range(self._steps_each))) if number == 1 else 0.0
            self.limit.look(self.model, self.eager.again(*batch), highest)
        rate = self.limit.lowered(self.method.lr(number - 1))
        rates = [ratio * rate for ratio in self._ratios]
        check, values = partial(self._check_loss, batch), None
        if self.captures:
            try:
                steps = self._captured or self._capture()
                steps.weight = self.eager.weight
                values = take_step(steps, self.rules, number, rates, *batch, check=check)
            except CaptureError as error:
                logging.getLogger("gossamer").warning(f"training steps are not captured as CUDA graphs: {error}")
                self.captures = False
                self._release()
        nll, penalty = values or take_step(self.eager, self.rules, number, rates, *batch, check=check)
        self._note_updates()
        self.step += 1
        if self._observes:
            self.collector.observe(self.model, number)
        if self._watch.see(nll, number):
            self.check()
        return {"loss": nll + penalty, "nll": nll, "penalty": penalty}

    def _check_inputs(self, x: Tensor) -> None:
        if x.is_cuda and self._watch.on_nan == "stop":
            return  # the losses will tell, without a wait in every step
        (is_bad,) = on_any_rank([bool(rows := bad_rows(x))], x.device)
        if is_bad:
            found = f"inputs are not finite, in rows {rows[:5]} of its batch of {len(x)}"
            raise _NotFiniteError(f"{found}. Mend the data, or leave such batches out: on_nan='skip'")

    def _check_loss(self, batch: Split, loss: Tensor) -> None:
        if loss.is_cuda and self._watch.on_nan == "stop":
            return  # as above; to agree with other ranks would be a wait, too
        (is_bad,) = on_any_rank([self._watch.rejects(self.model, loss)], loss.device)
        if is_bad:
            where = first_not_finite(self.model, _objective(self.task, self.module, *batch))
            raise _NotFiniteError(self._watch.refusal(self.model, float(loss), self.lr, where))

    def _capture(self) -> CapturedSteps | CapturedPasses:
        """Captured steps, on all ranks or on none: those of several send other messages than plain steps do."""
        failure = "another rank cannot capture its steps"
        try:
            self._captured = self._new_captured()
        except CaptureError as error:
            failure = str(error)
        if any(on_any_rank([self._captured is None], self.fabric.device)):
            raise CaptureError(failure)
        assert self._captured is not None
        return self._captured

    def _new_captured(self) -> CapturedSteps | CapturedPasses:
        """Whole steps as graphs, or their passes through the network alone."""
        reason = why_not(self.model, self.inner_optimizer, self.penalty, self.rules)
        if reason is not None and self.fabric.device.type != "cuda":
            raise CaptureError(reason)
        if reason is not None:
            logging.getLogger("gossamer").warning(f"only the passes of training steps are CUDA graphs: {reason}")
            return CapturedPasses(self.eager)
        dtype = torch.bfloat16 if is_bf16(self.fabric) else torch.float32
        parts = self.model, self.inner_optimizer, self.task, self.penalty
        return CapturedSteps(*parts, dtype)

    @property
    def inner_optimizer(self) -> Optimizer:
        """The optimizer itself, without Fabric's wrapper."""
        optimizer: Optimizer = getattr(self.optimizer, "optimizer", self.optimizer)
        return optimizer

    def _release(self) -> None:
        if self._captured is not None:
            self._captured.close()
            self._captured = None

    def calibrate(self) -> Calibration | None:
        """Fit the width of the posterior and a temperature of its logits on held-out examples, if they are enough.

        The widths to choose from are zero, a tenth, a third and all of the variances; :meth:`posterior` has what was
        found from then on. A mixture is calibrated as a whole.
        """
        x, y = self.task.val
        likelihood = self.task.likelihood
        if not self.method.calibrates or len(y) < LEAST_HELD_OUT or not isinstance(likelihood, Likelihood):
            return None
        self.calibration = None
        posterior, logits = self.posterior(), likelihood.kind == "classification"
        if not logits and posterior.at_width(1.0) is posterior:
            return None
        rows = torch.linspace(0, len(y) - 1, min(len(y), MOST_HELD_OUT)).long()
        generator = torch.Generator().manual_seed(self.seed)
        held_out = self.task.transform(x[rows]), y[rows]
        options: dict[str, Any] = {"n_draws": N_DRAWS, "widths": WIDTHS, "logits": logits, "generator": generator}
        self.calibration = calibrate(posterior, *held_out, likelihood=likelihood, **options)
        return self.calibration

    def posterior(self) -> Posterior:
        """The posterior as of now, as calibrated; of several members, the mixture of those that are trained."""
        posterior = self._posterior()
        if self.calibration is not None:
            posterior.set_width(self.calibration.temperature)
            posterior.temperature = self.calibration.logit_temperature
        return posterior

    def _posterior(self) -> Posterior:
        with self.noise:
            last = self.collector.posterior(self.model, self.optimizer)
        if self.method.members == 1:
            return last
        is_trained = self.step - self._begun >= self._steps_each
        kept = self.noise.states  # an optimizer may draw the seed of its noise
        with self.noise:
            others = [self._posterior_of(member) for member in self._finished]
        self.noise.states = kept
        return Mixture([*others, *([last] if is_trained or not others else [])])

    def learnt_nothing(self, posterior: Posterior) -> str | None:
        """What to tell if the trained posterior is no better than a constant; otherwise nothing.

        Where the losses of the last steps are below that of the best constant, nothing more is computed.
        """
        likelihood, y = self.task.likelihood, self.task.train[1]
        constant = likelihood.constant(y) if isinstance(likelihood, Likelihood) else None
        if constant is None or self.fabric.global_rank > 0 or not self.step:
            return None
        alike = constant.expand(len(y), -1, *y.shape[1:] if constant.dim() > 2 else ())
        return learnt_nothing(posterior, self.task) if self._watch.mean() > float(likelihood.loss(alike, y)) else None

    def _begin_next_member(self) -> None:
        """Keep the member that is trained, and go on as a training from another seed does at its beginning."""
        # Only optimizers that hold a part of the posterior are needed again.
        optimizer = self.optimizer.state_dict() if isinstance(self.inner_optimizer, VariationalOptimizer) else None
        member = {"model": pack(self.model), "collector": self.collector.state_dict(), "optimizer": optimizer}
        finished = [*self._finished, member]
        seed = self._seed_of(len(finished))
        with OwnNoise(seed, self.fabric.device):
            network = self._next_network()
        alone = replace(self.method, members=1)
        fresh = Training(
            alone, network, self.task, self._steps_each, self.fabric, batch_size=self.batches.batch_size, seed=seed
        )
        self.load_state_dict(fresh.state_dict() | {"step": self.step, "members": finished})
        self._good = None  # a member does not go back to the one before it

    def _next_network(self) -> nn.Module:
        """The plain network that the next member starts from."""
        if self.method.fresh and self._build is not None:
            return self._build()
        network = replica(self._plain)
        if self.method.fresh:
            renew(network)
        return network

    def _posterior_of(self, member: dict[str, Any]) -> Posterior:
        network, collector = replica(self.model), self.method.collector()
        network.load_state_dict(unpack(member["model"]))
        optimizer = self.method.optimizer(network)
        if member["optimizer"] is not None:
            optimizer.load_state_dict(member["optimizer"])
        collector.load_state_dict(member["collector"])
        return collector.posterior(network, optimizer)

    def _seed_of(self, member: int) -> int:
        # Far apart, so that the members of neighbouring seeds are others.
        return self.seed + member * SEEDS_APART

    def _batches_of(self, member: int, batch_size: int) -> Batches:
        place = {"rank": self.fabric.global_rank, "n_ranks": self.fabric.world_size}
        seed, device = self._seed_of(member), self.fabric.device
        return Batches(self.task.train, batch_size, seed, device, augment=self.task.augment, **place)

    def state_dict(self) -> dict[str, Any]:
        """Everything an exact continuation needs. With several ranks, all must call this at the same step."""
        optimizer = self.optimizer.state_dict()
        if self._captured is not None:  # not the options that only graphs need
            self._captured.restore_options(optimizer["param_groups"])
        cpu, *on_device = self.noise.states
        noise = {"cpu": cpu, "device": on_device[0] if on_device else torch.empty(0, dtype=torch.uint8)}
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": optimizer,
            "rules": [rule.state_dict() for rule in self.rules],
            "collector": self.collector.state_dict(),
            "watch": self._watch.state_dict(),
            **({"shift": self._shift} if self._shift else {}),
            **({"limit": asdict(self.limit)} if self.limit != RateLimit() else {}),
            "random": {name: self._from_every_rank(state) for name, state in noise.items()},
            **({"members": list(self._finished)} if self.method.members > 1 else {}),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state`` was taken: the same numbers follow as if nothing had happened."""
        self._release()
        self.step, self._finished = state["step"], list(state.get("members", []))
        if self.method.members > 1:
            self.batches = self._batches_of(len(self._finished), self.batches.batch_size)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        for rule, saved in zip(self.rules, state["rules"], strict=True):
            rule.load_state_dict(saved)
        self._n_noted = [len(rule.record) for rule in self.rules]
        self.collector.load_state_dict(state.get("collector", {}))
        self._watch.load_state_dict(state.get("watch", {"first": None}))
        self._shift = state.get("shift", 0)
        self.limit = RateLimit(**state.get("limit", {}))
        self._load_noise(state["random"])

    def _load_noise(self, saved: dict[str, Tensor]) -> None:
        """Each rank goes on with its own noise; one that was not there before begins with new noise."""
        rank = self.fabric.global_rank
        if rank >= len(saved["cpu"]):
            self.noise.states = OwnNoise(self._seed_of(self.step) + rank, self.fabric.device).states
            return
        # Copies, because torch reads the state of a view from the wrong place in memory.
        cpu, device = (saved[name][rank].cpu().clone() for name in ("cpu", "device"))
        on_device = self.noise.states[1:]  # a GPU run may be read on a machine without one
        self.noise.states = [cpu, *([device] if len(device) and on_device else on_device)]

    def _from_every_rank(self, state: Tensor) -> Tensor:
        """``(n,)`` of each rank -> ``(ranks, n)``: each rank continues with its own noise."""
        if self.fabric.world_size == 1 or not len(state):
            return state.expand(self.fabric.world_size, -1)
        return from_every_rank(state.to(self.fabric.device))


class _NotFiniteError(Exception):
    """A step was refused: something is not finite."""


def _buffers(model: nn.Module) -> list[tuple[Tensor, Tensor]]:
    """What a pass may change, such as the statistics of batch normalisation, and copies of it."""
    return [(buffer, buffer.clone()) for buffer in model.buffers() if buffer.is_floating_point()]


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


def _objective(task: Task, module: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    """The loss of a batch as the task stores it, to be evaluated as often as needed."""
    inputs = x if task.transform is identity else task.transform(x)
    return lambda: task.likelihood.loss(module(inputs), y)
