"""Figures of several runs, or of one: quality and cost by method, and a curve per method with a band."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import methodcaller
from statistics import stdev

import numpy as np

from gossamer._text.formats import count, integer, macs, percent
from gossamer.lab.report.charts import DIAGONAL, DotRow, Mark, Series, dots, line, scatter
from gossamer.lab.report.evaluation import SCORES, detections
from gossamer.lab.report.parts import Axis, Figure, Point
from gossamer.lab.report.runs import Group, LoadedRun
from gossamer.metrics import METRICS, Metric

QUALITY = ("accuracy", "rmse", "nll", "ece", "brier", "crps", "coverage90")
"""Metrics that get a dot plot."""

COSTS = {
    "training_macs": ("cost", "multiply-adds of the training"),
    "parameter_bytes": ("cost-size", "size of all that predicts"),
    "prediction_seconds": ("cost-prediction", "time to predict a batch"),
}
"""What a method costs: the figure's name in the page, and that of its axis."""

VALIDATION = {"val_accuracy": "Accuracy", "val_rmse": "RMSE"}
"""Metrics of the training log that get a curve, and the names of their axes."""

OF_ONE = {"kl": "KL in the loss", "density": "Active weights"}
"""Those that get one where a method is alone, if they change on the way."""

_FEWEST = 10  # examples in a bin of a reliability curve
_MOST_NAMED = 8  # points of a scatter; more names would hide it
_BAND = "Bands are ± one standard error."
_FRONT = "Down and to the left is better. The line joins the front: no other method is both better and cheaper."


def quality(groups: Sequence[Group]) -> list[Figure | None]:
    """A dot plot of each of the usual metrics, where at least two groups have it."""
    return [_dots(groups, METRICS[key], f"dots-{key}") for key in QUALITY]


def detection(groups: Sequence[Group]) -> list[Figure | None]:
    """A dot plot of the AUROC of every set and score that at least two groups have."""
    found = [row for one in groups for run in one.runs for row in detections(run.evaluation.get("ood"))]
    pairs = dict.fromkeys((name, score) for name, score, _ in found if score in SCORES)
    metrics = [
        replace(METRICS["auroc"], name=f"auroc@{name}/{score}", label=f"AUROC by {score.replace('_', ' ')}, {name}")
        for name, score in pairs
    ]
    return [_dots(groups, metric, f"ood-{place}") for place, metric in enumerate(metrics)]


def costs(groups: Sequence[Group]) -> list[Figure | None]:
    """The log loss against each cost that at least two groups have measured."""
    return [_cost(groups, METRICS[key], slug, label) for key, (slug, label) in COSTS.items()]


def calibration(groups: Sequence[Group]) -> list[Figure | None]:
    """Reliability, selective accuracy and coverage of intervals, a curve per group."""
    return [_reliability(groups), _selective(groups), _coverage(groups)]


