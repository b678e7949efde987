"""Trainings that fail: losses far above the first one, weights that explode, and numbers that are not finite.

Often nothing becomes infinite. ReLU units that were thrown far off are dead, the network predicts a constant, and its
loss looks like that of a network that has learnt nothing. Where inputs, a loss or a gradient are not finite, a training
stops, leaves the batch out, or goes back.
"""

from __future__ import annotations

import copy
import logging
import math
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.distributed import average_over_ranks, on_any_rank
from gossamer.types import Split

if TYPE_CHECKING:
    from gossamer.train.loop import Training

__all__ = ["DivergenceError", "DivergenceWatch", "OnNan", "Recovery", "bad_rows", "first_not_finite"]

PERIOD = 50  # steps between two looks: each makes a GPU wait
FEWEST = 20  # losses that tell
FAR_ABOVE = 3.0  # times the first loss, or nats if more: a regression that learns its noise hides the rest in it
EXPLODED = 1e6  # times the largest first weight, or 1 if that is more
MAX_ATTEMPTS = 10  # to take a step by other batches

OnNan = Literal["stop", "skip", "rollback"]
"""What a training does when inputs, a loss or a gradient are not finite.

``"stop"`` raises, on a GPU up to 50 steps later; ``"skip"`` takes the step with the next batch instead;
``"rollback"`` goes back to the weights of up to 50 steps before and takes these steps again, with the batches that come
next.
"""


class DivergenceError(ValueError):
    """Training failed at the given options; another learning rate or warm-up may succeed."""


class NotFiniteError(DivergenceError):
    """A step was refused: something is not finite."""


class DivergenceWatch:
    """Keeps the losses of the last steps and raises once they, or the weights, show that training has failed.

    Args:
        model: The network before its first step.

    Attributes:
        recent: The last steps and their losses, which a training appends.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> watch = DivergenceWatch(network)
        >>> for step in range(1, 40):
        ...     watch.recent.append((step, torch.tensor(2.0 if step < 10 else 1e9)))
        >>> watch.check(network, lr=0.1)
        Traceback (most recent call last):
        gossamer.train.divergence.DivergenceError: training diverged at step 10: a loss of 1e+09, ...
    """

    def __init__(self, model: nn.Module) -> None:
        self.sizes = _largest(model)
        self.first: float | None = None
        self.recent: deque[tuple[int, Tensor]] = deque(maxlen=PERIOD)

    def mean(self) -> float:
        """The mean loss of the last steps; infinite before the first."""
        return float(torch.stack([nll for _, nll in self.recent]).double().mean()) if self.recent else math.inf

    def check(self, model: nn.Module, lr: float) -> None:
        """Raise if training has diverged. With several ranks all must call it."""
        if not self.recent:
            return
        steps, nlls = zip(*self.recent, strict=True)
        losses = _numbers(average_over_ranks(torch.stack(nlls).double()))
        self.first = losses[0] if self.first is None else self.first
        limit = self.first + FAR_ABOVE * max(1.0, abs(self.first))
        _, growth = _growth(model, self.sizes)
        # One batch may be far off, such as one with an outlier, but not most of them; the first steps may overshoot.
        typical = statistics.median(losses) if len(losses) >= FEWEST or math.inf in losses else -math.inf
        if typical <= limit and max(growth.values(), default=0.0) <= EXPLODED:
            return
        at = next((i for i, loss in enumerate(losses) if loss > limit), len(losses) - 1)
        raise DivergenceError(
            f"training diverged at step {steps[at]}: a loss of {max(losses[at:]):.3g}, after {self.first:.3g} in the "
            f"first step; {most_grown(model, self.sizes)}. Give a smaller learning rate (lr is {lr:.3g} here) or let "
            "it rise over more steps"
        )

    def state_dict(self) -> dict[str, Any]:
        """The first loss, with which a continued training compares."""
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.first = state["first"]
        self.recent.clear()


