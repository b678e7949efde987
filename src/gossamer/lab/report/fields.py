"""Charts of a plane: points with intervals, a matrix of counts, and a map with points on it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import NamedTuple

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.axes import LETTER, WIDTH, Axis, colour_class, make_frame, shorten
from gossamer.lab.report.charts import Cell, Chart, Point, Series, Words, clipped, path_of, svg
from gossamer.lab.report.images import png
from gossamer.lab.report.markup import Html, element, join

_HUE = (122, 79, 163)  # of maps, seen on white and on black
_NAME = 12  # letters of a class


class Cloud(NamedTuple):
    """Points with, perhaps, a vertical interval each."""

    points: Sequence[Point]
    intervals: Sequence[tuple[float, float]] = ()
    colour: int = 0


def cloud(cloud: Cloud, lines: Sequence[Series], x: Axis, y: Axis, words: Words) -> Chart:
    """Many points, with lines over them."""
    xs = [px for px, _ in cloud.points] + [px for one in lines for px, _ in one.points if one.kind != "reference"]
    ys = [py for _, py in cloud.points] + [end for both in cloud.intervals for end in both]
    frame = make_frame(x, y, xs, ys)
    strokes = "".join(
        f"M{frame.x(px):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        for (px, _), (low, high) in zip(cloud.points, cloud.intervals, strict=bool(cloud.intervals))
    )
    colour = colour_class(cloud.colour)
    dots = "".join(f"M{frame.x(px):.1f} {frame.y(py):.1f}h0" for px, py in cloud.points)
    drawn = [
        element("path", d=strokes, class_=f"strokes {colour}") if strokes else None,
        element("path", d=dots, class_=f"specks {colour}"),
        *(_over(one, frame.x.low, frame.x.high, path_of(one.points, frame)) for one in lines),
    ]
    ends: Sequence[tuple[float, ...]] = cloud.intervals or [()] * len(cloud.points)
    rows = [(*point, *both) for point, both in zip(cloud.points, ends, strict=True)]
    columns = (x.label, y.label, *(["low", "high"] if cloud.intervals else []))
    names = [(one.label, one.colour) for one in lines if one.label]
    inside = clipped(join(drawn), frame, f"{words.slug}-clip")
    return Chart(svg(words, join([frame.drawing, inside]), names), columns, rows)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str], words: Words) -> Chart:
    """Labels in rows, predictions in columns; each row ends with the accuracy of its class."""
    short = [shorten(name, _NAME) for name in names]
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
        middle, total = top + high * (place + 0.5), sum(row)
        across = left + side * (place + 0.5)
        turn = f"rotate(-45 {across:.1f} {top - 8:.1f})" if turned else None
        drawn += [
            element("text", name, x=left - 8, y=middle + 4, class_="tick end"),
            element("text", name, x=across, y=top - 8, class_="tick" if turned else "tick middle", transform=turn),
            element("text", percent(row[place] / total) if total else "–", x=WIDTH, y=middle + 4, class_="tick end"),
        ]
        for column, count in enumerate(row):
            place_of = left + side * column, top + high * place
            hover = f"{names[place]} taken for {names[column]}: {integer(count)} of {integer(total)}"
            if count:
                drawn.append(_cell(count, total, place == column, place_of, (side, high), hover))
    rows: list[tuple[Cell, ...]] = [(name, *row) for name, row in zip(names, counts, strict=True)]
    drawing = svg(words, join(drawn), height=top + high * len(names) + 6)
    return Chart(drawing, ("label \\ predicted", *names), rows)


def heat(
    values: Sequence[float], side: int, axes: tuple[Axis, Axis], clouds: Sequence[tuple[str, Cloud]], words: Words
) -> Chart:
    """Values on a square grid as a coloured map, strongest at the highest, with named points on it."""
    x, y = axes
    limits = [end for axis in axes for end in (axis.low, axis.high)]
    x_low, x_high, y_low, y_high = (float(end) for end in limits if end is not None)
    frame = make_frame(x, y, [x_low, x_high], [y_low, y_high])
    top = max(max(values), 1e-12)
    shades = [[[*_HUE, round(225 * max(0.0, value) / top)] for value in values[k * side : (k + 1) * side]]
              for k in range(side)]  # fmt: skip
    picture = element(
        "image",
        href="data:image/png;base64," + base64.b64encode(png(shades)).decode(),
        x=frame.x(x_low),
        y=frame.y(y_high),
        width=frame.x(x_high) - frame.x(x_low),
        height=frame.y(y_low) - frame.y(y_high),
        preserveAspectRatio="none",
    )
    dots = [
        element(
            "path",
            d="".join(f"M{frame.x(px):.1f} {frame.y(py):.1f}h0" for px, py in one.points),
            class_=f"specks {colour_class(one.colour)}",
        )
        for _, one in clouds
        if one.points
    ]
    step_x, step_y = ((b - a) / (side - 1) for a, b in ((x_low, x_high), (y_low, y_high)))
    rows = [(x_low + k % side * step_x, y_high - k // side * step_y, value) for k, value in enumerate(values)]
    names = [(label, one.colour) for label, one in clouds]
    inside = clipped(join([picture, *dots]), frame, f"{words.slug}-clip")
    return Chart(svg(words, join([inside, frame.drawing]), names), (x.label, y.label, words.title), rows)


def _over(one: Series, low: float, high: float, path: str) -> Html:
    kind = "line" if one.kind == "line" else f"line {one.kind}"
    hover = element("title", f"{one.label}, from {number(low)} to {number(high)}") if one.label else None
    return element("path", hover, d=path, class_=f"{kind} {colour_class(one.colour)}")


def _cell(
    count: int, total: int, is_right: bool, place: tuple[float, float], sides: tuple[float, float], hover: str
) -> Html:
    (x, y), (width, height) = place, sides
    shade = f"fill-opacity:{0.08 + 0.5 * (count / total) ** 0.5:.2f}"
    shape = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1, "rx": 2.0}
    box = element("rect", element("title", hover), **shape, style=shade, class_="cell c1" if is_right else "cell c2")
    fits = LETTER * len(str(count)) <= width + 4 and height >= 15
    text = element("text", str(count), x=x + width / 2, y=y + height / 2 + 4, class_="count middle") if fits else None
    return join([box, text])
