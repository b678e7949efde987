"""A figure of the page: a chart under its title, with its words, its legend and its downloads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from gossamer._text.tables import to_csv
from gossamer.lab.report.axes import HEIGHT, LETTER, WIDTH, colour_class, shorten
from gossamer.lab.report.markup import Html, element, join

Point = tuple[float, float]
Cell = str | float


class Chart(NamedTuple):
    """A drawing, the numbers in it as a table, and the names of its colours, which stand in a legend."""

    drawing: Html
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    names: Sequence[tuple[str, int]] = ()
    height: float = HEIGHT

    def to_csv(self) -> str:
        """The numbers as CSV, to six digits."""
        rows = ([f"{cell:.6g}" if isinstance(cell, float) else cell for cell in row] for row in self.rows)
        return to_csv([self.columns, *rows])


class Figure(NamedTuple):
    """A chart under its title, with a sentence that says what to look for."""

    slug: str
    title: str
    caption: str
    chart: Chart
    shape: str = ""  # "rows": right below its words; as wide as the page: "wide", or "hero" beside them
    aside: Html | None = None
    description: str = ""  # for screen readers; the caption unless given

    def html(self) -> Html:
        """The element of the page; its buttons appear where there is a script to serve them."""
        words = element("p", self.caption) if self.caption else None
        head = element("figcaption", element("h3", self.title), words, self.aside)
        kinds = (("svg", "the figure as SVG"), ("csv", "its numbers as CSV"))
        buttons = [element("button", kind.upper(), type="button", data_save=kind, title=f"Save {what}")
                   for kind, what in kinds]  # fmt: skip
        save = element("div", *buttons, class_="save", data_csv=self.chart.to_csv(), hidden=True)
        plot = element("div", self._svg(), class_="plot")
        return element("figure", head, save, plot, id=f"figure-{self.slug}", class_=f"figure {self.shape}".strip())

    def _svg(self) -> Html:
        """The drawing and its legend, with a title and a description for screen readers."""
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
