"""What charts are made of: HTML and SVG as nested calls, PNG files, axes with ticks at round numbers, figures."""

from __future__ import annotations

import html
import math
import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from gossamer._text.formats import Format, number, percent

WIDTH, HEIGHT = 440.0, 250.0
"""Units of a chart; the page scales them to its column, and on a phone to about 0.8 of a pixel each."""

LETTER = 7.4
"""Width to allow for a letter, in units: that of the type on a phone, where it is largest."""

_COLOURS = 6  # as many as the style sheet has


class Axis(NamedTuple):
    """An axis; limits that are not given come from the data, and a tight axis ends with the data, not with a tick."""

    label: str
    form: Format = number
    low: float | None = None
    high: float | None = None
    log: bool = False
    tight: bool = False

    @property
    def name(self) -> str:
        """Its label, and whether it is logarithmic."""
        return self.label + (", log scale" if self.log else "")


class Scale(NamedTuple):
    """Maps ``low`` … ``high`` to ``start`` … ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Where ``value`` is drawn; below a logarithmic scale at its start."""
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        share = ((math.log10(max(value, self.low)) if self.log else value) - low) / (high - low)
        return self.start + share * (self.end - self.start)


class PlotFrame(NamedTuple):
    """Two scales and the drawing of their axes."""

    x: Scale
    y: Scale
    drawing: Html


def nice_ticks(low: float, high: float, n: int = 5) -> list[float]:
    """About ``n`` round numbers that span ``low`` … ``high``: steps of 1, 2 or 5 times a power of ten."""
    if not high - low > 1e-300:  # nor can a smaller step be told from zero
        low, high = low - (abs(low) or 1) * 0.1, high + (abs(high) or 1) * 0.1
    power = 10.0 ** math.floor(math.log10((high - low) / n))
    step = next(s * power for s in (1, 2, 5, 10) if (high - low) / (s * power) <= n + 0.01)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(k * step, digits) for k in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten inside ``low`` … ``high``, 2 and 5 times these if they are few; round numbers in a short span."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors: Sequence[int] = (1, 2, 5) if math.log10(high / low) < 2.5 else (1,)
    ticks = [factor * 10.0**power for power in powers for factor in factors]
    inside = [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]
    if len(inside) < 3:
        return [tick for tick in nice_ticks(low, high, 4) if low <= tick <= high]
    return inside[:: max(1, math.ceil(len(inside) / 7))]


def tick_labels(ticks: Sequence[float], form: Format) -> list[str]:
    """The texts of ticks, with as few digits as distinguish them."""
    if form is percent and max(ticks) > 50 * min(ticks) > 0:  # a log scale: each with its own digits
        return [f"{number(100 * tick)}\u202f%" for tick in ticks]
    if form is percent:
        decimals = next((d for d in range(4) if all(abs(round(100 * t, d) - 100 * t) < 1e-6 for t in ticks)), 4)
        return [percent(tick, decimals) for tick in ticks]
    if form is number:
        choices = ([number(tick, digits) for tick in ticks] for digits in range(3, 8))
        return next((texts for texts in choices if len(set(texts)) == len(ticks)), [number(tick) for tick in ticks])
    return [form(tick) for tick in ticks]


