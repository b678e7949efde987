"""Figures of several runs: dots with error bars, quality against cost, and a curve per method with a band."""

import math
from collections.abc import Callable, Sequence
from operator import methodcaller
from statistics import fmean, stdev

import numpy as np

from gossamer._text.formats import Format, count, integer, is_number, macs, percent
from gossamer.lab.report.charts import DIAGONAL, MOST_NAMED, Mark, Series, line, scatter
from gossamer.lab.report.evaluation import SCORES, detections
from gossamer.lab.report.parts import Axis, Figure, Point, colour_class, element
from gossamer.lab.report.plots import DotRow, dots
from gossamer.lab.report.predictions import COVERAGE_AXES, SELECTIVE_AXES, coverage_points, selective_points
from gossamer.lab.report.runs import Group, LoadedRun, told
from gossamer.lab.report.training import VALIDATION, Curve, fitted, loss_axis, losses
from gossamer.metrics import METRICS, Metric

QUALITY = ("accuracy", "rmse", "nll", "ece", "brier", "crps", "coverage90")
"""Metrics that get a dot plot."""

COSTS = {
    "training_macs": ("cost", "multiply-adds of the training"),
    "parameter_bytes": ("cost-size", "size of all that predicts"),
    "prediction_seconds": ("cost-prediction", "time to predict a batch"),
}
"""What a method costs: the figure's name in the page, and that of its axis."""

_FEWEST = 10  # examples in a bin of a reliability curve
_ON_FRONT = 0.09  # area of a point
_BAND = "Bands are ± one standard error over the runs."
_FRONT = "Down and to the left is better. The line joins the front: no other method is both better and cheaper."


def quality(groups: Sequence[Group], scope: str) -> list[Figure]:
    """A dot plot of each of the usual metrics, where at least two groups have it."""
    figures = []
    for metric in (METRICS[key] for key in QUALITY):
        values = {one.label: some for one in groups if (some := one.values(metric.name))}
        caption = {"higher": "Higher is better.", "lower": "Lower is better."}.get(str(metric.better), "")
        caption = f"{metric.format(metric.better)} is ideal." if isinstance(metric.better, float) else caption
        if any(len(one.runs) > 1 for one in groups):
            caption += " Mean ± standard error; small dots are single runs."
        if len(values) > 1:
            figures.append(_dots(f"{scope}dots-{metric.name}", metric.label, caption, metric, values, groups))
    return figures


def detection(groups: Sequence[Group], scope: str) -> list[Figure]:
    """AUROC of each group, for every set and score that at least two of them have."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in groups:
        for name, score, values in (row for run in one.runs for row in detections(run.evaluation.get("ood"))):
            if score in SCORES and is_number(values.get("auroc")):
                found.setdefault((name, score), {}).setdefault(one.label, []).append(values["auroc"])
    several = [(*key, values) for key, values in found.items() if len(values) > 1]
    return [
        _dots(
            f"{scope}ood-{place}",
            f"AUROC by {score.replace('_', ' ')}, {name}",
            f"Separating {name} from the test data; 50\u202f% is chance. Mean ± standard error over runs.",
            METRICS["auroc"],
            values,
            groups,
        )
        for place, (name, score, values) in enumerate(several)
    ]


def costs(groups: Sequence[Group], scope: str = "") -> list[Figure | None]:
    """The log loss against each cost that at least two groups have measured."""
    return [_cost(groups, METRICS[key], slug, label, scope) for key, (slug, label) in COSTS.items()]


def calibration(groups: Sequence[Group], scope: str) -> list[Figure | None]:
    """Reliability, selective accuracy and coverage of intervals, a curve per group."""
    return [_reliability(groups, scope), _selective(groups, scope), _coverage(groups, scope)]


def learning(groups: Sequence[Group], scope: str) -> list[Figure | None]:
    """Loss and quality on validation data along the training, the mean of the runs of each group."""
    rows = [row for one in groups for run in one.runs for row in run.metrics]
    along = "epoch" if rows and all("epoch" in row for row in rows) else "step"
    return [_losses(groups, along, scope), *(_validation(groups, curve, along, scope) for curve in VALIDATION)]


def front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points (cost, loss) are on the Pareto front, from the cheapest to the best: no other has less of both."""
    chosen: list[int] = []
    for place in sorted(range(len(points)), key=lambda i: points[i]):
        if not chosen or points[place][1] < points[chosen[-1]][1]:
            chosen.append(place)
    return chosen


def _dots(
    slug: str, title: str, caption: str, metric: Metric, values: dict[str, list[float]], groups: Sequence[Group]
) -> Figure:
    rows = []
    for one in groups:
        if some := values.get(one.label):
            mean, error = fmean(some), stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0
            hover, specks = f"{one.label}: {told(mean, error or None, metric)}", some if len(some) > 1 else []
            rows.append(DotRow(one.label, mean, mean - error, mean + error, hover, one.colour, specks=specks))
    chart = dots(rows, Axis(metric.label, metric.format), ("method", "mean", "low", "high"))
    return Figure(slug, title, caption, chart, "rows", description="; ".join(row.hover for row in rows))


