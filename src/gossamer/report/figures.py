"""The figures of one run; one whose data the run folder does not have is left out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from gossamer.formats import count, integer, is_number, number, percent
from gossamer.metrics import METRICS, Metric
from gossamer.report.axes import Axis, Frame
from gossamer.report.charts import BarRow, Series, Words, bars, histogram, line
from gossamer.report.markup import Html, element, join
from gossamer.report.runs import LoadedRun, Point


class Figure(NamedTuple):
    """A chart under its title, with a sentence that says what to look for."""

    slug: str
    title: str
    caption: str
    chart: Html
    shape: str = ""  # "tall": two rows high; "row" and "hero": as wide as the page, its words beside it
    aside: Html | None = None

    def html(self) -> Html:
        """The element of the page."""
        head = element("figcaption", element("h3", self.title), element("p", self.caption), self.aside)
        plot = element("div", self.chart, class_="plot")
        return element("figure", head, plot, id=f"figure-{self.slug}", class_=f"figure {self.shape}".strip())


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
    def best(self) -> Callable[..., Point] | None:
        """``max`` or ``min`` for metrics of validation: the rest is not there to be compared."""
        return (max if self.metric.better == "higher" else min) if self.key.startswith("val_") else None

    def is_worth_drawing(self, points: Sequence[Point]) -> bool:
        """Whether there are two points, and not just the zeros of a method without a prior."""
        return len(points) > 1 and (self.key != "kl" or any(value for _, value in points))

    def y_axis(self, points: Sequence[Point], skip: float = 0.0) -> Axis:
        """Logarithmic for a loss that spans much; for metrics of validation, fitted to what follows ``skip``."""
        values, form = [value for _, value in points], self.metric.format
        if self.best:
            start, end = min(x for x, _ in points), max(x for x, _ in points)
            late = [value for x, value in points if x >= start + skip * (end - start)]
            return Axis(self.axis, form, min(late), max(late))
        log = self.low is None and min(values) > 0 and max(values) > 30 * min(values)
        low = self.low if self.low is not None and self.low <= min(values) else None
        return Axis(self.axis, form, low, log=log)


CURVES = (
    Curve("val_accuracy", "Accuracy"),
    Curve("val_rmse", "RMSE"),
    Curve("val_nll", "Nats"),
    Curve("loss", "Loss"),
    Curve("kl", "KL in the loss", 0.0),
    Curve("lr", "Rate", 0.0),
    Curve("density", "Active weights", 0.0),
    Curve("examples_per_second", "Examples per second", 0.0),
)


def learning(run: LoadedRun) -> list[Figure]:
    """One figure per recorded metric, along the steps."""
    found = ((curve, run.points(curve.key)) for curve in CURVES)
    return [_learning(curve, points) for curve, points in found if curve.is_worth_drawing(points)]


def confidence(run: LoadedRun) -> list[Figure]:
    """How far the model's own statements of certainty can be trusted."""
    found = (_reliability(run), _selective(run), _confidence(run), _entropy(run))
    return [figure for figure in found if figure is not None]


def sparsity(run: LoadedRun) -> list[Figure]:
    """Where the active weights are, how they moved, and how certain each is."""
    return [figure for figure in (_layers(run), _updates(run), _snr(run)) if figure is not None]


def selective_points(run: LoadedRun) -> list[Point]:
    """Accuracy against the share of examples answered; empty where a line cannot be drawn."""
    found = run.curve("selective", "coverage", "accuracy")
    points = sorted((c, a) for c, a in zip(*found, strict=True) if math.isfinite(c + a)) if found else []
    return points if len(points) > 1 else []


def _learning(curve: Curve, points: list[Point]) -> Figure:
    title, form, (step, last) = curve.metric.label, curve.metric.format, points[-1]
    caption = curve.metric.meaning
    if curve.best:
        at, best = curve.best(points, key=lambda point: point[1])
        word = "highest" if curve.best is max else "lowest"
        is_last = form(best) == form(last)
        caption = f"{form(last)} at the end, "
        caption += f"the {word} of all." if is_last else f"{form(best)} at step {integer(at)}, the {word}."
    told = f"{title} from {form(points[0][1])} to {form(last)} at step {integer(step)}."
    series = Series(title, points, kind="line" if curve.low is None else "area")
    chart = line([series], Axis("Step", integer, 0.0), curve.y_axis(points), Words(curve.slug, title, told))
    return Figure(curve.slug, title, caption, chart)


