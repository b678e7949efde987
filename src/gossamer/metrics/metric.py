"""One measurement: what it is called, how it is written, which way is better, and what it means."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer._text.formats import Format, plain, with_error
from gossamer.posterior import Prediction
from gossamer.types import Kind, Task

Better = Literal["higher", "lower"] | float | None
"""Which way is better; a number is a target to come near, and ``None`` says that neither way is."""

Place = Literal["terminal", "comparison", "headline"]
"""``"terminal"``: a column of ``gossamer compare``. ``"comparison"``: one of the report's table of several runs.
``"headline"``: a card at the top of the report of a run. Its table of all measurements has every metric."""

Compute = Callable[[Prediction, Task, Tensor], float]
"""(prediction, task, targets) -> the metric's value."""


@dataclass(frozen=True)
class Metric:
    """One measurement.

    Args:
        name: Its key in ``result.json`` and in what ``evaluate`` returns.
        label: Its name in the report.
        format: Writes a value: a function of :mod:`gossamer._text.formats`, or any other ``float -> str``.
        better: ``"higher"``, ``"lower"``, a target such as ``0.9``, or ``None``.
        meaning: One plain sentence for readers who do not know it.
        compute: The value from (prediction, task, targets); ``None`` for what is measured elsewhere, such as costs.
        tasks: The kinds of task that it is computed for.
        places: Where it is shown, besides the table of all measurements.
        winner: Title of the card that names the best method in a comparison; empty: no card.
        heading: Head of its column in plain tables; the name unless given.

    Example:
        >>> from gossamer._text.formats import percent
        >>> metric = Metric("error", "Error rate", percent, "lower", "Share of the examples it gets wrong.")
        >>> metric.text(0.0612), metric.text(0.0612, 0.002), metric.distance(0.0612)
        ('6.1 %', '6.1 ± 0.2 %', 0.0612)
    """

    name: str
    label: str
    format: Format
    better: Better
    meaning: str
    compute: Compute | None = None
    tasks: tuple[Kind, ...] = ("classification", "regression")
    places: tuple[Place, ...] = ("terminal", "comparison")
    winner: str = ""
    heading: str = ""

    def __post_init__(self) -> None:
        """Reject a row that a table could not show."""
        if not (self.name and self.label and self.meaning):
            raise ValueError(f"a metric needs a name, a label and a meaning; got {self}")
        if isinstance(self.better, str) and self.better not in ("higher", "lower"):
            raise ValueError(f"better must be 'higher', 'lower', a number or None; got {self.better!r}")
        object.__setattr__(self, "heading", self.heading or self.name.replace("_", " "))

    def text(self, value: float, error: float | None = None) -> str:
        """The value, or mean ± standard error, in plain characters."""
        return plain(with_error(value, error, self.format))

    def distance(self, value: float) -> float:
        """How far a value is from the best one: lower is better, whatever the direction of the metric."""
        if isinstance(self.better, str):
            return -value if self.better == "higher" else value
        return value if self.better is None else abs(value - self.better)
