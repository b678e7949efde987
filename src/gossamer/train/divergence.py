"""A training that diverges: losses far above the first one, numbers that are not finite, or weights that explode.

Often nothing becomes infinite. ReLU units that were thrown far off are dead, the network predicts a constant, and its
loss looks like that of a network that has learnt nothing.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from gossamer.distributed.ranks import average_over_ranks

__all__ = ["DivergenceError", "DivergenceWatch", "OnNan"]

PERIOD = 50  # steps between two looks: each makes a GPU wait
FEWEST = 20  # losses that tell
FAR_ABOVE = 3.0  # times the first loss, or nats if more: a regression that learns its noise hides the rest in it
EXPLODED = 1e6  # times the largest first weight, or 1 if that is more
MAX_ATTEMPTS = 10  # to take a step by other batches

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
        on_nan: What the training does about a step that :meth:`rejects` does not accept.

    Example:
        >>> network = nn.Linear(1, 1)
        >>> watch = DivergenceWatch(network)
        >>> for step in range(1, 40):
        ...     _ = watch.see(torch.tensor(2.0 if step < 10 else 1e9), step)
        >>> watch.check(network, lr=0.1)
        Traceback (most recent call last):
        gossamer.train.divergence.DivergenceError: training diverged at step 10: a loss of 1e+09, ...
    """

    def __init__(self, model: nn.Module, on_nan: OnNan = "stop") -> None:
        if on_nan not in get_args(OnNan):
            raise ValueError(f"on_nan must be 'stop', 'skip' or 'rollback'; got {on_nan!r}")
        self.on_nan = on_nan
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
        sizes = _largest(model)
        growth = {name: size / max(1.0, self.sizes.get(name, 0.0)) for name, size in sizes.items()}
        # One batch may be far off, such as one with an outlier, but not most of them; the first steps may overshoot.
        typical = statistics.median(losses) if len(losses) >= FEWEST or math.inf in losses else -math.inf
        if typical <= limit and max(growth.values(), default=0.0) <= EXPLODED:
            return
        at = next((i for i, loss in enumerate(losses) if loss > limit), len(losses) - 1)
        worst = max(growth, key=growth.__getitem__, default="none")
        where = f"the weights that grew most are {worst}, up to {sizes.get(worst, 0):.3g}"
        raise DivergenceError(
            f"training diverged at step {steps[at]}: a loss of {max(losses[at:]):.3g}, after {self.first:.3g} in the "
            f"first step; {where}. Give a smaller learning rate (lr is {lr:.3g} here) or let it rise over more steps"
        )

    def rejects(self, model: nn.Module, loss: Tensor) -> bool:
        """Whether the loss of a step, or a gradient where a step can be taken again, is not finite.

        To look makes a GPU wait. Before it raises, that waits for the next :meth:`check`, which tells the step as well.
        """
        if self.on_nan == "stop":
            return not loss.is_cuda and not math.isfinite(float(loss))
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        largest = torch.nn.utils.get_total_norm(grads, math.inf) if grads else loss.new_zeros(())
        return not bool(torch.isfinite(loss) & torch.isfinite(largest.to(loss.device)))

    def refusal(self, model: nn.Module, loss: float, lr: float, where: str) -> str:
        """What to say of a loss or gradient that is not finite; ``where`` names the layer."""
        sizes = _largest(model)
        growth = {name: size / max(1.0, self.sizes.get(name, 0.0)) for name, size in sizes.items()}
        grown = max(growth, key=growth.__getitem__, default="none")
        return (
            f"a loss of {loss:.3g}; {where}; the weights that grew most are {grown}, up to {sizes.get(grown, 0):.3g}. "
            f"Give a smaller learning rate (lr is {lr:.3g} here), or on_nan='skip' or 'rollback' to train on"
        )

    def state_dict(self) -> dict[str, Any]:
        """What a continued training compares with."""
        return {"first": self.first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``."""
        self.first = state["first"]
        self._recent.clear()


def bad_rows(x: Tensor) -> list[int]:
    """The rows of a batch with numbers that are not finite.

    Example:
        >>> bad_rows(torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, torch.inf]]))
        [1, 2]
    """
    if not x.is_floating_point() or math.isfinite(float(x.detach().sum())) or bool(torch.isfinite(x).all()):
        return []  # one that is not finite makes the sum so; a sum that overflows says nothing
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
    found: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(torch.isfinite(output).all()):
            found.append(name)

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
    if found:
        return f"the first layer with an output that is not finite is {found[0]}"
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    return f"the gradient of {bad[0]} is not finite" if bad else "the outputs of all layers are finite"


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