def _cost(groups: Sequence[Group], cost: Metric, slug: str, label: str, scope: str) -> Figure | None:
    quality = METRICS["nll"]
    drawn = [one for one in groups if one.mean(quality.name) is not None and (one.mean(cost.name) or 0) > 0]
    if len(drawn) < 2:
        return None
    points = [(one.mean(cost.name) or 0.0, one.mean(quality.name) or 0.0) for one in drawn]
    best = front(points)
    other = _ON_FRONT / 2 if len(drawn) <= MOST_NAMED else 0.0  # a point without a name, where there are many
    marks, items = [], []
    for place, (one, (x, y)) in enumerate(zip(drawn, points, strict=True)):
        hover, area = f"{one.label}: {one.text(quality)} for {cost.format(x)}", _ON_FRONT if place in best else other
        marks.append(Mark(x, y, one.label, hover, one.colour, area, (one.error(quality.name) or 0.0) if area else 0.0))
    for one in (drawn[place] for place in best):
        words = element("span", f"{one.text(quality)}, {one.text(cost)}")
        items.append(element("li", element("i", class_=colour_class(one.colour)), element("b", one.label), words))
    losses = [loss for _, loss in points]
    x_axis = Axis(label.capitalize(), count if cost.format is macs else cost.format, log=True)
    y_axis = Axis(quality.label, quality.format, log=min(losses) > 0 and max(losses) > 4 * min(losses))
    figure = Figure(
        f"{scope}{slug}",
        f"{quality.label} against {label}",
        "",
        scatter(marks, x_axis, y_axis, steps=[points[place] for place in best]),
        description=f"On the front: {', '.join(drawn[place].label for place in best)}.",
    )
    key = element("ul", *items, class_="legend list")
    return figure._replace(caption=_FRONT, shape="hero", aside=key) if slug == "cost" else figure


def _losses(groups: Sequence[Group], along: str, scope: str) -> Figure | None:
    validation = _series(groups, lambda run: losses(run, along)[1])
    training = [one._replace(kind="dashed", band=()) for one in _series(groups, lambda run: losses(run, along)[0])]
    every = [*validation, *training]
    if not every:
        return None
    axis = loss_axis([point for one in every for point in one.points], [run for one in groups for run in one.runs])
    caption = f"On validation data, and dashed on training data. {_BAND}" if validation else "On training data."
    chart = line(every, Axis(along.title(), integer, 0.0), axis)
    return Figure(
        f"{scope}loss", "Loss", caption, chart, description=_ends(validation or training, METRICS["nll"].format)
    )


def _validation(groups: Sequence[Group], curve: Curve, along: str, scope: str) -> Figure | None:
    series = _series(groups, methodcaller("points", curve.key, along))
    if not series:
        return None
    axis = fitted(Axis(curve.axis, curve.metric.format), [point for one in series for point in one.points], 0.25)
    caption = f"The mean of the runs; the axis fits the last three quarters. {_BAND}"
    chart = line(series, Axis(along.title(), integer, 0.0), axis)
    return Figure(
        f"{scope}{curve.slug}", curve.metric.label, caption, chart, description=_ends(series, curve.metric.format)
    )


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
    axes = Axis("Confidence", percent, left, 1.0), Axis("Accuracy", percent, bottom, 1.0)
    return Figure(f"{scope}reliability", "Reliability", caption, line([DIAGONAL, *series], *axes, direct=False))


def _pooled(one: Group) -> Series | None:
    """Accuracy against confidence over the predictions of all runs, with the standard error over runs."""
    curves = [curve for run in one.runs if (curve := run.curve("reliability", "confidence", "accuracy", "count"))]
    points, band = [], []
    for bins in zip(*(zip(*curve, strict=True) for curve in curves), strict=False):
        known = [(s, a, n) for s, a, n in bins if n > 0 and math.isfinite(s + a)]
        total = sum(n for *_, n in known)
        if total < _FEWEST:
            continue
        sure, right = sum(n * s for s, _, n in known) / total, sum(n * a for _, a, n in known) / total
        error = stdev(a for _, a, _ in known) / math.sqrt(len(known)) if len(known) > 1 else 0.0
        points.append((sure, right))
        band.append((sure, max(0.0, right - error), min(1.0, right + error)))
    return Series(one.label, points, one.colour, band=band if len(curves) > 1 else ()) if points else None


def _selective(groups: Sequence[Group], scope: str) -> Figure | None:
    series = _series(groups, selective_points)
    if not series:
        return None
    caption = f"Accuracy when only the most confident examples are answered. {_BAND}"
    imperfect = [x for one in series for x, y in one.points if y < 0.9995]
    start = math.floor(10 * max(0.0, min(imperfect, default=0.1) - 0.1)) / 10  # before it no method errs
    series = [one._replace(points=[point for point in one.points if point[0] >= start]) for one in series]
    chart = line(series, SELECTIVE_AXES[0]._replace(low=start), SELECTIVE_AXES[1], direct=False)
    return Figure(f"{scope}selective", "Selective accuracy", caption, chart)


def _coverage(groups: Sequence[Group], scope: str) -> Figure | None:
    series = _series(groups, coverage_points)
    caption = f"Actual coverage of intervals: below the dashed line they are too narrow. {_BAND}"
    if not series:
        return None
    chart = line([DIAGONAL, *series], *COVERAGE_AXES, direct=False)
    return Figure(f"{scope}coverage", "Calibration of intervals", caption, chart)


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


def _ends(series: Sequence[Series], form: Format) -> str:
    return "At the end: " + ", ".join(f"{one.label} {form(one.points[-1][1])}" for one in series) + "."
