"""Charts of named rows, with bars or with values and ranges, points with intervals, a matrix of counts."""

from collections.abc import Sequence
from typing import NamedTuple

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.charts import Series, clipped, hit, path_of
from gossamer.lab.report.parts import (
    LETTER,
    WIDTH,
    Axis,
    Cell,
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

_NAME = 12  # letters of a class


class Cloud(NamedTuple):
    """Points with, perhaps, a vertical interval each."""

    points: Sequence[Point]
    intervals: Sequence[tuple[float, float]] = ()
    colour: int = 0


def cloud(cloud: Cloud, lines: Sequence[Series], x: Axis, y: Axis) -> Chart:
    """Many points, with lines over them."""
    xs = [px for px, _ in cloud.points] + [px for one in lines for px, _ in one.points if one.kind != "reference"]
    ys = [py for _, py in cloud.points] + [end for both in cloud.intervals for end in both]
    frame = make_frame(x, y, xs, ys)
    strokes = "".join(
        f"M{frame.x(px):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
        for (px, _), (low, high) in zip(cloud.points, cloud.intervals, strict=bool(cloud.intervals))
    )
    drawn = [
        element("path", d=strokes, class_=f"strokes {colour_class(cloud.colour)}") if strokes else None,
        _specks(cloud, frame),
        *(_over(one, frame) for one in lines),
    ]
    ends: Sequence[tuple[float, ...]] = cloud.intervals or [()] * len(cloud.points)
    rows = [(*point, *both) for point, both in zip(cloud.points, ends, strict=True)]
    columns = (x.label, y.label, *(["low", "high"] if cloud.intervals else []))
    names = [(one.label, one.colour) for one in lines if one.label]
    return Chart(join([frame.drawing, clipped(join(drawn), frame)]), columns, rows, names)


def matrix(counts: Sequence[Sequence[int]], names: Sequence[str]) -> Chart:
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
    rows: list[tuple[Cell, ...]] = [(name, *row) for name, row in zip(names, counts, strict=True)]
    return Chart(join(drawn), ("label \\ predicted", *names), rows, height=top + high * len(names) + 6)


def _specks(cloud: Cloud, frame: PlotFrame) -> Html:
    path = "".join(f"M{frame.x(px):.1f} {frame.y(py):.1f}h0" for px, py in cloud.points)
    return element("path", d=path, class_=f"specks {colour_class(cloud.colour)}")


def _over(one: Series, frame: PlotFrame) -> Html:
    hover = f"{one.label}, from {number(frame.x.low)} to {number(frame.x.high)}" if one.label else ""
    kind = "line" if one.kind == "line" else f"line {one.kind}"
    title = element("title", hover) if hover else None
    return element("path", title, d=path_of(one.points, frame), class_=f"{kind} {colour_class(one.colour)}")


def _cell(count: int, share: float, is_right: bool, box: tuple[float, float, float, float], hover: str) -> Html:
    x, y, width, height = box
    shade, kind = f"fill-opacity:{0.08 + 0.5 * share**0.5:.2f}", "cell c1" if is_right else "cell c2"
    shape = {"x": x + 0.5, "y": y + 0.5, "width": width - 1, "height": height - 1, "rx": 2.0}
    drawn = element("rect", element("title", hover), **shape, style=shade, class_=kind)
    fits = LETTER * len(str(count)) <= width + 4 and height >= 15
    text = element("text", str(count), x=x + width / 2, y=y + height / 2 + 4, class_="count middle") if fits else None
    return join([drawn, text])


_MOST_LETTERS = 20


class BarRow(NamedTuple):
    """A row of a bar chart: ``share`` of the longest bar, a text at its end, and one to show on hovering."""

    label: str
    share: float
    text: str
    hover: str


class DotRow(NamedTuple):
    """A value with a range around it, perhaps an inner range, and small dots."""

    label: str
    value: float
    low: float
    high: float
    hover: str
    colour: int = 0
    inner: tuple[float, float] | None = None
    specks: Sequence[float] = ()

    @property
    def every(self) -> list[float]:
        """All numbers that are drawn."""
        return [self.value, self.low, self.high, *(self.inner or ()), *self.specks]


def bars(rows: Sequence[BarRow], columns: tuple[str, str]) -> Chart:
    """One horizontal bar per row, its name at the left and its text at the right."""
    pitch, left = _pitch(len(rows)), _room(rows)
    right = WIDTH - 8 - LETTER * max(len(row.text) for row in rows)
    drawn = []
    for place, row in enumerate(rows):
        middle = pitch * (place + 0.5) + 4
        shape: dict[str, float] = {"x": left, "y": middle - 4, "height": 8.0, "rx": 2.0}
        drawn += [
            element("text", shorten(row.label, _MOST_LETTERS), x=left - 10, y=middle + 4, class_="tick end"),
            element("rect", **shape, width=right - left, class_="track"),
            element("rect", **shape, width=max(1.0, row.share * (right - left)), class_="column"),
            element("text", row.text, x=WIDTH, y=middle + 4, class_="tick end"),
            hit(row.hover, 0.0, middle - pitch / 2, WIDTH, pitch),
        ]
    return Chart(join(drawn), columns, [(row.label, row.share) for row in rows], height=pitch * len(rows) + 8)


def dots(rows: Sequence[DotRow], x: Axis, columns: Sequence[str]) -> Chart:
    """One row per thing on a common axis; ``columns`` names label, value, low and high."""
    pitch, left = _pitch(len(rows)), _room(rows)
    bottom = pitch * len(rows) + 10
    low, high, ticks = limits(x, [number for row in rows for number in row.every], 5)
    scale = Scale(low, high, left, WIDTH - 22, x.log)
    drawn = []
    for tick, text in zip(ticks, tick_labels(ticks, x.form), strict=True):
        drawn.append(element("line", x1=scale(tick), x2=scale(tick), y1=4.0, y2=bottom, class_="grid"))
        drawn.append(element("text", text, x=scale(tick), y=bottom + 16, class_="tick middle"))
    drawn += [_dot_row(row, pitch * (place + 0.5) + 4, pitch, scale) for place, row in enumerate(rows)]
    drawn.append(element("text", x.name, x=WIDTH - 22, y=bottom + 34, class_="name end"))
    data: list[tuple[Cell, ...]] = [(row.label, row.value, row.low, row.high, *row.specks) for row in rows]
    extra = max(len(one) for one in data) - len(columns)
    return Chart(join(drawn), (*columns, *(f"{x.label} {k + 1}" for k in range(extra))), data, height=bottom + 40)


def _dot_row(row: DotRow, middle: float, pitch: float, scale: Scale) -> Html:
    colour = colour_class(row.colour)

    def stroke(ends: tuple[float, float], kind: str) -> Html:
        across = f"M{scale(ends[0]):.1f} {middle:.1f}H{scale(ends[1]):.1f}"
        return element("path", d=across, class_=f"{kind} {colour}")

    def circle(value: float, radius: float, kind: str) -> Html:
        return element("circle", cx=scale(value), cy=middle, r=radius, class_=kind)

    return join(
        [
            element("text", shorten(row.label, _MOST_LETTERS), x=0.0, y=middle + 4, class_="tick"),
            stroke((row.low, row.high), "whisker"),
            stroke(row.inner, "thick") if row.inner else None,
            *(circle(value, 2.2, f"speck {colour}") for value in row.specks),
            circle(row.value, 4.2, f"dot {colour}"),
            hit(row.hover, 0.0, middle - pitch / 2, WIDTH, pitch),
        ]
    )


def _pitch(n: int) -> float:
    return min(33.0, max(18.0, 560 / n)) if n > 10 else 26.0


def _room(rows: Sequence[BarRow] | Sequence[DotRow]) -> float:
    return 12 + LETTER * max(len(shorten(row.label, _MOST_LETTERS)) for row in rows)
