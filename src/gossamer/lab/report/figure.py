"""A figure of the page: a chart under its title, with its words and its downloads."""

from __future__ import annotations

from typing import NamedTuple

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.charts import Bars, Chart
from gossamer.lab.report.markup import Html, element
from gossamer.lab.report.runs import LoadedRun


class Figure(NamedTuple):
    """A chart under its title, with a sentence that says what to look for."""

    slug: str
    title: str
    caption: str
    chart: Chart
    shape: str = (
        ""  # "rows": a chart of rows, right below its words; as wide as the page: "wide", or "hero" beside them
    )
    aside: Html | None = None

    def html(self) -> Html:
        """The element of the page; its buttons appear where there is a script to serve them."""
        words = element("p", self.caption) if self.caption else None
        head = element("figcaption", element("h3", self.title), words, self.aside)
        save = element(
            "div",
            *(element("button", kind.upper(), type="button", data_save=kind, title=f"Save {what}")
              for kind, what in (("svg", "the figure as SVG"), ("csv", "its numbers as CSV"))),
            class_="save",
            data_csv=self.chart.to_csv(),
            hidden=True,
        )  # fmt: skip
        plot = element("div", self.chart.html, class_="plot")
        return element("figure", head, save, plot, id=f"figure-{self.slug}", class_=f"figure {self.shape}".strip())


def shares(run: LoadedRun, name: str) -> tuple[list[float], Bars] | None:
    """Edges of a histogram, and the share of the values in each column."""
    found = run.curve(name, "edges", "count")
    total = sum(c for c in found[1] if c > 0) if found else 0
    if found is None or not total:
        return None
    edges, counts = found
    heights = [c / total if c > 0 else 0.0 for c in counts]
    bins = zip(edges[:-1], edges[1:], counts, heights, strict=True)
    hovers = [f"{number(a)} to {number(b)}: {integer(c)}, {percent(h)}" for a, b, c, h in bins]
    return edges, Bars("", heights, hovers)
