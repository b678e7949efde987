"""Charts with one named row per thing: bars, and values with ranges on a common axis."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer.lab.report.axes import LETTER, WIDTH, Axis, Scale, colour_class, limits, shorten, tick_labels
from gossamer.lab.report.charts import hit
from gossamer.lab.report.figure import Cell, Chart
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
        return [self.value, self.low, self.high, *(self.inner or ()), *self.specks, *self.rings]

    @property
    def rings(self) -> list[float]:
        """The ring's value, if there is one."""
        return [] if self.ring is None else [self.ring]


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
    """One row per thing on a common axis; ``columns`` names label, value, low, high and, if there is one, the ring."""
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
    data: list[tuple[Cell, ...]] = [(row.label, row.value, row.low, row.high, *row.rings, *row.specks) for row in rows]
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
            *(circle(value, 4.2, "ring") for value in row.rings),
            hit(row.hover, 0.0, middle - pitch / 2, WIDTH, pitch),
        ]
    )


def _pitch(n: int) -> float:
    return min(33.0, max(18.0, 560 / n)) if n > 10 else 26.0


def _room(rows: Sequence[BarRow] | Sequence[DotRow]) -> float:
    return 12 + LETTER * max(len(shorten(row.label, _MOST_LETTERS)) for row in rows)
