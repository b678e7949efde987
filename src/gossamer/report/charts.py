"""Charts as inline SVG, coloured by the custom properties of the page: line, histogram, bars, scatter."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from gossamer.report.axes import HEIGHT, LETTER, WIDTH, Axis, Frame, colour_class, make_frame, shorten, spread
from gossamer.report.markup import Html, element, join

Point = tuple[float, float]
_MOST_POINTS = 240
MOST_NAMED = 8
"""At most so many series are named in a chart; more names would hide it."""


class Words(NamedTuple):
    """Names of a chart: ``slug`` in the page, ``title`` and ``description`` for screen readers."""

    slug: str
    title: str
    description: str


class Series(NamedTuple):
    """A line; series with the same label are drawn in the same colour and labelled once."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    kind: str = "line"  # or "faint", "area"; without a name: "reference", and "ticks" at the foot of the chart


class BarRow(NamedTuple):
    """A row of a bar chart: ``share`` of the longest bar, a text at its end, and one to show on hovering."""

    label: str
    share: float
    text: str
    hover: str


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


def line(series: Sequence[Series], x: Axis, y: Axis, words: Words, direct: bool = True) -> Html:
    """Lines over a common axis; several are named at their ends (``direct``) or in a legend below."""
    series = [one._replace(points=thin(one.points)) for one in series]
    told = [one for one in series if one.kind not in ("reference", "ticks")]
    named = list({one.label: one for one in reversed(told)}.values())[::-1]
    direct = direct and 1 < len(named) <= MOST_NAMED
    right = 26.0 + LETTER * max((len(shorten(one.label)) for one in named), default=0) if direct else 22.0
    if len(named) == 1:
        right = 16 + LETTER * len(y.form(named[0].points[-1][1]))
    every = [point for one in series for point in one.points]
    frame = make_frame(x, y, [px for px, _ in every], [py for _, py in every], right)
    drawn = [_line(one, frame) for one in sorted(series, key=lambda one: one.kind != "reference")]
    hovers = [_hovers(one, x, y, frame) for one in told]
    labels = _end_labels(named, frame) if direct else _last_value(named, y, frame)
    lines = _clipped(join(drawn), frame, f"{words.slug}-clip")
    svg = _chart(words, join([frame.drawing, lines, *hovers, labels]))
    if direct or not 1 < len(named) <= MOST_NAMED:
        return svg
    items = [element("li", element("i", class_=colour_class(one.colour)), one.label) for one in named]
    return join([svg, element("ul", *items, class_="legend")])


def histogram(
    edges: Sequence[float],
    heights: Sequence[float],
    axes: tuple[Axis, Axis],
    words: Words,
    hovers: Sequence[str],
    over: Callable[[Frame], Html | None] | None = None,
) -> Html:
    """Columns between ``edges``; ``over`` draws on top of them."""
    frame = make_frame(*axes, edges, [0.0, *heights])
    base = frame.y(0)
    columns = []
    for left, right, height, hover in zip(edges[:-1], edges[1:], heights, hovers, strict=True):
        if height > 0:
            x, y, width = frame.x(left), frame.y(height), frame.x(right) - frame.x(left)
            shape = {"x": x + 0.75, "y": y, "width": max(0.5, width - 1.5), "height": max(0.0, base - y)}
            columns.append(element("rect", element("title", hover), **shape, class_="column"))
    top = over(frame) if over else None
    return _chart(words, join([frame.drawing, *columns, top]))


def bars(rows: Sequence[BarRow], words: Words) -> Html:
    """One horizontal bar per row, its name at the left and its text at the right."""
    pitch = min(33.0, max(18.0, 560 / len(rows))) if len(rows) > 10 else 24.0
    left = 12 + LETTER * max(len(shorten(row.label, 20)) for row in rows)
    right = WIDTH - 8 - LETTER * max(len(row.text) for row in rows)
    drawn = []
    for place, row in enumerate(rows):
        middle, title = pitch * (place + 0.5) + 4, element("title", row.hover)
        shape: dict[str, float] = {"x": left, "y": middle - 4, "height": 8.0, "rx": 2.0}
        drawn += [
            element("text", shorten(row.label, 20), x=left - 10, y=middle + 4, class_="tick end"),
            element("rect", **shape, width=right - left, class_="track"),
            element("rect", **shape, width=max(1.0, row.share * (right - left)), class_="column"),
            element("text", row.text, x=WIDTH, y=middle + 4, class_="tick end"),
            element("rect", title, x=0.0, y=middle - pitch / 2, width=WIDTH, height=pitch, class_="hit"),
        ]
    return _chart(words, join(drawn), pitch * len(rows) + 8)


