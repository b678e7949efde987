"""A training that diverges: losses far above the first one, numbers that are not finite, or weights that explode.

Often nothing becomes infinite. ReLU units that were thrown far off are dead, the network predicts a constant, and its
loss looks like that of a network that has learnt nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from gossamer.distributed import average_over_ranks

__all__ = ["DivergenceError", "DivergenceWatch", "OnNan"]

PERIOD = 50  # steps between two looks: each makes a GPU wait
FEWEST = 20  # losses that tell
FAR_ABOVE = 3.0  # times the first loss, or nats if more: a regression that learns its noise hides the rest in it
EXPLODED = 1e6  # times the largest first weight, or 1 if that is more

OnNan = Literal["stop", "skip", "rollback"]
"""What happens where inputs, a loss or a gradient are not finite.

``"stop"`` raises, on a GPU up to 50 steps later; ``"skip"`` takes the step with the next batch instead;
``"rollback"`` goes back to the weights of up to 50 steps before and takes these steps again, with the batches that come
next.
"""


class DivergenceError(ValueError):
    """Training failed at the given options; another learning rate or warm-up may succeed."""


class DivergenceWatch:
    """Keeps the losses of the last steps and raises once they, or the weights, show that training has failed.

    Args:
        model: The network before its first step.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> watch = DivergenceWatch(network)
        >>> for step in range(1, 40):
        ...     _ = watch.see(torch.tensor(2.0 if step < 10 else 1e9), step)
        >>> watch.check(network, lr=0.1)
        Traceback (most recent call last):
        gossamer.train.divergence.DivergenceError: training diverged at step 10: a loss of 1e+09, ...
    """

    def __init__(self, model: nn.Module) -> None:
        self.sizes = _largest(model)
        self.first: float | None = None
        self._recent: deque[tuple[int, Tensor]] = deque(maxlen=PERIOD)

    def see(self, nll: Tensor, step: int) -> bool:
        """Remember the loss of a step; returns whether it is time to check."""
        self._recent.append((step, nll))
        return step % PERIOD == 0

    def mean(self) -> float:
        """The mean loss of the last steps; infinite before the first."""
        return float(torch.stack([nll for _, nll in self._recent]).double().mean()) if self._recent else math.inf

    def check(self, model: nn.Module, lr: float) -> None:
        """Raise if training has diverged. With several ranks all must call it."""
        if not self._recent:
            return
        steps, nlls = zip(*self._recent, strict=True)
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
        """What a continued training compares with."""
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.first = state["first"]
        self._recent.clear()


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
    """As a list, with infinity for what is not a number."""
    numbers: list[float] = values.nan_to_num(nan=math.inf, posinf=math.inf).tolist()
    return numbers