def _reliability(run: LoadedRun) -> Figure | None:
    found = run.curve("reliability", "edges", "confidence", "accuracy", "count")
    if found is None or not sum(c for c in found[3] if c > 0):
        return None
    edges, sure, right, counts = found
    bins = [(s, a, c) for s, a, c in zip(sure, right, counts, strict=True) if c > 0 and math.isfinite(s + a)]
    gap = sum(c * (s - a) for s, a, c in bins) / sum(c for _, _, c in bins)
    verdict = "too sure" if gap > 0 else "too modest"
    caption = (
        "Columns that end on the dashed line can be taken at their word; those that end below it are too sure. "
        f"On average it is {number(abs(100 * gap), 2)} points {verdict}."
    )
    hovers = [
        f"{percent(a)} right where it was {percent(s)} sure: {integer(c)} examples" if c > 0 else ""
        for s, a, c in zip(sure, right, counts, strict=True)
    ]
    heights = [a if c > 0 and math.isfinite(a) else 0.0 for a, c in zip(right, counts, strict=True)]
    axes = Axis("Confidence", percent, 0.0, 1.0), Axis("Right, with 95\u202f% intervals", percent, 0.0, 1.0)
    words = Words("reliability", "Reliability diagram", caption)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]

    def over(frame: Frame) -> Html:
        diagonal = f"M{frame.x(0):.1f} {frame.y(0):.1f}L{frame.x(1):.1f} {frame.y(1):.1f}"
        whiskers = [_interval(frame, x, a, c) for x, a, c in zip(middles, right, counts, strict=True)]
        return join([element("path", d=diagonal, class_="line reference"), *whiskers])

    return Figure(
        "reliability", "Is it as sure as it should be?", caption, histogram(edges, heights, axes, words, hovers, over)
    )


def _interval(frame: Frame, x: float, share: float, n: float) -> Html | None:
    """Wilson's 95 % interval of a share, as a vertical stroke."""
    if not n > 0 or not math.isfinite(share):
        return None
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    path = f"M{frame.x(x):.1f} {frame.y(max(0.0, middle - half)):.1f}V{frame.y(min(1.0, middle + half)):.1f}"
    return element("path", d=path, class_="interval")


def _selective(run: LoadedRun) -> Figure | None:
    points = selective_points(run)
    if not points:
        return None
    kept, half = min(points, key=lambda point: abs(point[0] - 0.5))
    caption = f"Asked only for the {percent(kept, 0)} it is surest of, it gets {percent(half)} right."
    axes = Axis("Share of examples answered", percent), Axis("Accuracy on these", percent)
    chart = line([Series("Accuracy", points)], *axes, Words("selective", "Selective accuracy", caption))
    return Figure("selective", "When it may decline to answer", caption, chart)


def _confidence(run: LoadedRun) -> Figure | None:
    shares = _shares(run, "confidence")
    if shares is None:
        return None
    edges, heights, hovers = shares
    caption = f"{percent(heights[-1], 0)} of its predictions are at least {percent(edges[-2], 0)} sure."
    axes = Axis("Confidence", percent), Axis("Share of examples", percent, 0.0)
    words = Words("confidence", "Histogram of confidence", caption)
    return Figure("confidence", "How sure it says it is", caption, histogram(edges, heights, axes, words, hovers))


def _entropy(run: LoadedRun) -> Figure | None:
    shares = _shares(run, "entropy")
    if shares is None:
        return None
    edges, heights, hovers = shares
    names = run.result.get("class_names")
    limit = f", {number(math.log(len(names)))} a guess among {len(names)}" if isinstance(names, list) and names else ""
    caption = f"Doubt in each prediction: 0 is none{limit}."
    axes = Axis("Entropy, nats", number), Axis("Share of examples", percent, 0.0)
    words = Words("entropy", "Histogram of entropy", caption)
    return Figure("entropy", "How much doubt is left", caption, histogram(edges, heights, axes, words, hovers))