def learning(groups: Sequence[Group]) -> list[Figure | None]:
    """Loss and metrics along the training, the mean of the runs of each group."""
    rows = [row for one in groups for run in one.runs for row in run.metrics]
    along = "epoch" if rows and all("epoch" in row for row in rows) else "step"
    curves = VALIDATION if len(groups) > 1 else VALIDATION | OF_ONE
    return [_losses(groups, along), *(_along(groups, key, name, along) for key, name in curves.items())]


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points (cost, loss) are on the Pareto front, from the cheapest to the best: no other has less of both."""
    chosen: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not chosen or points[place][1] < points[chosen[-1]][1]:
            chosen.append(place)
    return chosen


def _dots(groups: Sequence[Group], metric: Metric, slug: str) -> Figure | None:
    rows = []
    for one in groups:
        mean, error, values = one.mean(metric.name), one.error(metric.name) or 0.0, one.values(metric.name)
        if mean is not None:
            specks = values if len(values) > 1 else []
            hover = f"{one.label}: {one.text(metric)}"
            rows.append(DotRow(one.label, mean, mean - error, mean + error, hover, one.colour, specks))
    if len(rows) < 2:
        return None
    caption = {"higher": "Higher is better.", "lower": "Lower is better."}.get(str(metric.better), "")
    caption = f"{metric.format(metric.better)} is ideal." if isinstance(metric.better, float) else caption
    if any(row.specks for row in rows):
        caption += " Mean ± standard error; small dots are single runs."
    chart = dots(rows, Axis(metric.label, metric.format))
    return Figure(slug, metric.label, caption, chart, "rows", description="; ".join(row.hover for row in rows))


def _cost(groups: Sequence[Group], cost: Metric, slug: str, label: str) -> Figure | None:
    quality = METRICS["nll"]
    drawn = [one for one in groups if one.mean(quality.name) is not None and (one.mean(cost.name) or 0) > 0]
    if len(drawn) < 2:
        return None
    points = [(one.mean(cost.name) or 0.0, one.mean(quality.name) or 0.0) for one in drawn]
    best, marks = front(points), []
    for place, (one, (x, y)) in enumerate(zip(drawn, points, strict=True)):
        name = one.label if place in best or len(drawn) <= _MOST_NAMED else ""
        hover = f"{one.label}: {one.text(quality)} for {cost.format(x)}"
        marks.append(Mark(x, y, name, hover, one.colour, one.error(quality.name) or 0.0))
    losses = [loss for _, loss in points]
    x_axis = Axis(label.capitalize(), count if cost.format is macs else cost.format, log=True)
    y_axis = Axis(quality.label, quality.format, log=min(losses) > 0 and max(losses) > 4 * min(losses))
    chart = scatter(marks, x_axis, y_axis, steps=[points[place] for place in best])
    description = f"On the front: {', '.join(drawn[place].label for place in best)}."
    return Figure(slug, f"{quality.label} against {label}", _FRONT, chart, description=description)


def _losses(groups: Sequence[Group], along: str) -> Figure | None:
    """NLL on validation data and on training data; a log without the latter has the loss."""
    validation = _series(groups, methodcaller("points", "val_nll", along))
    training = _series(groups, lambda run: run.points("nll", along) or run.points("loss", along))
    if not (validation or training):
        return None
    shown = [*validation, *(one._replace(kind="dashed", band=()) for one in training)] if validation else training
    points, axis = [point for one in shown for point in one.points], Axis("NLL, nats", METRICS["nll"].format)
    # The density of a number may exceed 1, so there the axis is linear, and fitted to the later training.
    if any(run.points("val_rmse") or run.value("rmse") is not None for one in groups for run in one.runs):
        axis = _fitted(axis, points, 0.1)
    else:
        axis = axis._replace(log=min(y for _, y in points) > 0)
    caption = "On validation data, and dashed on training data." if validation else "On training data."
    chart = line(shown, Axis(along.title(), integer, 0.0), axis)
    description = _ends(validation or training, METRICS["nll"])
    return Figure("loss", "Loss", _with_band(caption, shown), chart, description=description)


def _along(groups: Sequence[Group], key: str, name: str, along: str) -> Figure | None:
    """A metric along the training."""
    series, metric = _series(groups, methodcaller("points", key, along)), METRICS[key]
    if not series or (key in OF_ONE and len({y for one in series for _, y in one.points}) == 1):
        return None
    points, several = [point for one in series for point in one.points], len(groups) > 1
    axis = _fitted(Axis(name, metric.format), points, 0.25 if several else 0.0)
    caption, ends = "The axis fits the last three quarters." if several else metric.meaning, _ends(series, metric)
    chart = line(series, Axis(along.title(), integer, 0.0), axis)
    slug = key.replace("_", "-")
    return Figure(slug, metric.label, _with_band(caption, series), chart, description=ends)


def _fitted(axis: Axis, points: Sequence[Point], skip: float) -> Axis:
    """The axis with the limits of what follows the first part of the training."""
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    late = [value for x, value in points if x >= start + skip * (end - start)]
    return axis._replace(low=min(late), high=max(late))


def _reliability(groups: Sequence[Group]) -> Figure | None:
    series = [one for one in map(_pooled, groups) if one is not None]
    if not series:
        return None
    caption = (
        f"Accuracy at each confidence, in bins of at least {_FEWEST} predictions: below the dashed line "
        "predictions are overconfident."
    )
    axes = Axis("Confidence", percent, 0.0, 1.0), Axis("Accuracy", percent, 0.0, 1.0)
    return Figure("reliability", "Reliability", _with_band(caption, series), line([DIAGONAL, *series], *axes))


def _pooled(one: Group) -> Series | None:
    """Accuracy against confidence over the predictions of all runs, with the standard error over runs.

    That of a single run is √(a (1 − a) / n).
    """
    curves = [curve for run in one.runs if (curve := run.curve("reliability", "confidence", "accuracy", "count"))]
    points, band = [], []
    for bins in zip(*(zip(*curve, strict=True) for curve in curves), strict=False):
        known = [(s, a, n) for s, a, n in bins if n > 0 and math.isfinite(s + a)]
        total = sum(n for *_, n in known)
        if total < _FEWEST:
            continue
        sure, right = sum(n * s for s, _, n in known) / total, sum(n * a for _, a, n in known) / total
        variance = max(0.0, right * (1 - right)) / total
        error = stdev(a for _, a, _ in known) / math.sqrt(len(known)) if len(known) > 1 else math.sqrt(variance)
        points.append((sure, right))
        band.append((sure, max(0.0, right - error), min(1.0, right + error)))
    return Series(one.label, points, one.colour, band=band) if points else None


def _selective(groups: Sequence[Group]) -> Figure | None:
    series = _series(groups, methodcaller("rows", "selective", "coverage", "accuracy"))
    if not series:
        return None
    caption = _with_band("Accuracy when only the most confident examples are answered.", series)
    axes = Axis("Coverage: share of examples answered", percent, 0.0, 1.0), Axis("Accuracy on these", percent)
    return Figure("selective", "Selective accuracy", caption, line(series, *axes))


def _coverage(groups: Sequence[Group]) -> Figure | None:
    series = _series(groups, methodcaller("rows", "coverage", "nominal", "actual"))
    if not series:
        return None
    caption = _with_band("Actual coverage of intervals: below the dashed line they are too narrow.", series)
    axes = Axis("Nominal coverage", percent, 0.0, 1.0), Axis("Actual coverage", percent, 0.0, 1.0)
    return Figure("coverage", "Calibration of intervals", caption, line([DIAGONAL, *series], *axes))


def _series(groups: Sequence[Group], points_of: Callable[[LoadedRun], list[Point]]) -> list[Series]:
    return [series for one in groups if (series := _mean_curve(one, points_of)) is not None]


def _mean_curve(one: Group, points_of: Callable[[LoadedRun], list[Point]]) -> Series | None:
    """The mean over the runs at the places of the shortest curve, with its standard error where there are several."""
    curves = [points for run in one.runs if len(points := sorted(points_of(run))) > 1]
    if not curves:
        return None
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    places = [x for x, _ in min(curves, key=len) if start <= x <= end]
    if len(curves) == 1 or len(places) < 2:
        return Series(one.label, curves[0], one.colour)
    heights = np.array([np.interp(places, [x for x, _ in curve], [y for _, y in curve]) for curve in curves])
    means, errors = heights.mean(0), heights.std(0, ddof=1) / math.sqrt(len(curves))
    band = list(zip(places, (means - errors).tolist(), (means + errors).tolist(), strict=True))
    return Series(one.label, list(zip(places, means.tolist(), strict=True)), one.colour, band=band)


def _with_band(caption: str, series: Sequence[Series]) -> str:
    return f"{caption} {_BAND}" if any(one.band for one in series) else caption


def _ends(series: Sequence[Series], metric: Metric) -> str:
    return "At the end: " + ", ".join(f"{one.label} {metric.format(one.points[-1][1])}" for one in series) + "."