class Recovery:
    """Takes steps with other batches where something is not finite and ``on_nan`` says to go on.

    Attributes:
        shift: How many batches were left out.
    """

    def __init__(self, on_nan: OnNan) -> None:
        if on_nan not in get_args(OnNan):
            raise ValueError(f"on_nan must be 'stop', 'skip' or 'rollback'; got {on_nan!r}")
        self.on_nan = on_nan
        self.shift = 0
        self._good: dict[str, Any] | None = None  # where a rollback goes back to

    def advance(self, training: Training) -> dict[str, Tensor]:
        """One step of a training that goes on, and before it those that a rollback has to take again."""
        target, n_refused = training.step + 1, 0
        while True:
            buffers = self._keep(training)
            try:
                values = training.take()
            except NotFiniteError as error:
                n_refused += 1
                if n_refused == MAX_ATTEMPTS:
                    raise
                logging.getLogger("gossamer").warning(f"{error} ({self.on_nan} goes on with other batches)")
                self._leave_out(training, buffers)
            else:
                if training.step == target:
                    return values

    def forget(self) -> None:
        """Do not go back to any step before this one."""
        self._good = None

    def _keep(self, training: Training) -> list[tuple[Tensor, Tensor]]:
        """Keep what a refused step would have changed: all state, or what a pass may change, such as statistics."""
        if self.on_nan == "rollback" and (self._good is None or training.step % PERIOD == 0):
            self._good = copy.deepcopy(training.state_dict())
        if self.on_nan != "skip":
            return []
        return [(buffer, buffer.clone()) for buffer in training.model.buffers() if buffer.is_floating_point()]

    def _leave_out(self, training: Training, buffers: list[tuple[Tensor, Tensor]]) -> None:
        """Go on with other batches: after the present one, or after all of those that a rollback undoes."""
        training.optimizer.zero_grad()
        for buffer, before in buffers:
            buffer.copy_(before)
        failed, shift = training.step + 1, self.shift
        if self._good is not None:
            training.load_state_dict(copy.deepcopy(self._good))
            training.updates.append({"step": failed, "rolled_back": training.step})
        self.shift = shift + failed - training.step

    def check_inputs(self, training: Training, x: Tensor) -> None:
        """Refuse a batch with inputs that are not finite, on all ranks."""
        (is_bad,) = on_any_rank([bool(rows := bad_rows(x))], x.device)
        if is_bad:
            raise NotFiniteError(
                f"training diverged at step {training.step + 1}: inputs are not finite, in rows {rows[:5]} of its "
                f"batch of {len(x)}. Fix the data, or skip such batches: on_nan='skip'"
            )

    def check_loss(self, training: Training, batch: Split, loss: Tensor) -> None:
        """Refuse a loss that is not finite and, where a step can be taken again, such a gradient, on all ranks."""
        (is_bad,) = on_any_rank([self._rejects(training.model, loss)], loss.device)
        if is_bad:
            where = first_not_finite(training.model, training.eager.objective(*batch))
            raise NotFiniteError(
                f"training diverged at step {training.step + 1}: a loss of {float(loss):.3g}; {where}; "
                f"{most_grown(training.model, training.watch.sizes)}. Give a smaller learning rate (lr is "
                f"{training.lr:.3g} here), or on_nan='skip' or 'rollback' to train on"
            )

    def _rejects(self, model: nn.Module, loss: Tensor) -> bool:
        if self.on_nan == "stop":
            return not math.isfinite(float(loss))
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        largest = torch.nn.utils.get_total_norm(grads, math.inf) if grads else loss.new_zeros(())
        return not bool(torch.isfinite(loss) & torch.isfinite(largest.to(loss.device)))


def most_grown(model: nn.Module, before: Mapping[str, float]) -> str:
    """Which weights have grown most since their largest values were ``before``, in words."""
    sizes, growth = _growth(model, before)
    name = max(growth, key=growth.__getitem__, default="none")
    return f"the weights that grew most are {name}, up to {sizes.get(name, 0):.3g}"


def _growth(model: nn.Module, before: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """The largest values of the weights, and how many times those ``before``, or 1 if that is more."""
    sizes = _largest(model)
    return sizes, {name: size / max(1.0, before.get(name, 0.0)) for name, size in sizes.items()}


@torch.no_grad()
def _largest(model: nn.Module) -> dict[str, float]:
    """The largest absolute value of each parameter, by name."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.numel()}
    if not named:
        return {}
    sizes = torch._foreach_norm(list(named.values()), math.inf)
    return dict(zip(named, _numbers(torch.stack([size.double() for size in sizes])), strict=True))


def _numbers(values: Tensor) -> list[float]:
    """The values as a list, NaN as infinity."""
    numbers: list[float] = values.nan_to_num(nan=math.inf, posinf=math.inf).tolist()
    return numbers


def bad_rows(x: Tensor) -> list[int]:
    """The rows of a batch with numbers that are not finite.

    Example:
        >>> bad_rows(torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, torch.inf]]))
        [1, 2]
    """
    rows: list[int] = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
    return rows


@torch.no_grad()
def first_not_finite(model: nn.Module, evaluate: Callable[[], Tensor]) -> str:
    """Which part of a network is the first to return a number that is not finite, when its loss is evaluated again.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> _ = nn.init.constant_(network[2].bias, torch.inf)
        >>> first_not_finite(network, lambda: network(torch.ones(1, 2)).sum())
        'the first layer with an output that is not finite is 2'
    """
    names: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(torch.isfinite(output).all()):
            names.append(name)

    hooks = [
        part.register_forward_hook(lambda part, inputs, output, name=name: look(name, output))
        for name, part in model.named_modules()
        if name
    ]
    try:
        evaluate()
    finally:
        for hook in hooks:
            hook.remove()
    if names:
        return f"the first layer with an output that is not finite is {names[0]}"
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    return f"the gradient of {bad[0]} is not finite" if bad else "the outputs of all layers are finite"
