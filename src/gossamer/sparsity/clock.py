"""The clock of a rule: how many steps it has seen, which is all that most rules need for an exact resume."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from gossamer.types import Rule

__all__ = ["Clocked", "OptimizerClock"]


class Clocked(Rule):
    """A rule that counts its steps. ``index`` is the number of the last one; a subclass adds what else it must keep.

    Example:
        >>> class Twice(Clocked):
        ...     def __call__(self, step):
        ...         self.index = step.number
        ...         return False
        >>> rule = Twice()
        >>> rule.load_state_dict({"index": 7})
        >>> rule.index, rule.state_dict()
        (7, {'index': 7})
    """

    record: list[dict[str, Any]]

    def __init__(self) -> None:
        self.index = 0
        self.record = []

    def state_dict(self) -> dict[str, Any]:
        return {"index": self.index}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.index, self.record = int(state["index"]), []


class OptimizerClock:
    """The step of a subspace, kept in a parameter group: a checkpoint of the optimizer alone then carries it.

    ``mean``, one of the subspace's own, tells it from another subspace of the same optimizer.
    """

    def __init__(self, optimizers: Sequence[Optimizer], mean: Tensor | None) -> None:
        self._place: tuple[Optimizer, int] | None = None
        self._key = ""
        for optimizer in optimizers:
            for number, group in enumerate(optimizer.param_groups):
                slots = [slot for slot, parameter in enumerate(group["params"]) if parameter is mean]
                if slots and self._place is None:
                    self._place, self._key = (optimizer, number), f"subspace_step_{slots[0]}"
        self._written = self.read()

    @property
    def _group(self) -> dict[str, Any]:  # loading a state replaces the groups
        return {} if self._place is None else self._place[0].param_groups[self._place[1]]

    def read(self) -> int | None:
        """The step that the group carries."""
        step = self._group.get(self._key)
        return None if step is None else int(step)

    @property
    def loaded(self) -> int | None:
        """A step that ``optimizer.load_state_dict`` has written since."""
        step = self.read()
        return None if step == self._written else step

    def write(self, step: int) -> None:
        """Carry this step from now on."""
        self._group[self._key] = self._written = step