def make_frame(x: Axis, y: Axis, xs: Sequence[float], ys: Sequence[float]) -> PlotFrame:
    """Scales for the data, and the drawing of grid lines, ticks and names."""
    y_low, y_high, y_ticks = limits(y, ys, 5)
    x_low, x_high, x_ticks = limits(x._replace(tight=True), xs, 5)
    y_labels = tick_labels(y_ticks, y.form)
    left, right, top, bottom = 10 + LETTER * max(map(len, y_labels)), WIDTH - 22, 30.0, HEIGHT - 42
    x_scale = Scale(x_low, x_high, left, right, x.log)
    y_scale = Scale(y_low, y_high, bottom, top, y.log)
    drawing = []
    for tick, label in zip(y_ticks, y_labels, strict=True):
        height = y_scale(tick)
        drawing.append(element("line", x1=left, x2=right, y1=height, y2=height, class_="grid"))
        drawing.append(element("text", label, x=left - 8, y=height + 4, class_="tick end"))
    drawing.append(element("line", x1=left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    for tick, label in zip(x_ticks, tick_labels(x_ticks, x.form), strict=True):
        at = x_scale(tick)
        drawing.append(element("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
        drawing.append(element("text", label, x=at, y=bottom + 18, class_="tick middle"))
    drawing.append(element("text", y.name, x=0.0, y=12.0, class_="name"))
    drawing.append(element("text", x.name, x=right, y=HEIGHT - 4, class_="name end"))
    return PlotFrame(x_scale, y_scale, join(drawing))


def colour_class(colour: int) -> str:
    """CSS classes for the colour of a series, and for dashes if there are more series than colours."""
    return f"c{colour % _COLOURS + 1}" + (f" dash{colour // _COLOURS % 3}" if colour >= _COLOURS else "")


def shorten(text: str, most: int = 18) -> str:
    """The text, a long one without its middle: names differ at their ends."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def limits(axis: Axis, values: Sequence[float], n: int) -> tuple[float, float, list[float]]:
    """Lowest and highest value shown, and about ``n`` ticks."""
    low = axis.low if axis.low is not None else min(values)
    high = axis.high if axis.high is not None else max(values)
    if axis.log:
        low, high = max(low, 1e-99), max(high, 1e-99)
        pad = max(1.15, (high / low) ** 0.08)
        low, high = (low / pad if axis.low is None else low), (high * pad if axis.high is None else high)
        return low, high, log_ticks(low, high)
    ticks = nice_ticks(low, high, n)
    if axis.tight and high > low:
        return low, high, [tick for tick in ticks if low - 1e-12 <= tick <= high + 1e-12]
    return min(ticks[0], low), max(ticks[-1], high), ticks


Point = tuple[float, float]


class Chart(NamedTuple):
    """A drawing, and the names of its colours, which stand in a legend."""

    drawing: Html
    names: Sequence[tuple[str, int]] = ()
    height: float = HEIGHT


class Figure(NamedTuple):
    """A chart under its title, with a sentence that says what to look for."""

    slug: str
    title: str
    caption: str
    chart: Chart
    shape: str = ""  # "rows": right below its words
    description: str = ""  # for screen readers; the caption unless given

    def html(self) -> Html:
        """The element of the page; its button appears where there is a script to serve it."""
        words = element("p", self.caption) if self.caption else None
        head = element("figcaption", element("h3", self.title), words)
        save = element("button", "SVG", type="button", title="Save the figure as SVG", class_="save", hidden=True)
        plot = element("div", self._svg(), class_="plot")
        return element("figure", head, save, plot, id=f"figure-{self.slug}", class_=f"figure {self.shape}".strip())

    def _svg(self) -> Html:
        chart, ids = self.chart, [f"{self.slug}-title", f"{self.slug}-description"]
        told = [
            element("title", self.title, id=ids[0]),
            element("desc", self.description or self.caption or self.title, id=ids[1]),
        ]
        legend, height = _legend(chart.names, chart.height)
        size = {"class_": "chart", "viewBox": f"0 0 {WIDTH:g} {height:g}"}
        return element("svg", *told, chart.drawing, legend, role="img", aria_labelledby=" ".join(ids), **size)


def _legend(names: Sequence[tuple[str, int]], height: float) -> tuple[Html | None, float]:
    """Coloured squares with names in rows below a chart, and the height of both."""
    at, top, parts = 0.0, height + 16, []
    for label, colour in names:
        width = 18 + LETTER * len(shorten(label, 30))
        if at and at + width > WIDTH:
            at, top = 0.0, top + 20
        swatch = f"swatch {colour_class(colour)}"
        parts.append(element("rect", x=at, y=top - 9, width=10.0, height=10.0, rx=2.0, class_=swatch))
        parts.append(element("text", shorten(label, 30), x=at + 16, y=top, class_="tick"))
        at += width + 14
    return (join(parts), top + 6) if names else (None, height)


_VOID = {"br", "img", "link", "meta"}
_KINDS = {1: 0, 3: 2, 4: 6}  # channels -> colour type of PNG


class Html(str):
    """Text that is markup, not to be escaped."""

    __slots__ = ()


def join(parts: Iterable[str | None], between: str = "") -> Html:
    """The parts in sequence, escaped unless they are markup."""
    return Html(between.join(part if isinstance(part, Html) else html.escape(part) for part in parts if part))


def element(tag: str, *children: str | None, **attributes: str | float | None) -> Html:
    """One element. ``class_`` becomes ``class``, ``data_value`` ``data-value``; ``None`` and ``False`` are left out."""
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_attribute(value)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{written}>" if tag in _VOID else f"<{tag}{written}>{join(children)}</{tag}>")


def _attribute(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value))


def png(image: list[Any]) -> bytes:
    """A PNG file of an image of bytes: height × width, or × 3 for colours, or × 4 with opacity."""
    pixels = np.asarray(image)
    channels = 1 if pixels.ndim == 2 else pixels.shape[-1]
    if pixels.ndim not in (2, 3) or not pixels.size or channels not in _KINDS:
        raise ValueError("an image has rows of the same length, and 1, 3 or 4 channels")
    height, width = pixels.shape[:2]
    # Each row starts with its filter type, 0: none.
    rows = b"".join(b"\x00" + row.tobytes() for row in np.clip(pixels, 0, 255).astype(np.uint8))
    header = struct.pack(">IIBBBBB", width, height, 8, _KINDS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
