"""Parallel coordinates: an upright axis for each quantity, and a line for each row through its values.

The drawing is as wide as its place: positions across are shares of that width, heights and type are pixels. So words
are as large on a phone as on a screen; there the axes are nearer to each other, every second name is raised, and long
words are shortened (by the style sheet, which has ``raised``, ``short`` and ``long``). Many axes are moved sideways.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from gossamer.lab.report.axes import colour_class, shorten
from gossamer.lab.report.figure import Cell, Chart
from gossamer.lab.report.markup import Html, element, join

HEIGHT, TOP, BOTTOM = 320.0, 58.0, 310.0
LETTER = 7.0  # pixels to allow for a letter
WIDEST, NARROWEST = 900.0, 240.0  # pixels between the first axis and the last, on a screen and on a phone
NEAREST = 48.0  # pixels between any two
MOST = 20  # letters of any name


class Upright(NamedTuple):
    """An axis: its name, where from 0 to 1 a value is on it, and its ticks with their labels."""

    name: str
    place: Callable[[Any], float]
    ticks: Sequence[tuple[float, str]]
    are_words: bool = False  # many lines meet in each tick, whose label therefore stands above it


class Row(NamedTuple):
    """A line: a value for each axis, and what is told on hovering."""

    values: Sequence[Any]
    hover: str
    colour: int
    is_chosen: bool = False


def parallel(
    axes: Sequence[Upright], rows: Sequence[Row], columns: Sequence[str] = (), cells: Sequence[Sequence[Cell]] = ()
) -> Chart:
    """The chart; later rows lie over earlier ones. There must be two axes or more."""
    steps = len(axes) - 1
    apart = max(NARROWEST / steps, NEAREST)
    left, right = (14 + LETTER * max(len(shorten(text, MOST // 2)) for _, text in axes[k].ticks) for k in (0, -1))
    drawn = [_line(axes, row) for row in rows]
    drawn += [_upright(axis, place, steps, apart) for place, axis in enumerate(axes)]
    drawn += [_name(axis.name, place, steps, apart, (left, right)) for place, axis in enumerate(axes)]
    least = left + right + NEAREST * steps
    style = f"height:{HEIGHT:g}px;min-width:{least:.0f}px;padding:0 {right:.0f}px 0 {left:.0f}px"
    return Chart(join(drawn), columns, cells, style=style)


def _line(axes: Sequence[Upright], row: Row) -> Html:
    heights = [_height(axis.place(value)) for axis, value in zip(axes, row.values, strict=True)]
    steps = len(axes) - 1
    parts = [
        element("line", x1=_across(k, steps), x2=_across(k + 1, steps), y1=heights[k], y2=heights[k + 1])
        for k in range(steps)
    ]
    kind = f"row{' chosen' if row.is_chosen else ''} {colour_class(row.colour)}"
    return element("g", element("title", row.hover), *parts, class_=kind)


def _upright(axis: Upright, place: int, steps: int, apart: float) -> Html:
    """An axis with its ticks; outside of the first and the last there are no lines, but only so much margin."""
    x, is_outer = _across(place, steps), place in (0, steps)
    side, kind = (8.0, "label tick") if place == steps else (-8.0, "label tick end")
    most = fewest = MOST // 2
    if axis.are_words and not is_outer:
        most, fewest = (_letters(room - 16) for room in (WIDEST / steps, apart))
    parts = [element("line", x1=x, x2=x, y1=TOP, y2=BOTTOM, class_="axis")]
    for share, text in axis.ticks:
        y = _height(share) + (-6 if axis.are_words and not is_outer else 4)
        parts.append(element("circle", cx=x, cy=_height(share), r=2.0, class_="stop"))
        parts += _text(text, most, fewest, x=x, dx=side, y=y, class_=kind)
    return join(parts)


def _name(name: str, place: int, steps: int, apart: float, margins: tuple[float, float]) -> Html:
    """The name of an axis above it, moved inwards where it would leave the drawing."""
    most, fewest = (_letters(room - 14) for room in (WIDEST / steps, 2 * apart))
    half, shift = LETTER * len(shorten(name, min(most, fewest))) / 2, 0.0
    if place == 0:
        shift = max(0.0, half - margins[0])
    elif place == steps:
        shift = -max(0.0, half - margins[1])
    kind = "label middle raised" if place % 2 else "label middle"
    return join(_text(name, most, fewest, x=_across(place, steps), dx=shift, y=TOP - 24, class_=kind))


def _text(text: str, most: int, fewest: int, **attributes: str | float) -> list[Html]:
    """The text; if it is too long for a phone, also a shorter one for there."""
    full, short = shorten(text, most), shorten(text, min(most, fewest))
    if len(full) <= len(short) + 1:  # a letter less would not help
        return [element("text", full, **attributes)]
    kind = attributes.pop("class_")
    pairs = ((full, "long"), (short, "short"))
    return [element("text", one, **attributes, class_=f"{kind} {only}") for one, only in pairs]


def _letters(room: float) -> int:
    return min(MOST, int(room / LETTER))


def _across(place: int, steps: int) -> str:
    return f"{100 * place / steps:.5g}%"


def _height(share: float) -> float:
    return BOTTOM + (TOP - BOTTOM) * share
