"""Figures of a training and of the weights that it left: losses and metrics by step, density, σ, updates."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gossamer._text.formats import count, integer, is_number, number, percent
from gossamer.lab.report.charts import Bars, Series, histogram, line
from gossamer.lab.report.parts import Axis, Figure, Html, PlotFrame, Point, element
from gossamer.lab.report.plots import BarRow, DotRow, bars, dots
from gossamer.lab.report.runs import LoadedRun
from gossamer.metrics import METRICS, Metric


class Curve(NamedTuple):
    """A metric of the training log and the name of its axis."""

    key: str
    axis: str

    @property
    def metric(self) -> Metric:
        """Its row in the registry."""
        return METRICS[self.key]

    @property
    def slug(self) -> str:
        """Its name in addresses."""
        return self.key.replace("_", "-")


VALIDATION = (Curve("val_accuracy", "Accuracy"), Curve("val_rmse", "RMSE"))
OTHERS = (Curve("kl", "KL in the loss"), Curve("density", "Active weights"))
STEPS = Axis("Step", integer, 0.0)


def learning(run: LoadedRun) -> list[Figure | None]:
    """Loss and quality along the steps, and what else changes on the way."""
    validation = [_validation(one, points) for one in VALIDATION if len(points := run.points(one.key)) > 1]
    logged = [(one, run.points(one.key)) for one in OTHERS]
    return [_loss(run), *validation, *(_other(*both) for both in logged if len({y for _, y in both[1]}) > 1)]


def weights(run: LoadedRun) -> list[Figure | None]:
    """Where the active weights are, how they moved, and how certain each is."""
    return [_density(run), _std_by_layer(run), _snr(run), _updates(run)]


def losses(run: LoadedRun, along: str = "step") -> tuple[list[Point], list[Point]]:
    """NLL on training and on validation data; a log without the former has the loss."""
    training = run.points("nll", along) or run.points("loss", along)
    validation = run.points("val_nll", along)
    return (training if len(training) > 1 else []), (validation if len(validation) > 1 else [])


def loss_axis(points: Sequence[Point], runs: Sequence[LoadedRun]) -> Axis:
    """Logarithmic for classes; linear for numbers, whose densities may exceed 1, and fitted to the later training."""
    axis = Axis("NLL, nats", METRICS["nll"].format)
    if any(run.points("val_rmse") or run.value("rmse") is not None for run in runs):
        return fitted(axis, points, 0.1)
    return axis._replace(log=min(y for _, y in points) > 0)


def fitted(axis: Axis, points: Sequence[Point], skip: float) -> Axis:
    """The axis with the limits of what follows the first part of the training."""
    start, end = min(x for x, _ in points), max(x for x, _ in points)
    late = [value for x, value in points if x >= start + skip * (end - start)]
    return axis._replace(low=min(late), high=max(late))


def _loss(run: LoadedRun) -> Figure | None:
    training, validation = losses(run)
    named = enumerate((("training", training), ("validation", validation)))
    series = [Series(name, points, colour) for colour, (name, points) in named if points]
    if not series:
        return None
    caption = "NLL on training and validation data"
    if validation:
        at, best = min(validation, key=lambda point: point[1])
        form = METRICS["nll"].format
        caption += f"; validation ends at {form(validation[-1][1])}, the lowest was {form(best)} at step {integer(at)}"
    chart = line(series, STEPS, loss_axis([*training, *validation], [run]))
    return Figure("loss", "Loss", f"{caption}.", chart)


def _validation(curve: Curve, points: list[Point]) -> Figure:
    form, last = curve.metric.format, points[-1][1]
    pick, word = (max, "highest") if curve.metric.better == "higher" else (min, "lowest")
    at, best = pick(points, key=lambda point: point[1])
    caption = f"{form(last)} at the end, "
    caption += f"the {word} of all." if form(best) == form(last) else f"{form(best)} at step {integer(at)}, the {word}."
    chart = line([Series(curve.axis, points)], STEPS, fitted(Axis(curve.axis, form), points, 0.0))
    return Figure(curve.slug, curve.metric.label, caption, chart)


def _other(curve: Curve, points: list[Point]) -> Figure:
    form, label = curve.metric.format, curve.metric.label
    axis = Axis(curve.axis, form, min(0.0, *(y for _, y in points)))
    chart = line([Series(curve.axis, points, kind="area")], STEPS, axis)
    told = f"{label} from {form(points[0][1])} to {form(points[-1][1])}."
    return Figure(curve.slug, label, curve.metric.meaning, chart, description=told)


def layer_name(layer: Mapping[str, Any]) -> str:
    """The name of a layer; a bare number gets its kind before it."""
    name, kind = str(layer.get("name", "")), str(layer.get("kind", ""))
    return f"{kind} {name}".strip() if name.isdigit() or not name else name


def _density(run: LoadedRun) -> Figure | None:
    if not run.layers:
        return None
    active, total = (sum(layer[key] for layer in run.layers) for key in ("active", "total"))
    caption = f"{count(active)} of {count(total)} weights are active, {percent(active / total)}."
    caption += " The rest are exactly zero." if active < total else ""
    rows = []
    for layer in run.layers:
        share, shape = layer["active"] / layer["total"], layer.get("shape")
        size = " × ".join(map(str, shape)) if isinstance(shape, list) else ""
        parts = [str(layer.get("name", "")), str(layer.get("kind", "")), size]
        told = f"{integer(layer['active'])} of {integer(layer['total'])} active"
        text = f"{percent(share)} of {count(layer['total'])}"
        rows.append(BarRow(layer_name(layer), min(1.0, share), text, ", ".join([*filter(None, parts), told])))
    return Figure("layers", "Density of each layer", caption, bars(rows, ("layer", "density")), "rows")


def _std_by_layer(run: LoadedRun) -> Figure | None:
    rows = []
    for layer in run.layers:
        given = layer.get("std_quantiles")
        if isinstance(given, list) and len(given) == 5 and all(is_number(q) and q > 0 for q in given):
            low, inner_low, median, inner_high, high = given
            hover = f"{layer_name(layer)}: median {number(median)}, 90 % between {number(low)} and {number(high)}"
            rows.append(DotRow(layer_name(layer), median, low, high, hover, inner=(inner_low, inner_high)))
    if not rows:
        return None
    caption = "Median, half (thick) and 90\u202f% (thin) of the posterior standard deviations σ of the weights."
    log = max(row.high for row in rows) > 3 * min(row.low for row in rows)
    chart = dots(rows, Axis("σ", number, log=log), ("layer", "median", "5 %", "95 %"))
    return Figure("layer-std", "σ per layer", caption, chart, "rows")


def _snr(run: LoadedRun) -> Figure | None:
    """A histogram of log10 |μ|/σ, without empty ends, on a logarithmic axis."""
    powers, heights = run.shares("snr") or ([], [])
    filled = [place for place, height in enumerate(heights) if height > 2e-4]
    if not filled:
        return None
    heights = heights[filled[0] : filled[-1] + 1]
    edges = [10.0**power for power in powers[filled[0] : filled[-1] + 2]]
    below = sum(h for high, h in zip(edges[1:], heights, strict=True) if high <= 1 + 1e-9)
    caption = f"|μ|/σ of the active weights; {percent(below, 0)} are smaller than their own σ."
    axes = Axis("|μ| / σ", number, edges[0], edges[-1], log=True), Axis("Share of active weights", percent, 0.0)
    over = _at_one if edges[0] < 1 < edges[-1] else None
    chart = histogram(edges, [Bars("", heights, list(map(percent, heights)))], *axes, over)
    return Figure("snr", "Signal-to-noise ratio", caption, chart)


def _at_one(frame: PlotFrame) -> Html:
    path = f"M{frame.x(1):.1f} {frame.y.start:.1f}V{frame.y.end:.1f}"
    return element("path", d=path, class_="line reference")


def _updates(run: LoadedRun) -> Figure | None:
    rows = [row for row in run.updates if is_number(row.get("step"))]
    moved = [row for row in rows if isinstance(row.get("replaced"), Mapping)]
    points = [(float(row["step"]), float(sum(filter(is_number, row["replaced"].values())))) for row in moved]
    if len(points) < 2:
        return None
    postponed = [(float(row["step"]), 0.0) for row in rows if "postponed" in row]
    caption = f"{integer(len(points))} updates replaced {count(sum(n for _, n in points))} weights by others."
    series = [Series("Replaced", points, kind="area")]
    if postponed:
        caption += f" {integer(len(postponed))} were postponed (strokes at the foot)."
        series.append(Series("postponed", postponed, kind="ticks"))
    chart = line(series, STEPS, Axis("Weights replaced", count, 0.0))
    return Figure("updates", "Updates of the subspace", caption, chart)
