"""Charts as inline SVG, coloured by the page: lines, histograms and points, a scatter, dots in rows, a matrix."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from gossamer._text.formats import integer, percent
from gossamer.lab.report.parts import (
    LETTER,
    WIDTH,
    Axis,
    Chart,
    Html,
    PlotFrame,
    Point,
    Scale,
    colour_class,
    element,
    join,
    limits,
    make_frame,
    shorten,
    tick_labels,
)

Box = tuple[float, float, float, float]
"""Left, upper, right and lower edge."""

_MOST_POINTS = 240
_MOST_LETTERS = 20  # of a row
_CLASS_LETTERS = 12  # of a class
_ORDER = {"points": 0, "reference": 1}  # what is drawn first, and without numbers on hovering; then the lines


class Series(NamedTuple):
    """A line, or points, or a histogram; series with the same label have the same colour and are named once."""

    label: str
    points: Sequence[Point]
    colour: int = 0
    kind: str = "line"  # or "dashed", "thin", "points", "steps" up to the next point; without a name: "reference"
    band: Sequence[tuple[float, float, float]] = ()  # x, low, high: of points, an interval each


def histogram(label: str, edges: Sequence[float], heights: Sequence[float], colour: int = 0) -> Series:
    """A height between each edge and the next."""
    return Series(label, list(zip(edges, [*heights, heights[-1]], strict=True)), colour, "steps")


DIAGONAL = Series("", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
"""Where a calibrated model is."""


class Mark(NamedTuple):
    """A point of a scatter; one without a label is a small dot."""

    x: float
    y: float
    label: str
    hover: str
    colour: int = 0
    error: float = 0.0


class DotRow(NamedTuple):
    """A value with a range around it, and small dots."""

    label: str
    value: float
    low: float
    high: float
    hover: str
    colour: int = 0
    specks: Sequence[float] = ()


def thin(rows: Sequence[Any], most: int = _MOST_POINTS) -> list[Any]:
    """At most about ``most`` rows of numbers: neighbours are averaged, the first and the last are kept."""
    if len(rows) <= most:
        return list(rows)
    width = math.ceil((len(rows) - 2) / max(1, most - 2))
    groups = [rows[start : min(start + width, len(rows) - 1)] for start in range(1, len(rows) - 1, width)]
    return [rows[0], *(tuple(map(fmean, zip(*group, strict=True))) for group in groups), rows[-1]]


def line(series: Sequence[Series], x: Axis, y: Axis) -> Chart:
    """Series over common axes; several are named in a legend."""
    series = [
        one if one.kind in ("points", "steps") else one._replace(points=thin(one.points), band=thin(one.band))
        for one in series
    ]
    if y.log:  # a band may reach below zero, where nothing can be drawn
        least = min(py for one in series for _, py in one.points)
        series = [one._replace(band=[(px, max(low, least), high) for px, low, high in one.band]) for one in series]
    every = [point for one in series for point in one.points]
    ends = [height for one in series for _, low, high in one.band for height in (low, high)]
    frame = make_frame(x, y, [px for px, _ in every], [py for _, py in every] + ends)
    drawn = [_band(one, frame) for one in series if one.band]
    drawn += [_line(one, frame) for one in sorted(series, key=lambda one: _ORDER.get(one.kind, 2))]
    hovers = [_hovers(one, x, y, frame) for one in series if one.kind not in _ORDER]
    names = list({one.label: one.colour for one in series if one.label}.items())
    return Chart(join([frame.drawing, _clipped(join(drawn), frame), *hovers]), names if len(names) > 1 else ())


def scatter(
    marks: Sequence[Mark], x: Axis, y: Axis, steps: Sequence[Point] = (), names: Sequence[tuple[str, int]] = ()
) -> Chart:
    """Points with names and error bars, and small dots; ``steps`` are joined by a stair.

    ``names`` of colours stand in a legend.
    """
    ys = [mark.y + sign * mark.error for mark in marks for sign in (-1, 1)]
    frame = make_frame(x, y, [mark.x for mark in marks], ys)
    named = [mark for mark in marks if mark.label]
    drawn = [_mark(mark, frame) for mark in [*named, *(mark for mark in marks if not mark.label)]]
    labels = _names(named, frame, steps)
    return Chart(join([frame.drawing, _stair(steps, frame), *drawn, *labels]), names)


def dots(rows: Sequence[DotRow], x: Axis) -> Chart:
    """One row per thing on a common axis, its name at the left."""
    pitch = 26.0 if len(rows) <= 20 else 18.0
    left = 12 + LETTER * max(len(shorten(row.label, _MOST_LETTERS)) for row in rows)
    bottom = pitch * len(rows) + 10
    low, high, ticks = limits(x, [number for row in rows for number in (row.low, row.high, *row.specks)], 5)
    scale = Scale(low, high, left, WIDTH - 22, x.log)
    drawn = []
    for tick, text in zip(ticks, tick_labels(ticks, x.form), strict=True):
        drawn.append(element("line", x1=scale(tick), x2=scale(tick), y1=4.0, y2=bottom, class_="grid"))
        drawn.append(element("text", text, x=scale(tick), y=bottom + 16, class_="tick middle"))
    for place, row in enumerate(rows):
        middle, colour = pitch * (place + 0.5) + 4, colour_class(row.colour)
        range_ = f"M{scale(row.low):.1f} {middle:.1f}H{scale(row.high):.1f}"
        circles = [*((value, 2.2, "speck") for value in row.specks), (row.value, 4.2, "dot")]
        drawn += [
            element("text", shorten(row.label, _MOST_LETTERS), x=0.0, y=middle + 4, class_="tick"),
            element("path", d=range_, class_=f"whisker {colour}"),
            *(element("circle", cx=scale(at), cy=middle, r=r, class_=f"{kind} {colour}") for at, r, kind in circles),
            element("rect", element("title", row.hover), y=middle - pitch / 2, width=WIDTH, height=pitch, class_="hit"),
        ]
    drawn.append(element("text", x.name, x=WIDTH - 22, y=bottom + 34, class_="name end"))
    return Chart(join(drawn), height=bottom + 40)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Chart:
    """Labels in rows, predictions in columns; each row ends with the accuracy of its class."""
    short = [shorten(name, _CLASS_LETTERS) for name in names]
    longest = max(map(len, short))
    turned = longest > 3
    left, top = 14 + LETTER * longest, 38 + (LETTER * longest * 0.75 if turned else 4.0)
    side = (WIDTH - left - 62) / len(names)
    high = min(side, 30.0)
    drawn = [
        element("text", "Predicted", x=left, y=12.0, class_="name"),
        element("text", "Accuracy", x=WIDTH, y=12.0, class_="name end"),
    ]
    for place, (row, name) in enumerate(zip(counts, short, strict=True)):
        middle, across, total = top + high * (place + 0.5), left + side * (place + 0.5), sum(row)
        turn = f"rotate(-45 {across:.1f} {top - 8:.1f})" if turned else None
        drawn += [
            element("text", name, x=left - 8, y=middle + 4, class_="tick end"),
            element("text", name, x=across, y=top - 8, class_="tick" if turned else "tick middle", transform=turn),
            element("text", percent(row[place] / total) if total else "–", x=WIDTH, y=middle + 4, class_="tick end"),
        ]
        for column, count in enumerate(row):
            box = (left + side * column, top + high * place, side, high)
            hover = f"{names[place]} taken for {names[column]}: {integer(count)} of {integer(total)}"
            drawn += [_cell(count, count / total, place == column, box, hover)] if count else []
    return Chart(join(drawn), height=top + high * len(names) + 6)


def _clipped(drawing: Html, frame: PlotFrame) -> Html:
    """The drawing clipped to the axes, with a margin for the width of a line: an inner drawing shows what is in it."""
    left, top = frame.x.start - 2, frame.y.end - 2
    width, height = frame.x.end - left + 2, frame.y.start - top + 1
    box = f"{left:.2f} {top:.2f} {width:.2f} {height:.2f}"
    return element("svg", drawing, x=left, y=top, width=width, height=height, viewBox=box, class_="inside")


def _path_of(points: Sequence[Point], frame: PlotFrame) -> str:
    """A polyline as the ``d`` of a path."""
    return "M" + "L".join(f"{frame.x(px):.1f} {frame.y(py):.1f}" for px, py in points)


def _stair(steps: Sequence[Point], frame: PlotFrame) -> Html | None:
    """Level to the next point, then down to it: what the points so far reach at each place of the axis."""
    if not steps:
        return None
    start, *rest = [(frame.x(px), frame.y(py)) for px, py in steps]
    path = f"M{start[0]:.1f} {start[1]:.1f}" + "".join(f"H{px:.1f}V{py:.1f}" for px, py in rest) + f"H{frame.x.end:.1f}"
    return element("path", d=path, class_="line reference")


def _names(marks: Sequence[Mark], frame: PlotFrame, steps: Sequence[Point]) -> list[Html]:
    """The names of points, each where it meets the fewest of the points, the stair and the names before it."""
    corners = [(frame.x(px), frame.y(py)) for px, py in steps]
    ends = [*corners[1:], (frame.x.end, corners[-1][1])] if corners else []
    taken = [(frame.x(mark.x) - 7, frame.y(mark.y) - 7, frame.x(mark.x) + 7, frame.y(mark.y) + 7) for mark in marks]
    for (left, high), (right, low) in zip(corners, ends, strict=True):  # level, then down
        taken += [(left, high, right, high), (right, high, right, low)]
    names = []
    for mark in marks:
        text, x, y = shorten(mark.label), frame.x(mark.x), frame.y(mark.y)
        width = LETTER * len(text)
        places = [(x + 11, y), (x - 11 - width, y)]
        places += [(x + across, y + down) for down in (-15, 16, -30, 31) for across in (4, -4 - width, -width / 2)]
        boxes = [(left, middle - 7, left + width, middle + 6) for left, middle in places]
        inside = [box for box in boxes if box[0] > frame.x.start and box[2] < WIDTH and box[3] < frame.y.start]
        best = min(inside or boxes, key=lambda box: sum(_meet(box, other) for other in taken))
        taken.append(best)
        names.append(element("text", text, x=best[0], y=best[1] + 11, class_="label"))
    return names


def _meet(one: Box, other: Box) -> bool:
    return one[0] <= other[2] and other[0] <= one[2] and one[1] <= other[3] and other[1] <= one[3]


def _band(series: Series, frame: PlotFrame) -> Html:
    colour = colour_class(series.colour)
    if series.kind == "points":
        strokes = (f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}" for x, low, high in series.band)
        return element("path", d="".join(strokes), class_=f"strokes {colour}")
    corners = [(x, high) for x, _, high in series.band] + [(x, low) for x, low, _ in reversed(series.band)]
    return element("path", d=_path_of(corners, frame) + "Z", class_=f"band {colour}")


def _line(series: Series, frame: PlotFrame) -> Html:
    colour = colour_class(series.colour)
    if series.kind == "points":
        specks = "".join(f"M{frame.x(px):.1f} {frame.y(py):.1f}h0" for px, py in series.points)
        return element("path", d=specks, class_=f"specks {colour}")
    if series.kind == "steps":  # with a light fill, so that several histograms can lie over each other
        start, base = frame.x(series.points[0][0]), frame.y.start
        steps = "".join(f"H{frame.x(px):.1f}V{frame.y(py):.1f}" for px, py in series.points)
        path = f"M{start:.1f} {base:.1f}{steps}V{base:.1f}"
        return join([element("path", d=path, class_=f"{kind} {colour}") for kind in ("band", "line steps")])
    return element("path", d=_path_of(series.points, frame), class_=f"line {series.kind} {colour}")


def _hovers(series: Series, x: Axis, y: Axis, frame: PlotFrame) -> Html:
    """Invisible discs that show the numbers on hovering, and dots if there are few points."""
    stride, parts = max(1, len(series.points) // 60), []
    has_dots = len(series.points) <= 40 and series.kind == "line"
    for px, py in series.points[::stride]:
        if not frame.y.low <= py <= frame.y.high:
            continue
        centre = {"cx": frame.x(px), "cy": frame.y(py)}
        text = f"{series.label}: {y.form(py)} at {x.label.lower()} {x.form(px)}"
        if has_dots:
            parts.append(element("circle", **centre, r=2.2, class_=f"dot {colour_class(series.colour)}"))
        parts.append(element("circle", element("title", text), **centre, r=7.0, class_="hit"))
    return join(parts)


def _mark(mark: Mark, frame: PlotFrame) -> Html:
    at, height, colour = frame.x(mark.x), frame.y(mark.y), colour_class(mark.colour)
    whisker = None
    if mark.error:
        low, high = frame.y(mark.y - mark.error), frame.y(mark.y + mark.error)
        whisker = element("path", d=f"M{at:.1f} {low:.1f}V{high:.1f}", class_=f"whisker {colour}")
    kind, radius, title = "point" if mark.label else "speck", 4.5 if mark.label else 2.2, element("title", mark.hover)
    return join([whisker, element("circle", title, cx=at, cy=height, r=radius, class_=f"{kind} {colour}")])


def _cell(count: int, share: float, is_right: bool, box: tuple[float, float, float, float], hover: str) -> Html:
    x, y, width, height = box
    shade, kind = f"fill-opacity:{0.08 + 0.5 * share**0.5:.2f}", "cell c1" if is_right else "cell c2"
    shape = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1, "rx": 2.0}
    drawn = element("rect", element("title", hover), **shape, style=shade, class_=kind)
    fits = LETTER * len(str(count)) <= width + 4 and height >= 15
    text = element("text", str(count), x=x + width / 2, y=y + height / 2 + 4, class_="count middle") if fits else None
    return join([drawn, text])
