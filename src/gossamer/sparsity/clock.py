"""Steps as a rule counts them: all that most rules need for an exact resume, and what a user's own loop leaves out."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gossamer.layers import CurvatureWeight, SparseWeight
from gossamer.sparsity.moves import after_steps
from gossamer.types import Rule, Step

PATIENCE = 20  # steps
NEVER = (
    "{steps} steps of the optimizer without subspace.step(): the active weights never move. Call it once after "
    "each optimizer.step()"
)
ANOTHER = (
    "the optimizer that this Subspace was given takes no steps any more. Another one needs gossamer.Curvature(model, "
    "optimizer, …) and a Subspace of its own: entries that move would get another's momentum, and σ does not learn"
)
STALE = (
    "σ has not learnt for {steps} steps: gossamer.Curvature was given another optimizer, or one that was copied. Call "
    "gossamer.Curvature(model, optimizer, n_data) with the one that steps"
)
TWO = "another Subspace was made for this network later, and both move its weights: keep one"

_LAST_OF: WeakKeyDictionary[SparseWeight, ref[LoopWatch]] = WeakKeyDictionary()


class Clocked(Rule):
    """A rule that counts its steps. ``index`` is the number of the last one; a subclass adds what else it must keep."""

    record: list[dict[str, Any]]

    def __init__(self) -> None:
        self.index = 0
        self.record = []

    def step(self) -> bool:
        """Count a step, and act if that is due; returns whether it was."""
        self.index += 1
        return False

    def __call__(self, step: Step) -> bool:
        """Count and act before the optimizer's step; the gradient is never spent."""
        self.step()
        return False

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index, self.record = int(state["index"]), []


class LoopWatch:
    """Warns once each of what a user's own loop leaves out at the cost of the posterior.

    It compares the steps of the ``optimizers`` that a subspace was given with those of the subspace, which moves the
    ``weights`` every ``period`` steps.
    """

    def __init__(self, weights: Mapping[str, SparseWeight], optimizers: Sequence[Optimizer], period: int) -> None:
        self.weight = next(iter(weights.values()), None)
        self.period, self.stepped, self.idle, self.stale, self.n_estimates = max(PATIENCE, period), 0, 0, 0, -1
        self._said = set[str]()
        self.hook: RemovableHandle | None = None
        if self.weight is not None:
            _LAST_OF[self.weight] = ref(self)
            self.hook = after_steps(next(one for one in optimizers if _holds(one, self.weight)), self.optimizer_stepped)

    def end(self) -> None:
        """Look at no further step."""
        if self.hook is not None:
            self.hook.remove()

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"hook": None}  # a copy's optimizer has no hooks

    def optimizer_stepped(self) -> None:
        """A step of the optimizer that trains the weight."""
        self.stepped += 1
        if self.stepped == self.period + 1 and self._is_last():
            self._say(NEVER.format(steps=self.period), 5)

    def subspace_stepped(self) -> None:
        """A step of the subspace, by the loop itself."""
        weight, stepped, self.stepped = self.weight, self.stepped, 0
        if weight is None or weight.mean.grad is None:
            return
        self.idle = 0 if stepped else self.idle + 1
        if self.idle == PATIENCE:
            self._say(ANOTHER, 4)
        if isinstance(weight, CurvatureWeight) and weight.learner is not None and weight.mean.requires_grad:
            self.stale = self.stale + 1 if weight.n_estimates == self.n_estimates else 0
            self.n_estimates = weight.n_estimates
            if self.stale == PATIENCE and not self.idle and bool(weight.mean.grad.any()):
                self._say(STALE.format(steps=PATIENCE), 4)
        if not self._is_last():
            self._say(TWO, 4)

    def _is_last(self) -> bool:
        """Whether no other subspace was made for the same network since."""
        last = None if self.weight is None else _LAST_OF.get(self.weight)
        return last is None or last() in (None, self)

    def _say(self, text: str, level: int) -> None:
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=level)


def _holds(optimizer: Optimizer, weight: SparseWeight) -> bool:
    return any(parameter is weight.mean for group in optimizer.param_groups for parameter in group["params"])
