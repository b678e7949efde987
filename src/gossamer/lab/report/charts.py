"""Charts as inline SVG, coloured by the page: lines, histograms and a scatter, each with its data as a table."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from gossamer.lab.report.parts import (
    HEIGHT,
    LETTER,
    WIDTH,
    Axis,
    Cell,
    Chart,
    Html,
    PlotFrame,
    Point,
    colour_class,
    element,
    join,
    make_frame,
    shorten,
    spread,
)

_MOST_POINTS = 240
_LOWEST = HEIGHT - 50  # of labels: below them are the ticks
MOST_NAMED = 8
"""At most so many series are named in a chart; more names would hide it."""


class Series(NamedTuple):
    """A line; series with the same label are drawn in the same colour and labelled once."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    kind: str = "line"  # or "dashed", "thin", "area"; without a name: "reference", and "ticks" at the foot of the chart
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high


DIAGONAL = Series("", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
"""Where a calibrated model is."""


class Bars(NamedTuple):
    """The bars of a histogram; ``texts`` say on hovering what is in each."""

    label: str
    heights: Sequence[float]
    texts: Sequence[str]
    colour: int = 0


class Mark(NamedTuple):
    """A point of a scatter: ``area`` as a share of the largest, 0 for a small dot without label."""

    x: float
    y: float
    label: str
    hover: str
    colour: int = 0
    area: float = 0.0
    error: float = 0.0


def thin(points: Sequence[Point], most: int = _MOST_POINTS) -> list[Point]:
    """At most about ``most`` points: neighbours are averaged, the first and the last are kept."""
    if len(points) <= most:
        return list(points)
    width = math.ceil((len(points) - 2) / max(1, most - 2))
    inner = points[1:-1]
    groups = [inner[start : start + width] for start in range(0, len(inner), width)]
    means = [(sum(x for x, _ in group) / len(group), sum(y for _, y in group) / len(group)) for group in groups]
    return [points[0], *means, points[-1]]


def line(series: Sequence[Series], x: Axis, y: Axis, direct: bool = True) -> Chart:
    """Lines over a common axis; several are named at their ends (``direct``) or in a legend below.

    One line alone has its last value at its end, unless ``direct`` is false.
    """
    series = [_thinned(one) for one in series]
    if y.log:  # a band may reach below zero, where nothing can be drawn
        least = min(py for one in series for _, py in one.points)
        series = [one._replace(band=[(px, max(low, least), high) for px, low, high in one.band]) for one in series]
    told = [one for one in series if one.kind not in ("reference", "ticks")]
    named = list({one.label: one for one in reversed(told)}.values())[::-1]
    is_alone, direct = direct and len(named) == 1, direct and 1 < len(named) <= MOST_NAMED
    right = 26.0 + LETTER * max((len(shorten(one.label)) for one in named), default=0) if direct else 22.0
    if is_alone:
        right = 16 + LETTER * len(y.form(named[0].points[-1][1]))
    every = [point for one in series for point in one.points]
    ends = [height for one in series for _, low, high in one.band for height in (low, high)]
    frame = make_frame(x, y, [px for px, _ in every], [py for _, py in every] + ends, right)
    drawn = [_band(one, frame) for one in told if one.band]
    drawn += [_line(one, frame) for one in sorted(series, key=lambda one: one.kind != "reference")]
    hovers = [_hovers(one, x, y, frame) for one in told]
    labels = _end_labels(named, frame) if direct else _last_value(named[0], y, frame) if is_alone else None
    names = [] if direct or not 1 < len(named) <= MOST_NAMED else [(one.label, one.colour) for one in named]
    rows = [(one.label, *point) for one in told for point in one.points]
    drawing = join([frame.drawing, clipped(join(drawn), frame), *hovers, labels])
    return Chart(drawing, ("series", x.label, y.label), rows, names)


def histogram(
    edges: Sequence[float], bars: Sequence[Bars], x: Axis, y: Axis, over: Callable[[PlotFrame], Html] | None = None
) -> Chart:
    """Bars between ``edges``, or outlines where there are several; ``over`` draws on top of them."""
    frame = make_frame(x, y, edges, [y.low or 0.0, *(height for one in bars for height in one.heights)])
    name, several = x.label.partition(",")[0], len(bars) > 1
    places = [f"{name} {x.form(low)} to {x.form(high)}" for low, high in pairwise(edges)]
    drawn = [(_outline if several else _columns)(one, edges, places, frame) for one in bars]
    rows: list[tuple[Cell, ...]] = [
        (*([one.label] if several else []), low, high, height)
        for one in bars
        for (low, high), height in zip(pairwise(edges), one.heights, strict=True)
    ]
    heads = (*(["series"] if several else []), f"{x.label}, from", f"{x.label}, to", y.label)
    names = [(one.label, one.colour) for one in bars] if several else []
    return Chart(join([frame.drawing, *drawn, over(frame) if over else None]), heads, rows, names)


def scatter(
    marks: Sequence[Mark], x: Axis, y: Axis, steps: Sequence[Point] = (), names: Sequence[tuple[str, int]] = ()
) -> Chart:
    """Points with areas, error bars and names; small dots without names; ``steps`` are joined by a stair.

    ``names`` of colours stand in a legend.
    """
    ys = [mark.y + sign * mark.error for mark in marks for sign in (-1, 1)]
    frame = make_frame(x, y, [mark.x for mark in marks], ys)
    drawn = [_mark(mark, frame) for mark in sorted(marks, key=lambda mark: -mark.area)]
    large = [mark for mark in marks if mark.area]
    heights = spread([_beside(frame.y(mark.y), bool(steps)) for mark in large], 15, _LOWEST)
    labels = []
    for mark, height in zip(large, heights, strict=True):
        at, radius = frame.x(mark.x), _radius(mark.area)
        before = at + radius + 8 + LETTER * len(shorten(mark.label)) > WIDTH
        start, kind = (at - radius - 6, "label end") if before else (at + radius + 6, "label")
        labels.append(element("text", shorten(mark.label), x=start, y=height + 4, class_=kind))
    rows = [(mark.label, mark.x, mark.y, mark.error) for mark in marks if mark.label or names]
    drawing = join([frame.drawing, _stair(steps, frame), *drawn, *labels])
    return Chart(drawing, ("name", x.label, y.label, "standard error"), rows, names)


def clipped(drawing: Html, frame: PlotFrame) -> Html:
    """The drawing clipped to the axes, with a margin for the width of a line: an inner drawing shows what is in it."""
    left, top = frame.x.start - 2, frame.y.end - 2
    width, height = frame.x.end - left + 2, frame.y.start - top + 1
    box = f"{left:.2f} {top:.2f} {width:.2f} {height:.2f}"
    return element("svg", drawing, x=left, y=top, width=width, height=height, viewBox=box, class_="inside")


def path_of(points: Sequence[Point], frame: PlotFrame) -> str:
    """A polyline as the ``d`` of a path."""
    return "M" + "L".join(f"{frame.x(px):.1f} {frame.y(py):.1f}" for px, py in points)


def hit(hover: str, x: float, y: float, width: float, height: float) -> Html:
    """An invisible place that shows a text on hovering."""
    return element("rect", element("title", hover), x=x, y=y, width=width, height=height, class_="hit")


def _beside(height: float, has_stair: bool) -> float:
    """The height of a label: that of its point, or below it, or above, since a stair leaves points to the right."""
    if not has_stair:
        return height
    return height + 15 if height + 15 <= _LOWEST else height - 13


def _stair(steps: Sequence[Point], frame: PlotFrame) -> Html | None:
    """Level to the next point, then down to it: what the points so far reach at each place of the axis."""
    if not steps:
        return None
    start, *rest = [(frame.x(px), frame.y(py)) for px, py in steps]
    path = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in rest) + f"H{frame.x.end:.1f}"
    return element("path", d=path, class_="line reference")


