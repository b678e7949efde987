"""Charts as inline SVG, coloured by the page: lines, histograms and a scatter, each with its data as a table."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gossamer.lab.report.axes import HEIGHT, LETTER, WIDTH, Axis, PlotFrame, colour_class, make_frame, shorten, spread
from gossamer.lab.report.markup import Html, element, join

Point = tuple[float, float]
Cell = str | float
_MOST_POINTS = 240
LOWEST = HEIGHT - 50  # of labels: below them are the ticks
MOST_NAMED = 8
"""At most so many series are named in a chart; more names would hide it."""


class Words(NamedTuple):
    """Names of a chart: ``slug`` in the page, ``title`` and ``description`` for screen readers."""

    slug: str
    title: str
    description: str


class Chart(NamedTuple):
    """A drawing, and the numbers in it as a table."""

    html: Html
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def to_csv(self) -> str:
        """The numbers as CSV, to six digits."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in self.rows)
        return file.getvalue()


class Series(NamedTuple):
    """A line; series with the same label are drawn in the same colour and labelled once."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    kind: str = "line"  # or "dashed", "thin", "area"; without a name: "reference", and "ticks" at the foot of the chart
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high


class Bars(NamedTuple):
    """The bars of a histogram; ``hovers`` are shown on hovering."""

    label: str
    heights: Sequence[float]
    hovers: Sequence[str]
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


def line(series: Sequence[Series], x: Axis, y: Axis, words: Words, direct: bool = True) -> Chart:
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
    parts = [frame.drawing, clipped(join(drawn), frame, f"{words.slug}-clip"), *hovers, labels]
    rows = [(one.label, *point) for one in told for point in one.points]
    names = [] if direct or not 1 < len(named) <= MOST_NAMED else [(one.label, one.colour) for one in named]
    return Chart(svg(words, join(parts), names), ("series", x.label, y.label), rows)


def histogram(
    edges: Sequence[float],
    bars: Sequence[Bars],
    axes: tuple[Axis, Axis],
    words: Words,
    over: Callable[[PlotFrame], Html | None] | None = None,
) -> Chart:
    """Bars between ``edges``, or outlines where there are several; ``over`` draws on top of them."""
    x, y = axes
    frame = make_frame(x, y, edges, [y.low or 0.0, *(height for one in bars for height in one.heights)])
    drawn = [(_outline if len(bars) > 1 else _bars)(one, edges, frame) for one in bars]
    top = over(frame) if over else None
    rows: list[tuple[Cell, ...]] = [
        (*([one.label] if len(bars) > 1 else []), low, high, height)
        for one in bars
        for low, high, height in zip(edges[:-1], edges[1:], one.heights, strict=True)
    ]
    names = [(one.label, one.colour) for one in bars] if len(bars) > 1 else []
    heads = (*(["series"] if names else []), f"{x.label}, from", f"{x.label}, to", y.label)
    return Chart(svg(words, join([frame.drawing, *drawn, top]), names), heads, rows)


def scatter(
    marks: Sequence[Mark],
    x: Axis,
    y: Axis,
    words: Words,
    steps: Sequence[Point] = (),
    names: Sequence[tuple[str, int]] = (),
) -> Chart:
    """Points with areas, error bars and names; small dots without names; ``steps`` are joined by a stair.

    ``names`` of colours stand in a legend.
    """
    ys = [mark.y + sign * mark.error for mark in marks for sign in (-1, 1)]
    frame = make_frame(x, y, [mark.x for mark in marks], ys)
    drawn = [_mark(mark, frame) for mark in sorted(marks, key=lambda mark: -mark.area)]
    large = [mark for mark in marks if mark.area]
    heights = spread([_beside(frame.y(mark.y), bool(steps)) for mark in large], 15, LOWEST)
    labels = []
    for mark, height in zip(large, heights, strict=True):
        at, radius = frame.x(mark.x), _radius(mark.area)
        before = at + radius + 8 + LETTER * len(shorten(mark.label)) > WIDTH
        place, kind = (at - radius - 6, "label end") if before else (at + radius + 6, "label")
        labels.append(element("text", shorten(mark.label), x=place, y=height + 4, class_=kind))
    rows = [(mark.label, mark.x, mark.y, mark.error) for mark in marks if mark.label or names]
    drawing = join([frame.drawing, _stair(steps, frame), *drawn, *labels])
    return Chart(svg(words, drawing, names), ("name", x.label, y.label, "standard error"), rows)


def _beside(height: float, has_stair: bool) -> float:
    """The height of a label: that of its point, or below it, or above, since a stair leaves points to the right."""
    if not has_stair:
        return height
    return height + 15 if height + 15 <= LOWEST else height - 13


def _stair(steps: Sequence[Point], frame: PlotFrame) -> Html | None:
    """Level to the next point, then down to it: what the points so far reach at each place of the axis."""
    if not steps:
        return None
    start, *rest = [(frame.x(px), frame.y(py)) for px, py in steps]
    path = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in rest) + f"H{frame.x.end:.1f}"
    return element("path", d=path, class_="line reference")


def svg(words: Words, drawing: Html, names: Sequence[tuple[str, int]] = (), height: float = HEIGHT) -> Html:
    """The SVG element, with a legend of ``names`` with colours."""
    legend, height = _legend(names, height)
    return titled(words, join([drawing, legend]), viewBox=f"0 0 {WIDTH:g} {height:g}", class_="chart")


def titled(words: Words, drawing: Html, **attributes: str) -> Html:
    """An SVG element with a title and a description for screen readers."""
    title, description = f"{words.slug}-title", f"{words.slug}-description"
    told = [element("title", words.title, id=title), element("desc", words.description, id=description)]
    return element("svg", *told, drawing, role="img", aria_labelledby=f"{title} {description}", **attributes)


def clipped(drawing: Html, frame: PlotFrame, name: str) -> Html:
    """The drawing clipped to the axes, with a margin for the width of a line."""
    x, y = frame.x, frame.y
    box = element("rect", x=x.start - 2, y=y.end - 2, width=x.end - x.start + 4, height=y.start - y.end + 3)
    return join([element("clipPath", box, id=name), element("g", drawing, clip_path=f"url(#{name})")])


def path_of(points: Sequence[Point], frame: PlotFrame) -> str:
    """A polyline as the ``d`` of a path."""
    return "M" + "L".join(f"{frame.x(px):.1f} {frame.y(py):.1f}" for px, py in points)


def _legend(names: Sequence[tuple[str, int]], height: float) -> tuple[Html | None, float]:
    """Coloured squares with names in rows below a chart, and the height of both."""
    at, top, parts = 0.0, height + 16, []
    for label, colour in names:
        width = 18 + LETTER * len(shorten(label, 30))
        if at and at + width > WIDTH:
            at, top = 0.0, top + 20
        parts.append(element("rect", x=at, y=top - 9, width=10.0, height=10.0, rx=2.0, class_=_swatch(colour)))
        parts.append(element("text", shorten(label, 30), x=at + 16, y=top, class_="tick"))
        at += width + 14
    return (join(parts), top + 6) if names else (None, height)


def _swatch(colour: int) -> str:
    return f"swatch {colour_class(colour)}"


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
    path = path_of(series.points, frame)
    drawn = element("path", d=path, class_=f"line {series.kind} {colour_class(series.colour)}")
    if series.kind != "area":
        return drawn
    base = frame.y.start
    under = f"{path}L{frame.x(series.points[-1][0]):.1f} {base:.1f}L{frame.x(series.points[0][0]):.1f} {base:.1f}Z"
    return join([element("path", d=under, class_=f"band {colour_class(series.colour)}"), drawn])


def _bars(one: Bars, edges: Sequence[float], frame: PlotFrame) -> Html:
    bars, base = [], frame.y.start
    for left, right, height, hover in zip(edges[:-1], edges[1:], one.heights, one.hovers, strict=True):
        if height > 0:
            x, y, width = frame.x(left), frame.y(height), frame.x(right) - frame.x(left)
            shape = {"x": x + 0.75, "y": y, "width": max(0.5, width - 1.5), "height": max(0.0, base - y)}
            bars.append(element("rect", element("title", hover), **shape, class_="column"))
    return join(bars)


def _outline(one: Bars, edges: Sequence[float], frame: PlotFrame) -> Html:
    """Steps with a light fill, so that several histograms can lie over each other."""
    base = frame.y.start
    tops = [frame.y(height) if height > 0 else base for height in one.heights]
    steps = "".join(f"V{top:.1f}H{frame.x(right):.1f}" for top, right in zip(tops, edges[1:], strict=True))
    path = f"M{frame.x(edges[0]):.1f} {base:.1f}{steps}V{base:.1f}"
    shapes = [element("path", d=path, class_=f"{kind} {colour_class(one.colour)}") for kind in ("band", "line step")]
    hits = [
        element(
            "rect",
            element("title", hover),
            x=frame.x(left),
            y=top,
            width=frame.x(right) - frame.x(left),
            height=base - top,
            class_="hit",
        )
        for left, right, top, hover in zip(edges[:-1], edges[1:], tops, one.hovers, strict=True)
        if top < base
    ]
    return join([*shapes, *hits])


def _hovers(series: Series, x: Axis, y: Axis, frame: PlotFrame) -> Html:
    """Invisible discs that show the numbers on hovering, and dots if there are few points."""
    stride = max(1, len(series.points) // 60)
    radius, kind = (2.2, "dot") if len(series.points) <= 40 and series.kind not in ("dashed", "thin") else (0, "")
    parts = []
    for px, py in series.points[::stride]:
        if not frame.y.low <= py <= frame.y.high:
            continue
        where = {"cx": frame.x(px), "cy": frame.y(py)}
        text = f"{series.label}: {y.form(py)} at {x.label.lower()} {x.form(px)}"
        if radius:
            parts.append(element("circle", **where, r=radius, class_=f"{kind} {colour_class(series.colour)}"))
        parts.append(element("circle", element("title", text), **where, r=7.0, class_="hit"))
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
    """The last value of a line, as a label."""
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
    circle = element("circle", title, cx=at, cy=height, r=_radius(mark.area), class_=f"{kind} {colour}")
    return join([whisker, circle])


def _radius(area: float) -> float:
    return max(4.0, 15 * math.sqrt(area)) if area else 2.2
