"""Several runs side by side: the table, and figures with common axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import methodcaller

from gossamer.formats import Format, count, integer, macs, percent
from gossamer.metrics import METRICS, Metric, shown
from gossamer.report.axes import Axis, colour_class
from gossamer.report.charts import MOST_NAMED, Mark, Series, Words, line, scatter
from gossamer.report.figures import CURVES, Figure, selective_points
from gossamer.report.markup import Html, element, join
from gossamer.report.runs import Group, LoadedRun, Point


def table(groups: Sequence[Group]) -> Html:
    """One row per group, mean ± standard error, with its single runs folded below; headings sort."""
    measured = [name for one in groups for run in one.runs for name in run.measured]
    metrics = [one for one in shown("comparison", measured) if any(group.values(one.name) for group in groups)]
    heads = [_heading("Method", "What was run; × how often.", "text")]
    heads += [_heading(one.label, one.meaning) for one in metrics]
    best = {metric.name: _best(groups, metric) for metric in metrics}
    bodies = [_body(one, metrics, best) for one in groups]
    inner = element("table", element("thead", element("tr", *heads)), *bodies, class_="sortable")
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label="Comparison of all runs")


def _heading(name: str, meaning: str, class_: str | None = None) -> Html:
    return element("th", element("button", name, type="button", title=meaning), scope="col", class_=class_)


def cost_figure(groups: Sequence[Group]) -> Figure | None:
    """Accuracy (or error) against training cost, as in figure 1 of the SSVI paper; areas are active weights."""
    key = "accuracy" if any(one.values("accuracy") for one in groups) else "rmse"
    metric = METRICS[key]
    drawn = [one for one in groups if one.mean(key) is not None and (one.mean("training_macs") or 0) > 0]
    if len(drawn) < 2:
        return None
    largest = max((one.mean("active_parameters") or 0) for one in drawn)
    marks = []
    for one in drawn:
        for run in one.runs if len(one.runs) > 1 else ():
            x, y = run.value("training_macs"), run.value(key)
            if x and y is not None:
                marks.append(Mark(x, y, "", f"{one.label}, {run.folder.name}: {metric.format(y)}", one.colour))
        marks.append(_mark(one, metric, largest))
    words = Words("cost", f"{metric.label} against training cost", "; ".join(mark.hover for mark in marks if mark.area))
    chart = scatter(
        marks, Axis("Training cost, multiply-adds", count, log=True), Axis(metric.label, metric.format), words
    )
    better = "Up" if key == "accuracy" else "Down"
    caption = f"{better} and to the left is better. The area of a point is the number of active weights."
    aside = _key(drawn, metric) if len(drawn) <= MOST_NAMED else None
    return Figure("cost", "What training buys", caption, chart, "hero", aside)


def learning_figures(groups: Sequence[Group]) -> list[Figure]:
    """The learning curves of all runs, in the colour of their group."""
    rows = [row for one in groups for run in one.runs for row in run.metrics]
    along = "epoch" if rows and all("epoch" in row for row in rows) else "step"
    figures = []
    for curve in CURVES[:5]:
        title = curve.metric.label
        found = _series(groups, methodcaller("points", curve.key, along))
        series = [one for one in found if curve.is_worth_drawing(one.points)]
        if series:
            words = Words(curve.slug, title, _ends(series, curve.metric.format))
            y = curve.y_axis([point for one in series for point in one.points], skip=0.25)
            held_out = "On held-out examples, a line for each run; the axis fits the last three quarters."
            chart = line(series, Axis(along.title(), integer, 0.0), y, words)
            figures.append(Figure(curve.slug, title, held_out if curve.best else curve.metric.meaning, chart))
    return figures


def confidence_figures(groups: Sequence[Group]) -> list[Figure]:
    """Reliability and selective accuracy of all runs."""
    figures = []
    if reliability := _series(groups, _reliability_points):
        caption = "On the dashed line confidence can be taken at its word; below it, the model is too sure."
        ideal = Series("ideal", [(0.0, 0.0), (1.0, 1.0)], kind="reference")
        axes = Axis("Confidence", percent, 0.0, 1.0), Axis("Right", percent, 0.0, 1.0)
        chart = line([ideal, *reliability], *axes, Words("reliability", "Reliability", caption), direct=False)
        figures.append(Figure("reliability", "Is it as sure as it should be?", caption, chart))
    if selective := _series(groups, selective_points):
        caption = "Accuracy on the examples it is surest of, from few of them to all."
        axes = Axis("Share of examples answered", percent), Axis("Accuracy on these", percent)
        chart = line(selective, *axes, Words("selective", "Selective accuracy", caption), direct=False)
        figures.append(Figure("selective", "When it may decline to answer", caption, chart))
    return figures


def _series(groups: Sequence[Group], points_of: Callable[[LoadedRun], list[Point]]) -> list[Series]:
    """A line for each run that has at least two points; faint where its group has several runs."""
    kinds = [(one, "faint" if len(one.runs) > 1 else "line", run) for one in groups for run in one.runs]
    found = [Series(one.label, points_of(run), one.colour, kind) for one, kind, run in kinds]
    return [series for series in found if len(series.points) > 1]


def _reliability_points(run: LoadedRun) -> list[Point]:
    """Accuracy against confidence, in bins of at least ten examples."""
    found = run.curve("reliability", "confidence", "accuracy", "count") or [[], [], []]
    return [(s, a) for s, a, c in zip(*found, strict=True) if c >= 10 and math.isfinite(s + a)]


def _key(groups: Sequence[Group], metric: Metric) -> Html:
    """The numbers behind the points."""
    items = []
    for one in groups:
        active = one.mean("active_parameters")
        size = f", {count(active)} active" if active else ""
        swatch = element("i", class_=colour_class(one.colour))
        items.append(element("li", swatch, element("b", one.label), element("span", one.text(metric) + size)))
    return element("ul", *items, class_="legend list")


def _best(groups: Sequence[Group], metric: Metric) -> set[str]:
    """Labels of the best group and of those within two standard errors of the difference to it."""
    if metric.better is None or len(groups) < 2:
        return set()
    means = [(metric.distance(mean), one) for one in groups if (mean := one.mean(metric.name)) is not None]
    nearest, first = min(means, key=lambda pair: pair[0])

    def noise(one: Group) -> float:
        return math.hypot(one.error(metric.name) or 0.0, first.error(metric.name) or 0.0)

    best = {one.label for far, one in means if far - nearest <= 2 * noise(one)}
    return best if len(best) < len(groups) else set()


def _body(one: Group, metrics: Sequence[Metric], best: dict[str, set[str]]) -> Html:
    several = len(one.runs) > 1
    swatch = element("i", class_=f"swatch {colour_class(one.colour)}")
    times = element("span", f" ×{len(one.runs)}", class_="times") if several else None
    detail = element("span", one.detail, class_="detail") if one.detail else None
    name = join([swatch, element("span", one.method, times, detail)])
    opener = element("span", name, class_="fold plain")
    if several:
        opener = element("button", name, type="button", aria_expanded="false", class_="fold")
    head = [element("th", opener, scope="row", data_value=one.label, class_="long" if detail else None)]
    for metric in metrics:
        mean, class_ = one.mean(metric.name), "best" if one.label in best[metric.name] else None
        head.append(element("td", one.text(metric), data_value="" if mean is None else f"{mean:.17g}", class_=class_))
    rows = [_run_row(run, metrics) for run in one.runs] if several else []
    return element("tbody", element("tr", *head), *rows)


def _run_row(run: LoadedRun, metrics: Sequence[Metric]) -> Html:
    seed = run.result.get("seed", run.config.get("seed"))
    name = run.folder.name if seed is None else f"seed {seed}"
    cells = [element("th", name if run.finished else f"{name}, unfinished", scope="row")]
    values = [(metric, run.value(metric.name)) for metric in metrics]
    cells += [element("td", "–" if value is None else metric.format(value)) for metric, value in values]
    return element("tr", *cells, class_="single")


def _mark(one: Group, metric: Metric, largest: float) -> Mark:
    x, y, active = (one.mean(key) or 0.0 for key in ("training_macs", metric.name, "active_parameters"))
    told = f"{one.label}: {one.text(metric)} for {macs(x)}"
    told += f", {count(active)} active weights" if active else ""
    area = active / largest if largest and active else 0.06
    return Mark(x, y, one.label, told, one.colour, area, one.error(metric.name) or 0.0)


def _ends(series: Sequence[Series], form: Format) -> str:
    ends: dict[str, list[float]] = {}
    for one in series:
        ends.setdefault(one.label, []).append(one.points[-1][1])
    return "At the end: " + ", ".join(f"{label} {form(sum(v) / len(v))}" for label, v in ends.items()) + "."