def _thinned(series: Series) -> Series:
    low, high = (thin([(one[0], one[side]) for one in series.band]) for side in (1, 2))
    band = [(x, bottom, top) for (x, bottom), (_, top) in zip(low, high, strict=True)]
    return series._replace(points=thin(series.points), band=band)


def _band(series: Series, frame: PlotFrame) -> Html:
    corners = [(x, high) for x, _, high in series.band] + [(x, low) for x, low, _ in reversed(series.band)]
    return element("path", d=path_of(corners, frame) + "Z", class_=f"band {colour_class(series.colour)}")


def _line(series: Series, frame: PlotFrame) -> Html:
    if series.kind == "ticks":
        ticks = "".join(f"M{frame.x(px):.1f} {frame.y.start:.1f}v-9" for px, _ in series.points)
        return element("path", element("title", series.label), d=ticks, class_="whisker c2")
    path, colour, base = path_of(series.points, frame), colour_class(series.colour), frame.y.start
    drawn = element("path", d=path, class_=f"line {series.kind} {colour}")
    if series.kind != "area":
        return drawn
    under = f"{path}L{frame.x(series.points[-1][0]):.1f} {base:.1f}L{frame.x(series.points[0][0]):.1f} {base:.1f}Z"
    return join([element("path", d=under, class_=f"band {colour}"), drawn])


