"""Figures of several runs: dots with error bars, and one curve per method with a band over its runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from operator import methodcaller
from statistics import fmean, stdev

import numpy as np

from gossamer._text.formats import Format, integer, percent
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Series, Words, line
from gossamer.lab.report.classes import selective_points
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.learning_curves import VALIDATION, Curve, late_axis, loss_axis, losses
from gossamer.lab.report.numbers import coverage_points
from gossamer.lab.report.rows import DotRow, dots
from gossamer.lab.report.runs import Group, LoadedRun, Point
from gossamer.metrics import METRICS, Metric

DOTS = ("accuracy", "rmse", "nll", "ece", "brier", "crps", "coverage90")
"""Metrics that get a dot plot."""

_FEWEST = 10  # examples in a bin of a reliability curve
_BAND = "Bands are ± one standard error over the runs."


def quality(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """A dot plot of each of the usual metrics, where at least two groups have it."""
    found = [(METRICS[key], [one for one in groups if one.values(key)]) for key in DOTS]
    return [_dots(metric, some, scope) for metric, some in found if len(some) > 1]


def learning(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """Loss and quality on validation data along the training, the mean of the runs of each group."""
    rows = [row for one in groups for run in one.runs for row in run.metrics]
    along = "epoch" if rows and all("epoch" in row for row in rows) else "step"
    found = [_losses(groups, along, scope), *(_validation(groups, curve, along, scope) for curve in VALIDATION)]
    return [figure for figure in found if figure is not None]


def calibration(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """Reliability, selective accuracy and coverage of intervals, a curve per group."""
    return [figure for figure in (_reliability(groups, scope), _selective(groups, scope), _coverage(groups, scope))
            if figure is not None]  # fmt: skip


def _dots(metric: Metric, groups: Sequence[Group], scope: str) -> Figure:
    rows = []
    for one in groups:
        mean, error = fmean(one.values(metric.name)), one.error(metric.name) or 0.0
        specks = one.values(metric.name) if len(one.runs) > 1 else []
        hover = f"{one.label}: {one.text(metric)}"
        rows.append(DotRow(one.label, mean, mean - error, mean + error, hover, one.colour, specks=specks))
    better = {"higher": "Higher is better.", "lower": "Lower is better."}.get(str(metric.better), "")
    target = f"{metric.format(metric.better)} is ideal." if isinstance(metric.better, float) else better
    several = any(len(one.runs) > 1 for one in groups)
    caption = target + (" Mean ± standard error; small dots are single runs." if several else "")
    words = Words(f"{scope}dots-{metric.name}", metric.label, "; ".join(row.hover for row in rows))
    chart = dots(rows, Axis(metric.label, metric.format), words, ("method", "mean", "low", "high"))
    return Figure(words.slug, metric.label, caption, chart, "rows")


def _losses(groups: Sequence[Group], along: str, scope: str) -> Figure | None:
    validation = _series(groups, lambda run: losses(run, along)[1])
    training = [one._replace(kind="dashed", band=()) for one in _series(groups, lambda run: losses(run, along)[0])]
    if not validation and not training:
        return None
    points = [point for one in (*validation, *training) for point in one.points]
    caption = f"On validation data, and dashed on training data. {_BAND}" if validation else "On training data."
    words = Words(f"{scope}loss", "Loss", _ends(validation or training, METRICS["nll"].format))
    axis = loss_axis(points, [run for one in groups for run in one.runs])
    chart = line([*validation, *training], Axis(along.title(), integer, 0.0), axis, words)
    return Figure(words.slug, words.title, caption, chart)


def _validation(groups: Sequence[Group], curve: Curve, along: str, scope: str) -> Figure | None:
    series = _series(groups, methodcaller("points", curve.key, along))
    if not series:
        return None
    words = Words(f"{scope}{curve.slug}", curve.metric.label, _ends(series, curve.metric.format))
    axis = late_axis(curve, [point for one in series for point in one.points])
    chart = line(series, Axis(along.title(), integer, 0.0), axis, words)
    caption = f"The mean of the runs; the axis fits the last three quarters. {_BAND}"
    return Figure(words.slug, words.title, caption, chart)


def _reliability(groups: Sequence[Group], scope: str) -> Figure | None:
    series = [one for one in map(_pooled, groups) if one is not None]
    if not series:
        return None
    caption = (
        f"Accuracy at each confidence, in bins of at least {_FEWEST} predictions: below the dashed line a method is "
        f"overconfident. {_BAND}"
    )
    least_sure = min(sure for one in series for sure, _ in one.points)
    heights = [right for one in series for _, right in one.points] + [low for one in series for _, low, _ in one.band]
    left, bottom = (math.floor(10 * low) / 10 for low in (least_sure, min(heights)))
    ideal = Series("", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
    axes = Axis("Confidence", percent, left, 1.0), Axis("Accuracy", percent, bottom, 1.0)
    words = Words(f"{scope}reliability", "Reliability", caption)
    return Figure(words.slug, words.title, caption, line([ideal, *series], *axes, words, direct=False))


def _pooled(one: Group) -> Series | None:
    """Accuracy against confidence over the predictions of all runs, with the standard error over runs."""
    found = [curve for run in one.runs if (curve := run.curve("reliability", "confidence", "accuracy", "count"))]
    points, band = [], []
    for bins in zip(*(zip(*curve, strict=True) for curve in found), strict=False):
        known = [(s, a, n) for s, a, n in bins if n > 0 and math.isfinite(s + a)]
        total = sum(n for _, _, n in known)
        if total < _FEWEST:
            continue
        sure, right = (sum(n * value for value, n in zip(values, (n for _, _, n in known), strict=True)) / total
                       for values in ([s for s, _, _ in known], [a for _, a, _ in known]))  # fmt: skip
        error = stdev(a for _, a, _ in known) / math.sqrt(len(known)) if len(known) > 1 else 0.0
        points.append((sure, right))
        band.append((sure, max(0.0, right - error), min(1.0, right + error)))
    return Series(one.label, points, one.colour, band=band if len(found) > 1 else ()) if points else None


def _selective(groups: Sequence[Group], scope: str) -> Figure | None:
    series = _series(groups, selective_points)
    if not series:
        return None
    caption = f"Accuracy when only the most confident examples are answered. {_BAND}"
    imperfect = [x for one in series for x, y in one.points if y < 0.9995]
    start = math.floor(10 * max(0.0, min(imperfect, default=0.1) - 0.1)) / 10  # before it no method errs
    axes = Axis("Coverage: share of examples answered", percent, start), Axis("Accuracy on these", percent)
    series = [one._replace(points=[point for point in one.points if point[0] >= start]) for one in series]
    words = Words(f"{scope}selective", "Selective accuracy", caption)
    return Figure(words.slug, words.title, caption, line(series, *axes, words, direct=False))


def _coverage(groups: Sequence[Group], scope: str) -> Figure | None:
    series = _series(groups, coverage_points)
    if not series:
        return None
    caption = f"Actual coverage of intervals: below the dashed line they are too narrow. {_BAND}"
    ideal = Series("", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
    axes = Axis("Nominal coverage", percent, 0.0, 1.0), Axis("Actual coverage", percent, 0.0, 1.0)
    words = Words(f"{scope}coverage", "Calibration of intervals", caption)
    return Figure(words.slug, words.title, caption, line([ideal, *series], *axes, words, direct=False))


def _series(groups: Sequence[Group], points_of: Callable[[LoadedRun], list[Point]]) -> list[Series]:
    found = map(partial(_mean_curve, points_of=points_of), groups)
    return [one for one in found if one is not None]


def _mean_curve(one: Group, points_of: Callable[[LoadedRun], list[Point]]) -> Series | None:
    """The mean over the runs at the places of the shortest curve, with its standard error where there are several."""
    curves = [points for run in one.runs if len(points := sorted(points_of(run))) > 1]
    if not curves:
        return None
    start, end = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    places = [x for x, _ in min(curves, key=len) if start <= x <= end]
    if len(curves) == 1 or len(places) < 2:
        return Series(one.label, curves[0], one.colour)
    heights = [np.interp(places, [x for x, _ in curve], [y for _, y in curve]).tolist() for curve in curves]
    means = [(x, fmean(values)) for x, *values in zip(places, *heights, strict=True)]
    errors = [stdev(values) / math.sqrt(len(values)) for values in zip(*heights, strict=True)]
    band = [(x, mean - error, mean + error) for (x, mean), error in zip(means, errors, strict=True)]
    return Series(one.label, means, one.colour, band=band)


def _ends(series: Sequence[Series], form: Format) -> str:
    return "At the end: " + ", ".join(f"{one.label} {form(one.points[-1][1])}" for one in series) + "."
