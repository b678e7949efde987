"""Charts with one named row per thing: bars, and values with ranges on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.lab.report.axes import LETTER, WIDTH, Axis, Scale, colour_class, limits, shorten, tick_labels
from gossamer.lab.report.charts import Cell, Chart, Words, svg
from gossamer.lab.report.markup import Html, element, join

_MOST_LETTERS = 20


class BarRow(NamedTuple):
    """A row of a bar chart: ``share`` of the longest bar, a text at its end, and one to show on hovering."""

    label: str
    share: float
    text: str
    hover: str


class DotRow(NamedTuple):
    """A value with a range around it, perhaps an inner range, small dots, and a ring for another value."""

    label: str
    value: float
    low: float
    high: float
    hover: str
    colour: int = 0
    inner: tuple[float, float] | None = None
    specks: Sequence[float] = ()
    ring: float | None = None

    @property
    def every(self) -> list[float]:
        """All numbers that are drawn."""
        ring = [] if self.ring is None else [self.ring]
        return [self.value, self.low, self.high, *(self.inner or ()), *self.specks, *ring]


def bars(rows: Sequence[BarRow], words: Words, columns: tuple[str, str]) -> Chart:
    """One horizontal bar per row, its name at the left and its text at the right."""
    pitch = _pitch(len(rows))
    left = _room(rows)
    right = WIDTH - 8 - LETTER * max(len(row.text) for row in rows)
    drawn = []
    for place, row in enumerate(rows):
        middle, title = pitch * (place + 0.5) + 4, element("title", row.hover)
        shape: dict[str, float] = {"x": left, "y": middle - 4, "height": 8.0, "rx": 2.0}
        drawn += [
            element("text", shorten(row.label, _MOST_LETTERS), x=left - 10, y=middle + 4, class_="tick end"),
            element("rect", **shape, width=right - left, class_="track"),
            element("rect", **shape, width=max(1.0, row.share * (right - left)), class_="column"),
            element("text", row.text, x=WIDTH, y=middle + 4, class_="tick end"),
            element("rect", title, x=0.0, y=middle - pitch / 2, width=WIDTH, height=pitch, class_="hit"),
        ]
    data = [(row.label, row.share) for row in rows]
    return Chart(svg(words, join(drawn), height=pitch * len(rows) + 8), columns, data)


def dots(rows: Sequence[DotRow], x: Axis, words: Words, names: tuple[str, str, str, str]) -> Chart:
    """One row per thing on a common axis; ``names`` are those of label, value, low and high in the data."""
    pitch, left = _pitch(len(rows)), _room(rows)
    bottom = pitch * len(rows) + 10
    low, high, ticks = limits(x, [number for row in rows for number in row.every], 5)
    scale = Scale(low, high, left, WIDTH - 22, x.log)
    grid = [
        element("line", x1=scale(tick), x2=scale(tick), y1=4.0, y2=bottom, class_="grid")
        + element("text", text, x=scale(tick), y=bottom + 16, class_="tick middle")
        for tick, text in zip(ticks, tick_labels(ticks, x.form), strict=True)
    ]
    drawn = [_dot_row(row, pitch * (place + 0.5) + 4, pitch, scale) for place, row in enumerate(rows)]
    name = x.label + (", log scale" if x.log else "")
    label = element("text", name, x=WIDTH - 22, y=bottom + 34, class_="name end")
    data: list[tuple[Cell, ...]] = [
        (row.label, row.value, row.low, row.high, *([] if row.ring is None else [row.ring]), *row.specks)
        for row in rows
    ]
    extra = max(len(one) for one in data) - len(names)
    columns = (*names, *(f"{x.label} {k + 1}" for k in range(extra)))
    return Chart(svg(words, join([*map(Html, grid), *drawn, label]), height=bottom + 40), columns, data)


def _dot_row(row: DotRow, middle: float, pitch: float, scale: Scale) -> Html:
    colour = colour_class(row.colour)
    inner = None
    if row.inner:
        stroke = f"M{scale(row.inner[0]):.1f} {middle:.1f}H{scale(row.inner[1]):.1f}"
        inner = element("path", d=stroke, class_=f"thick {colour}")
    specks = [element("circle", cx=scale(one), cy=middle, r=2.2, class_=f"speck {colour}") for one in row.specks]
    ring = None
    if row.ring is not None:
        ring = element("circle", cx=scale(row.ring), cy=middle, r=4.2, class_="ring")
    return join(
        [
            element("text", shorten(row.label, _MOST_LETTERS), x=0.0, y=middle + 4, class_="tick"),
            element("path", d=f"M{scale(row.low):.1f} {middle:.1f}H{scale(row.high):.1f}", class_=f"whisker {colour}"),
            inner,
            *specks,
            element("circle", cx=scale(row.value), cy=middle, r=4.2, class_=f"dot {colour}"),
            ring,
            element(
                "rect",
                element("title", row.hover),
                x=0.0,
                y=middle - pitch / 2,
                width=WIDTH,
                height=pitch,
                class_="hit",
            ),
        ]
    )


def _pitch(n: int) -> float:
    return min(33.0, max(18.0, 560 / n)) if n > 10 else 26.0


def _room(rows: Sequence[BarRow] | Sequence[DotRow]) -> float:
    return 12 + LETTER * max(len(shorten(row.label, _MOST_LETTERS)) for row in rows)
