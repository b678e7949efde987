"""Every measurement in one table: what it is called, how it is written, which way is better, and what it means.

``evaluate``, the comparison table, the report and the benchmarks read :data:`METRICS`. A metric of your own is one call
of :func:`add`; it is then computed, compared and reported like the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from gossamer.formats import Format, count, duration, integer, macs, number, percent, plain, size, times, with_error
from gossamer.posterior import Prediction
from gossamer.types import Task

__all__ = ["COST", "LOG", "METRICS", "Better", "Compute", "Kind", "Metric", "Place", "add", "shown"]

Better = Literal["higher", "lower"] | float | None
"""Which way is better; a number is a target to come near, and ``None`` says that neither way is."""

Kind = Literal["classification", "regression"]
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
        format: Writes a value: a function of :mod:`gossamer.formats`, or any other ``float -> str``.
        better: ``"higher"``, ``"lower"``, a target such as ``0.9``, or ``None``.
        meaning: One plain sentence for readers who do not know it.
        compute: The value from (prediction, task, targets); ``None`` for what is measured elsewhere, such as costs.
        tasks: The kinds of task that it is computed for.
        places: Where it is shown, besides the table of all measurements.
        winner: Title of the card that names the best method in a comparison; empty: no card.
        heading: Head of its column in plain tables; the name unless given.

    Example:
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


METRICS: dict[str, Metric] = {}
"""All measurements by name, in the order in which tables show them."""


def add(metric: Metric) -> Metric:
    """Put a metric into :data:`METRICS`; ``METRICS[name] = metric`` replaces one.

    Example:
        >>> def error_rate(prediction, task, y):
        ...     return 1 - float((prediction.probs.argmax(1) == y).double().mean())
        >>> meaning = "Share of the examples it gets wrong."
        >>> metric = add(Metric("error_rate", "Error rate", percent, "lower", meaning, error_rate, ("classification",)))
        >>> del METRICS["error_rate"]  # an example should not stay
    """
    if metric.name in METRICS:
        raise ValueError(f"there is a metric {metric.name!r} already: choose another name, or assign METRICS[name]")
    METRICS[metric.name] = metric
    return metric


def shown(place: Place) -> list[Metric]:
    """The metrics to show at a place, qualities before costs.

    Example:
        >>> [metric.name for metric in shown("terminal")][:3]
        ['accuracy', 'rmse', 'nll']
    """
    return sorted((one for one in METRICS.values() if place in one.places), key=lambda one: one.compute is None)


COST = (
    Metric(
        "active_parameters",
        "Active weights",
        count,
        "lower",
        "Weights that are not exactly zero: all that is trained, stored and multiplied.",
        places=("terminal", "comparison", "headline"),
        heading="active weights",
    ),
    Metric("total_parameters", "All weights", count, None, "Weights of the same network, were it dense.", places=()),
    Metric("density", "Density", percent, "lower", "Share of the weights that are active.", places=()),
    Metric(
        "parameter_bytes",
        "Parameters in memory",
        size,
        "lower",
        "Memory for means, deviations and positions.",
        places=(),
    ),
    Metric(
        "checkpoint_bytes",
        "Size on disk",
        size,
        "lower",
        "The checkpoint: everything needed to predict or to continue training.",
        places=("comparison", "headline"),
    ),
    Metric(
        "inference_macs",
        "Cost of a prediction",
        macs,
        "lower",
        "Multiply-adds for one example through one drawn network.",
        places=("comparison", "headline"),
    ),
    Metric(
        "training_macs_per_example",
        "Training cost per example",
        macs,
        "lower",
        "Multiply-adds for one example in one training step, on average.",
        places=(),
    ),
    Metric(
        "training_macs",
        "Training cost",
        macs,
        "lower",
        "Multiply-adds of the whole training, zeros not counted.",
        places=("comparison", "headline"),
        winner="Cheapest to train",
    ),
    Metric(
        "native_speedup",
        "Gain by sparse kernels",
        times,
        None,
        "How many times faster a training step is than with dense products.",
        places=("comparison",),
    ),
    Metric("seconds", "Time", duration, "lower", "Wall-clock time of the training.", heading="time"),
    Metric(
        "peak_memory_bytes",
        "Peak memory",
        size,
        "lower",
        "Most memory in use at any moment of the training.",
        places=(),
    ),
)
"""What a run cost; ``gossamer.runs`` measures these."""

LOG = (
    Metric("step", "Steps", integer, None, "Optimizer steps so far.", places=()),
    Metric("loss", "Training loss", number, "lower", "What training lowers: misfit and penalty.", places=()),
    Metric(
        "kl",
        "Distance from the prior",
        number,
        None,
        "What the posterior's distance from the prior adds to the loss.",
        places=(),
    ),
    Metric("lr", "Learning rate", number, None, "The schedule as it was followed.", places=()),
    Metric(
        "val_accuracy",
        "Validation accuracy",
        percent,
        "higher",
        "Share of the held-out examples it gets right.",
        places=(),
    ),
    Metric("val_rmse", "Validation error", number, "lower", "Typical error on held-out examples (RMSE).", places=()),
    Metric(
        "val_nll", "Validation log loss", number, "lower", "How much held-out answers surprise it, in nats.", places=()
    ),
    Metric(
        "examples_per_second",
        "Speed",
        integer,
        "higher",
        "Training examples per second; a dip is often another job on the machine.",
        places=(),
    ),
)
"""What is recorded while a run trains, besides measurements that have a row above."""