def _shares(run: LoadedRun, name: str) -> tuple[list[float], list[float], list[str]] | None:
    """Edges, shares of all examples and hover texts of a histogram."""
    found = run.curve(name, "edges", "count")
    total = sum(c for c in found[1] if c > 0) if found else 0
    if found is None or not total:
        return None
    edges, counts = found
    heights = [c / total if c > 0 else 0.0 for c in counts]
    bins = zip(edges[:-1], edges[1:], counts, heights, strict=True)
    return edges, heights, [f"{number(a)} to {number(b)}: {integer(c)}, {percent(h)}" for a, b, c, h in bins]


def _layers(run: LoadedRun) -> Figure | None:
    layers = run.layers
    if not layers:
        return None
    active, total = sum(layer["active"] for layer in layers), sum(layer["total"] for layer in layers)
    caption = (
        f"{count(active)} of {count(total)} weights are active, {percent(active / total)}; the rest are exactly zero."
    )
    rows = []
    for layer in layers:
        share = layer["active"] / layer["total"]
        shape = layer.get("shape")
        size = " × ".join(map(str, shape)) if isinstance(shape, list) else ""
        parts = [str(layer.get("name", "")), str(layer.get("kind", "")), size]
        told = f"{integer(layer['active'])} of {integer(layer['total'])} active"
        text = f"{percent(share)} of {count(layer['total'])}"
        rows.append(BarRow(parts[0], min(1.0, share), text, ", ".join([*filter(None, parts), told])))
    chart = bars(rows, Words("layers", "Density by layer", caption))
    return Figure("layers", "Density of each layer", caption, chart, "tall" if len(rows) > 10 else "row")


def _updates(run: LoadedRun) -> Figure | None:
    rows = [row for row in run.updates if is_number(row.get("step"))]
    moved = [row for row in rows if isinstance(row.get("replaced"), Mapping)]
    points = [(float(row["step"]), float(sum(filter(is_number, row["replaced"].values())))) for row in moved]
    if len(points) < 2:
        return None
    postponed = [(float(row["step"]), 0.0) for row in rows if "postponed" in row]
    caption = f"{integer(len(points))} updates put {count(sum(n for _, n in points))} weights in the place of others."
    if postponed:
        caption += f" {integer(len(postponed))} were postponed (strokes at the foot)."
    series = [Series("Replaced", points, kind="area")]
    series += [Series("postponed", postponed, kind="ticks")] if postponed else []
    axes = Axis("Step", integer, 0.0), Axis("Weights replaced", count, 0.0)
    chart = line(series, *axes, Words("updates", "Weights replaced at each update", caption))
    return Figure("updates", "The search for better weights", caption, chart)


def _snr(run: LoadedRun) -> Figure | None:
    shares = _shares(run, "snr")
    if shares is None:
        return None
    powers, heights, _ = shares
    filled = [place for place, height in enumerate(heights) if height > 2e-4]
    heights = heights[filled[0] : filled[-1] + 1]
    edges = [10.0**power for power in powers[filled[0] : filled[-1] + 2]]
    below = sum(h for high, h in zip(edges[1:], heights, strict=True) if high <= 1 + 1e-9)
    caption = f"|μ|/σ of the active weights. {percent(below, 0)} are smaller than their own standard deviation."
    bins = zip(edges[:-1], edges[1:], heights, strict=True)
    hovers = [f"|μ|/σ from {number(a)} to {number(b)}: {percent(h)}" for a, b, h in bins]
    axes = Axis("|μ| / σ", number, edges[0], edges[-1], log=True), Axis("Share of active weights", percent, 0.0)

    def over(frame: Frame) -> Html | None:
        if not edges[0] < 1 < edges[-1]:
            return None
        return element("path", d=f"M{frame.x(1):.1f} {frame.y.start:.1f}V{frame.y.end:.1f}", class_="line reference")

    words = Words("snr", "Histogram of |μ|/σ", caption)
    return Figure("snr", "How well each weight is known", caption, histogram(edges, heights, axes, words, hovers, over))