def _columns(one: Bars, edges: Sequence[float], places: Sequence[str], frame: PlotFrame) -> Html:
    drawn, base = [], frame.y.start
    for (left, right), height, text, place in zip(pairwise(edges), one.heights, one.texts, places, strict=True):
        if height > 0:
            x, y, width = frame.x(left), frame.y(height), frame.x(right) - frame.x(left)
            shape = {"x": x + 0.75, "y": y, "width": max(0.5, width - 1.5), "height": max(0.0, base - y)}
            drawn.append(element("rect", element("title", f"{place}: {text}"), **shape, class_="column"))
    return join(drawn)


def _outline(one: Bars, edges: Sequence[float], places: Sequence[str], frame: PlotFrame) -> Html:
    """Steps with a light fill, so that several histograms can lie over each other."""
    base = frame.y.start
    tops = [frame.y(height) if height > 0 else base for height in one.heights]
    steps = "".join(f"V{top:.1f}H{frame.x(right):.1f}" for top, right in zip(tops, edges[1:], strict=True))
    path = f"M{frame.x(edges[0]):.1f} {base:.1f}{steps}V{base:.1f}"
    shapes = [element("path", d=path, class_=f"{kind} {colour_class(one.colour)}") for kind in ("band", "line step")]
    hits = [
        hit(f"{place}: {text}", frame.x(left), top, frame.x(right) - frame.x(left), base - top)
        for (left, right), top, text, place in zip(pairwise(edges), tops, one.texts, places, strict=True)
        if top < base
    ]
    return join([*shapes, *hits])


def _hovers(series: Series, x: Axis, y: Axis, frame: PlotFrame) -> Html:
    """Invisible discs that show the numbers on hovering, and dots if there are few points."""
    stride, parts = max(1, len(series.points) // 60), []
    has_dots = len(series.points) <= 40 and series.kind not in ("dashed", "thin")
    for px, py in series.points[::stride]:
        if not frame.y.low <= py <= frame.y.high:
            continue
        centre = {"cx": frame.x(px), "cy": frame.y(py)}
        text = f"{series.label}: {y.form(py)} at {x.label.lower()} {x.form(px)}"
        if has_dots:
            parts.append(element("circle", **centre, r=2.2, class_=f"dot {colour_class(series.colour)}"))
        parts.append(element("circle", element("title", text), **centre, r=7.0, class_="hit"))
    return join(parts)


def _end_labels(named: Sequence[Series], frame: PlotFrame) -> Html:
    ends = [one.points[-1] for one in named]
    inside = [min(max(py, frame.y.low), frame.y.high) for _, py in ends]
    heights = spread([frame.y(py) for py in inside], 15, HEIGHT - 42)
    drawn = []
    for one, (px, _), py, height in zip(named, ends, inside, heights, strict=True):
        at = frame.x.end + 14
        path, colour = f"M{frame.x(px):.1f} {frame.y(py):.1f}L{at - 3:.1f} {height:.1f}", colour_class(one.colour)
        drawn.append(element("path", d=path, class_=f"leader {colour}"))
        drawn.append(element("text", shorten(one.label), x=at, y=height + 4, class_=f"label {colour}"))
    return join(drawn)


def _last_value(one: Series, y: Axis, frame: PlotFrame) -> Html:
    px, py = one.points[-1]
    dot = element("circle", cx=frame.x(px), cy=frame.y(py), r=3.5, class_=f"dot {colour_class(one.colour)}")
    return join([dot, element("text", y.form(py), x=frame.x(px) + 9, y=frame.y(py) + 4, class_="label")])


def _mark(mark: Mark, frame: PlotFrame) -> Html:
    at, height, colour = frame.x(mark.x), frame.y(mark.y), colour_class(mark.colour)
    whisker = None
    if mark.error:
        low, high = frame.y(mark.y - mark.error), frame.y(mark.y + mark.error)
        whisker = element("path", d=f"M{at:.1f} {low:.1f}V{high:.1f}", class_=f"whisker {colour}")
    kind, title = "point" if mark.area else "speck", element("title", mark.hover)
    return join([whisker, element("circle", title, cx=at, cy=height, r=_radius(mark.area), class_=f"{kind} {colour}")])


def _radius(area: float) -> float:
    return max(4.0, 15 * math.sqrt(area)) if area else 2.2
