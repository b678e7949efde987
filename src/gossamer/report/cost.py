"""Quality against cost, for a comparison."""

from __future__ import annotations

from collections.abc import Sequence

from gossamer.formats import count, macs
from gossamer.metrics import METRICS, Metric
from gossamer.report.axes import Axis, colour_class
from gossamer.report.charts import MOST_NAMED, Mark, Words, scatter
from gossamer.report.figure import Figure
from gossamer.report.markup import Html, element
from gossamer.report.runs import Group


def figures(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """Accuracy (or error) against training cost, as in figure 1 of the SSVI paper; areas are active weights."""
    key = "accuracy" if any(one.values("accuracy") for one in groups) else "rmse"
    metric = METRICS[key]
    drawn = [one for one in groups if one.mean(key) is not None and (one.mean("training_macs") or 0) > 0]
    if len(drawn) < 2:
        return []
    largest = max((one.mean("active_parameters") or 0) for one in drawn)
    marks = []
    for one in drawn:
        for run in one.runs if len(one.runs) > 1 else ():
            x, y = run.value("training_macs"), run.value(key)
            if x and y is not None:
                marks.append(Mark(x, y, "", f"{one.label}, {run.folder.name}: {metric.format(y)}", one.colour))
        marks.append(_mark(one, metric, largest))
    title = f"{metric.label} against training cost"
    words = Words(f"{scope}cost", title, "; ".join(mark.hover for mark in marks if mark.area))
    axes = Axis("Training cost, multiply-adds", count, log=True), Axis(metric.label, metric.format)
    better = "Up" if key == "accuracy" else "Down"
    caption = f"{better} and to the left is better. The area of a point is the number of active weights."
    aside = _key(drawn, metric) if len(drawn) <= MOST_NAMED else None
    return [Figure(words.slug, title, caption, scatter(marks, *axes, words), "hero", aside)]


def _key(groups: Sequence[Group], metric: Metric) -> Html:
    """The numbers behind the points."""
    items = []
    for one in groups:
        active = one.mean("active_parameters")
        size = f", {count(active)} active" if active else ""
        swatch = element("i", class_=colour_class(one.colour))
        items.append(element("li", swatch, element("b", one.label), element("span", one.text(metric) + size)))
    return element("ul", *items, class_="legend list")


def _mark(one: Group, metric: Metric, largest: float) -> Mark:
    x, y, active = (one.mean(key) or 0.0 for key in ("training_macs", metric.name, "active_parameters"))
    told = f"{one.label}: {one.text(metric)} for {macs(x)}"
    told += f", {count(active)} active weights" if active else ""
    area = active / largest if largest and active else 0.06
    return Mark(x, y, one.label, told, one.colour, area, one.error(metric.name) or 0.0)
