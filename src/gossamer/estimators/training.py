"""Training of an estimator: the library's own loop, with a look at held-out rows now and then."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor

from gossamer import methods
from gossamer.estimators.draws import Draws
from gossamer.estimators.network import Architecture
from gossamer.estimators.progress import Show, progress
from gossamer.train import Batches, Training
from gossamer.types import Method, Split, Task

__all__ = ["Fitted", "Look", "Plan", "go_on", "train"]

N_LOOKS = 50  # at the held-out rows, over a whole training
STREAM_FLOOR = 0.1  # of the largest rate: a schedule that ends at zero would leave a stream nothing to learn with

Look = Callable[[Draws], float]
"""The loss of draws on held-out rows."""


@dataclass(frozen=True)
class Plan:
    """What to train, how long and where: all that stays the same from one call of ``partial_fit`` to the next."""

    method: str
    options: dict[str, Any]
    architecture: Architecture
    steps: int
    batch_size: int
    n_draws: int
    device: str
    seed: int
    verbose: int = 0


@dataclass
class Fitted:
    """What a training leaves: draws as of step ``n_steps``, what it takes to go on, and what was seen on the way."""

    draws: Draws
    n_steps: int
    state: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    looks: list[tuple[int, float]] = field(default_factory=list)


def train(plan: Plan, task: Task, look: Look | None = None, patience: int = 10) -> Fitted:
    """Train from the beginning.

    With a ``look`` at held-out rows the draws are those of the best one, and training ends when ``patience`` of them in
    a row brought nothing better.
    """
    with _own_randomness(plan.device):
        training = _start(plan, task, methods.build(plan.method, task, plan.steps, **plan.options))
        with progress(plan.method, 0, plan.steps, verbose=plan.verbose) as show:
            return _advance(plan, training, plan.steps, look, patience, show)


def go_on(plan: Plan, task: Task, state: dict[str, Any] | None) -> Fitted:
    """One pass over the rows of ``task``, from ``state`` if there is one.

    The schedules run over the steps of the plan, as in :func:`train`; after them the learning rate stays at a tenth of
    its largest value.
    """
    method = methods.build(plan.method, task, plan.steps, **plan.options)
    floor = STREAM_FLOOR * max(method.lr(step) for step in range(plan.steps))
    with _own_randomness(plan.device):
        training = _start(plan, task, replace(method, lr=lambda step: max(floor, method.lr(step))))
        if state is not None:
            training.load_state_dict(state)
        first, last = training.step, training.step + training.batches.per_epoch
        training.batches = _Pass(training.batches, first)
        with progress(plan.method, first, last, verbose=plan.verbose) as show:
            return _advance(plan, training, last, None, 1, show)


def _start(plan: Plan, task: Task, method: Method) -> Training:
    torch.manual_seed(plan.seed)
    fabric = Fabric(accelerator=plan.device, devices=1)
    network = plan.architecture.build()
    return Training(method, network, task, plan.steps, fabric, batch_size=plan.batch_size, seed=plan.seed)


def _advance(plan: Plan, training: Training, last: int, look: Look | None, patience: int, show: Show | None) -> Fitted:
    losses: list[Tensor] = []
    looks: list[tuple[int, float]] = []
    best: Fitted | None = None
    while training.step < last:
        values: dict[str, Any] = dict(training.advance())
        losses.append(values["loss"])
        if look is not None and (training.step % max(1, plan.steps // N_LOOKS) == 0 or training.step == last):
            draws = _draws(plan, training)
            looks.append((training.step, look(draws)))
            values["held_out"] = looks[-1][1]
            if best is None or looks[-1][1] < min(loss for _, loss in looks[:-1]):
                best = Fitted(draws, training.step)
        if show is not None:
            show(training.step, values)
        if best is not None and sum(step > best.n_steps for step, _ in looks) >= patience:
            break
    fitted = best or Fitted(_draws(plan, training), training.step)
    fitted.state, fitted.losses, fitted.looks = _on_cpu(training.state_dict()), torch.stack(losses).tolist(), looks
    _check_finite(plan, fitted)
    return fitted


def _draws(plan: Plan, training: Training) -> Draws:
    return Draws.of(training.posterior(), plan.n_draws, plan.architecture)


def _on_cpu(state: Any) -> Any:
    """Tensors moved to the CPU: an estimator may be read where there is no other device."""
    if isinstance(state, Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return [_on_cpu(value) for value in state] if isinstance(state, list) else tuple(map(_on_cpu, state))
    return state


def _check_finite(plan: Plan, fitted: Fitted) -> None:
    if fitted.draws.is_finite():
        return
    first = int((~torch.tensor(fitted.losses).isfinite()).int().argmax()) + 1
    raise ValueError(
        f"the training by {plan.method!r} diverged, first at step {first} of {len(fitted.losses)}: give a smaller "
        "learning rate, as in options={'lr': 0.001}"
    )


class _Pass(Batches):
    """The batches of one pass that begins at step ``first`` of a training."""

    def __init__(self, batches: Batches, first: int) -> None:
        self.__dict__.update(batches.__dict__)
        self.first = first

    def __getitem__(self, step: int) -> Split:
        return super().__getitem__(step - self.first)


@contextlib.contextmanager
def _own_randomness(device: str) -> Iterator[None]:
    """Seeds set inside change nothing outside."""
    uses_gpu = device != "cpu" and torch.cuda.is_available()
    with torch.random.fork_rng([torch.cuda.current_device()] if uses_gpu else []):
        yield