def scatter(marks: Sequence[Mark], x: Axis, y: Axis, words: Words) -> Html:
    """Points with areas, error bars and names; small dots without names."""
    ys = [mark.y + sign * mark.error for mark in marks for sign in (-1, 1)]
    frame = make_frame(x, y, [mark.x for mark in marks], ys)
    drawn = [_mark(mark, frame) for mark in sorted(marks, key=lambda mark: -mark.area)]
    large = [mark for mark in marks if mark.area]
    heights = spread([frame.y(mark.y) for mark in large], 15, HEIGHT - 50)
    labels = []
    for mark, height in zip(large, heights, strict=True):
        at, radius = frame.x(mark.x), _radius(mark.area)
        before = at + radius + 8 + LETTER * len(shorten(mark.label)) > WIDTH
        place, kind = (at - radius - 6, "label end") if before else (at + radius + 6, "label")
        labels.append(element("text", shorten(mark.label), x=place, y=height + 4, class_=kind))
    return _chart(words, join([frame.drawing, *drawn, *labels]))


def _chart(words: Words, drawing: Html, height: float = HEIGHT) -> Html:
    """The SVG element, with a title and a description for screen readers."""
    title, description = f"{words.slug}-title", f"{words.slug}-description"
    told = [element("title", words.title, id=title), element("desc", words.description, id=description)]
    box, named = f"0 0 {WIDTH:g} {height:g}", f"{title} {description}"
    return element("svg", *told, drawing, viewBox=box, class_="chart", role="img", aria_labelledby=named)


def _line(series: Series, frame: Frame) -> Html:
    if series.kind == "ticks":
        ticks = "".join(f"M{frame.x(px):.1f} {frame.y.start:.1f}v-9" for px, _ in series.points)
        return element("path", element("title", series.label), d=ticks, class_="whisker c2")
    corners = [f"{frame.x(px):.1f} {frame.y(py):.1f}" for px, py in series.points]
    path = "M" + "L".join(corners)
    drawn = element("path", d=path, class_=f"line {series.kind} {colour_class(series.colour)}")
    if series.kind != "area":
        return drawn
    base = frame.y.start
    under = f"{path}L{frame.x(series.points[-1][0]):.1f} {base:.1f}L{frame.x(series.points[0][0]):.1f} {base:.1f}Z"
    return join([element("path", d=under, class_=f"under {colour_class(series.colour)}"), drawn])


def _hovers(series: Series, x: Axis, y: Axis, frame: Frame) -> Html:
    """Invisible discs that show the numbers on hovering, and dots if there are few points."""
    stride = max(1, len(series.points) // 60)
    radius, kind = (2.2, "dot") if len(series.points) <= 40 and series.kind != "faint" else (0, "")
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


def _end_labels(named: Sequence[Series], frame: Frame) -> Html:
    ends = [one.points[-1] for one in named]
    heights = spread([frame.y(py) for _, py in ends], 15, HEIGHT - 42)
    drawn = []
    for one, (px, py), height in zip(named, ends, heights, strict=True):
        at = frame.x.end + 14
        path, colour = f"M{frame.x(px):.1f} {frame.y(py):.1f}L{at - 3:.1f} {height:.1f}", colour_class(one.colour)
        drawn.append(element("path", d=path, class_=f"leader {colour}"))
        drawn.append(element("text", shorten(one.label), x=at, y=height + 4, class_=f"label {colour}"))
    return join(drawn)


def _last_value(named: Sequence[Series], y: Axis, frame: Frame) -> Html | None:
    """The last value of a single line, as a label."""
    if len(named) != 1:
        return None
    px, py = named[0].points[-1]
    dot = element("circle", cx=frame.x(px), cy=frame.y(py), r=3.5, class_=f"dot {colour_class(named[0].colour)}")
    return join([dot, element("text", y.form(py), x=frame.x(px) + 9, y=frame.y(py) + 4, class_="label")])


def _clipped(drawing: Html, frame: Frame, name: str) -> Html:
    """The drawing clipped to the axes, with a margin for the width of a line."""
    x, y = frame.x, frame.y
    box = element("rect", x=x.start - 2, y=y.end - 2, width=x.end - x.start + 4, height=y.start - y.end + 3)
    return join([element("clipPath", box, id=name), element("g", drawing, clip_path=f"url(#{name})")])


def _mark(mark: Mark, frame: Frame) -> Html:
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
