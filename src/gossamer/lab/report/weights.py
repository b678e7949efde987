"""Figures of the weights: where the active ones are, how they moved, and how certain each is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gossamer._text.formats import count, integer, is_number, number, percent
from gossamer.lab.report.axes import Axis, PlotFrame
from gossamer.lab.report.charts import Bars, Series, Words, histogram, line
from gossamer.lab.report.figure import Figure, shares
from gossamer.lab.report.markup import Html, element
from gossamer.lab.report.rows import BarRow, DotRow, bars, dots
from gossamer.lab.report.runs import LoadedRun


def figures(run: LoadedRun) -> list[Figure]:
    """All that the run has."""
    found = (_density(run), _std_by_layer(run), _sigma(run), _snr(run), _updates(run))
    return [figure for figure in found if figure is not None]


def layer_name(layer: Mapping[str, Any]) -> str:
    """The name of a layer; a bare number gets its kind before it."""
    name, kind = str(layer.get("name", "")), str(layer.get("kind", ""))
    return f"{kind} {name}".strip() if name.isdigit() or not name else name


def _density(run: LoadedRun) -> Figure | None:
    layers = run.layers
    if not layers:
        return None
    active, total = sum(layer["active"] for layer in layers), sum(layer["total"] for layer in layers)
    caption = f"{count(active)} of {count(total)} weights are active, {percent(active / total)}."
    caption += " The rest are exactly zero." if active < total else ""
    rows = []
    for layer in layers:
        share, shape = layer["active"] / layer["total"], layer.get("shape")
        size = " × ".join(map(str, shape)) if isinstance(shape, list) else ""
        parts = [str(layer.get("name", "")), str(layer.get("kind", "")), size]
        told = f"{integer(layer['active'])} of {integer(layer['total'])} active"
        text = f"{percent(share)} of {count(layer['total'])}"
        rows.append(BarRow(layer_name(layer), min(1.0, share), text, ", ".join([*filter(None, parts), told])))
    chart = bars(rows, Words("layers", "Density by layer", caption), ("layer", "density"))
    return Figure("layers", "Density of each layer", caption, chart, "rows")


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
    words = Words("layer-std", "σ per layer", caption)
    log = max(row.high for row in rows) > 3 * min(row.low for row in rows)
    chart = dots(rows, Axis("σ", number, log=log), words, ("layer", "median", "5 %", "95 %"))
    return Figure(words.slug, words.title, caption, chart, "rows")


def _sigma(run: LoadedRun) -> Figure | None:
    found = _powers(run, "sigma", "σ")
    if found is None:
        return None
    edges, bars, axes = found
    median = _median(edges, bars.heights)
    caption = f"Posterior standard deviations of the active weights; median about {number(median, 2)}."
    words = Words("sigma", "Distribution of σ", caption)
    return Figure("sigma", words.title, caption, histogram(edges, [bars], axes, words))


def _snr(run: LoadedRun) -> Figure | None:
    found = _powers(run, "snr", "|μ| / σ")
    if found is None:
        return None
    edges, bars, axes = found
    below = sum(h for high, h in zip(edges[1:], bars.heights, strict=True) if high <= 1 + 1e-9)
    caption = f"|μ|/σ of the active weights; {percent(below, 0)} are smaller than their own σ."
    words = Words("snr", "Signal-to-noise ratio", caption)
    return Figure("snr", words.title, caption, histogram(edges, [bars], axes, words, _at_one(edges)))


def _powers(run: LoadedRun, name: str, label: str) -> tuple[list[float], Bars, tuple[Axis, Axis]] | None:
    """A histogram of log10, without empty ends, on a logarithmic axis."""
    found = shares(run, name)
    if found is None:
        return None
    powers, heights = found[0], found[1].heights
    filled = [place for place, height in enumerate(heights) if height > 2e-4]
    heights = heights[filled[0] : filled[-1] + 1]
    edges = [10.0**power for power in powers[filled[0] : filled[-1] + 2]]
    bins = zip(edges[:-1], edges[1:], heights, strict=True)
    hovers = [f"{label} from {number(a)} to {number(b)}: {percent(h)}" for a, b, h in bins]
    axes = Axis(label, number, edges[0], edges[-1], log=True), Axis("Share of active weights", percent, 0.0)
    return edges, Bars("", heights, hovers), axes


def _at_one(edges: Sequence[float]) -> Callable[[PlotFrame], Html | None]:
    def over(frame: PlotFrame) -> Html | None:
        if not edges[0] < 1 < edges[-1]:
            return None
        return element("path", d=f"M{frame.x(1):.1f} {frame.y.start:.1f}V{frame.y.end:.1f}", class_="line reference")

    return over


def _median(edges: Sequence[float], heights: Sequence[float]) -> float:
    below = 0.0
    for low, high, height in zip(edges[:-1], edges[1:], heights, strict=True):
        below += height
        if below >= 0.5:
            return math.sqrt(low * high)
    return edges[-1]


def _updates(run: LoadedRun) -> Figure | None:
    rows = [row for row in run.updates if is_number(row.get("step"))]
    moved = [row for row in rows if isinstance(row.get("replaced"), Mapping)]
    points = [(float(row["step"]), float(sum(filter(is_number, row["replaced"].values())))) for row in moved]
    if len(points) < 2:
        return None
    postponed = [(float(row["step"]), 0.0) for row in rows if "postponed" in row]
    caption = f"{integer(len(points))} updates replaced {count(sum(n for _, n in points))} weights by others."
    if postponed:
        caption += f" {integer(len(postponed))} were postponed (strokes at the foot)."
    series = [Series("Replaced", points, kind="area")]
    series += [Series("postponed", postponed, kind="ticks")] if postponed else []
    axes = Axis("Step", integer, 0.0), Axis("Weights replaced", count, 0.0)
    chart = line(series, *axes, Words("updates", "Weights replaced at each update", caption))
    return Figure("updates", "Updates of the subspace", caption, chart)
