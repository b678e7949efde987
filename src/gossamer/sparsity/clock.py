"""The clock of a rule: how many steps it has seen, which is all that most rules need for an exact resume."""

from typing import Any

from gossamer.types import Rule, Step

__all__ = ["Clocked"]


class Clocked(Rule):
    """A rule that counts its steps. ``index`` is the number of the last one; a subclass adds what else it must keep.

    Example:
        >>> rule = Clocked()
        >>> rule.load_state_dict({"index": 7})
        >>> rule.index, rule.state_dict()
        (7, {'index': 7})
    """

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
