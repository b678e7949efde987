"""Figures of the training: loss on training and validation data, and what the training log has besides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from gossamer._text.formats import integer
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Series, Words, line
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.runs import LoadedRun, Point
from gossamer.metrics import METRICS, Metric


class Curve(NamedTuple):
    """A metric of the training log, the name of its axis, and where the axis starts."""

    key: str
    axis: str
    low: float | None = None

    @property
    def metric(self) -> Metric:
        """Its row in the registry."""
        return METRICS[self.key]

    @property
    def slug(self) -> str:
        """Its name in addresses."""
        return self.key.replace("_", "-")

    @property
    def best(self) -> Callable[..., Point]:
        """``max`` or ``min``."""
        return max if self.metric.better == "higher" else min


VALIDATION = (Curve("val_accuracy", "Accuracy"), Curve("val_rmse", "RMSE"))
OTHERS = (Curve("kl", "KL in the loss", 0.0), Curve("density", "Active weights", 0.0))


def figures(run: LoadedRun) -> list[Figure]:
    """Loss and quality along the steps, and what else changes on the way."""
    loss = _loss(run)
    validation = [_validation(one, points) for one in VALIDATION if len(points := run.points(one.key)) > 1]
    logged = [(one, run.points(one.key)) for one in OTHERS]
    others = [_other(one, points) for one, points in logged if len({y for _, y in points}) > 1]
    return [*([loss] if loss else []), *validation, *others]


def losses(run: LoadedRun, along: str = "step") -> tuple[list[Point], list[Point]]:
    """NLL on training and on validation data; a log without the former has the loss."""
    training = run.points("nll", along) or run.points("loss", along)
    validation = run.points("val_nll", along)
    return (training if len(training) > 1 else []), (validation if len(validation) > 1 else [])


def loss_axis(points: Sequence[Point], runs: Sequence[LoadedRun]) -> Axis:
    """Logarithmic for classes; linear for numbers, whose densities may exceed 1, and fitted to the later training."""
    axis, values = Axis("NLL, nats", METRICS["nll"].format), [y for _, y in points]
    if not any(run.points("val_rmse") or run.value("rmse") is not None for run in runs):
        return axis._replace(log=min(values) > 0)
    return _fitted(axis, points, 0.1)


def late_axis(curve: Curve, points: Sequence[Point], skip: float = 0.25) -> Axis:
    """An axis fitted to what follows the first part of the training."""
    return _fitted(Axis(curve.axis, curve.metric.format), points, skip)


def _fitted(axis: Axis, points: Sequence[Point], skip: float) -> Axis:
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    late = [value for x, value in points if x >= start + skip * (end - start)]
    return axis._replace(low=min(late), high=max(late))


def _loss(run: LoadedRun) -> Figure | None:
    training, validation = losses(run)
    series = [Series(name, some, colour) for colour, (name, some) in enumerate(
        (("training", training), ("validation", validation))) if some]  # fmt: skip
    if not series:
        return None
    caption = "NLL on training and validation data"
    if validation:
        at, best = min(validation, key=lambda point: point[1])
        form = METRICS["nll"].format
        caption += f"; validation ends at {form(validation[-1][1])}, the lowest was {form(best)} at step {integer(at)}"
    told = f"{caption}."
    axis = loss_axis([*training, *validation], [run])
    chart = line(series, Axis("Step", integer, 0.0), axis, Words("loss", "Training and validation loss", told))
    return Figure("loss", "Loss", told, chart)


def _validation(curve: Curve, points: list[Point]) -> Figure:
    form, last = curve.metric.format, points[-1][1]
    at, best = curve.best(points, key=lambda point: point[1])
    word = "highest" if curve.best is max else "lowest"
    caption = f"{form(last)} at the end, "
    caption += f"the {word} of all." if form(best) == form(last) else f"{form(best)} at step {integer(at)}, the {word}."
    words = Words(curve.slug, curve.metric.label, caption)
    chart = line([Series(curve.axis, points)], Axis("Step", integer, 0.0), late_axis(curve, points, 0.0), words)
    return Figure(curve.slug, curve.metric.label, caption, chart)


def _other(curve: Curve, points: list[Point]) -> Figure:
    form, low = curve.metric.format, min(curve.low or 0.0, *(y for _, y in points))
    told = f"{curve.metric.label} from {form(points[0][1])} to {form(points[-1][1])}."
    axes = Axis("Step", integer, 0.0), Axis(curve.axis, form, low)
    chart = line([Series(curve.axis, points, kind="area")], *axes, Words(curve.slug, curve.metric.label, told))
    return Figure(curve.slug, curve.metric.label, curve.metric.meaning, chart)
