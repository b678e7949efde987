"""The table of a comparison: one row per method, its single runs folded below, linked to their reports."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from gossamer._text.formats import column
from gossamer.lab.report.axes import colour_class
from gossamer.lab.report.markup import Html, element, join
from gossamer.lab.report.runs import Group, LoadedRun
from gossamer.metrics import Metric, shown

Texts = dict[str, dict[str, tuple[str, str]]]
"""By metric, and by the label of a group or the folder of a run: the text of the value and that of its error."""

_UNIT = ""  # the label under which the unit of a column stands


def table(groups: Sequence[Group], beside: Path) -> Html:
    """Mean ± standard error of every group; headings sort. Links are relative to the file ``beside``."""
    measured = [name for one in groups for run in one.runs for name in run.measured]
    metrics = [one for one in shown("comparison", measured) if any(group.values(one.name) for group in groups)]
    heads = [_heading("Method", "What was run; × how often.", "text")]
    texts = {metric.name: _texts(groups, metric) for metric in metrics}
    heads += [_heading(_label(one, texts), one.meaning) for one in metrics]
    best = {metric.name: _best(groups, metric) for metric in metrics}
    bodies = [_body(one, metrics, best, texts, beside) for one in groups]
    inner = element("table", element("thead", element("tr", *heads)), *bodies, class_="sortable")
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label="Comparison of all runs")


def link(run: LoadedRun, beside: Path) -> str | None:
    """The address of a run's own report as seen from the file ``beside``; ``None`` where it has none."""
    report = run.folder / "report.html"
    if not report.is_file() or report.resolve() == beside.resolve():
        return None
    return quote(Path(os.path.relpath(report.resolve(), beside.resolve().parent)).as_posix())


def _texts(groups: Sequence[Group], metric: Metric) -> dict[str, tuple[str, str]]:
    """The texts of a column, of groups and of single runs, all in one unit and with as many decimals."""
    rows = [(one.label, one.mean(metric.name), one.told_error(metric)) for one in groups]
    rows += [(str(run.folder), run.value(metric.name), None) for one in groups for run in one.runs]
    unit, cells = column([mean for _, mean, _ in rows], [error for _, _, error in rows], metric.format)
    parts = [cell.replace("-", "–" if cell == "-" else "\u2212").partition("±") for cell in cells]
    texts = [(mean, f"± {error}" if error else "") for mean, _, error in parts]
    return {_UNIT: (unit, "")} | {name: text for (name, _, _), text in zip(rows, texts, strict=True)}


def _label(metric: Metric, texts: Texts) -> str:
    unit = texts[metric.name][_UNIT][0]
    return f"{metric.label}, {unit}" if unit else metric.label


def _heading(name: str, meaning: str, class_: str | None = None) -> Html:
    return element("th", element("button", name, type="button", title=meaning), scope="col", class_=class_)


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


def _body(one: Group, metrics: Sequence[Metric], best: dict[str, set[str]], texts: Texts, beside: Path) -> Html:
    several = len(one.runs) > 1
    swatch = element("i", class_=f"swatch {colour_class(one.colour)}")
    times = element("span", f" ×{len(one.runs)}", class_="times") if several else None
    detail = element("span", one.detail, class_="detail") if one.detail else None
    address = None if several else link(one.runs[0], beside)
    method = element("a", one.method, href=address) if address else one.method
    name = join([swatch, element("span", method, times, detail)])
    opener = element("span", name, class_="fold plain")
    if several:
        opener = element("button", name, type="button", aria_expanded="false", class_="fold")
    head = [element("th", opener, scope="row", data_value=one.label, class_="long" if detail else None)]
    for metric in metrics:
        mean, class_ = one.mean(metric.name), "best" if one.label in best[metric.name] else None
        text, error = texts[metric.name].get(one.label, ("–", ""))
        value = "" if mean is None else f"{mean:.17g}"
        spread = element("span", error, class_="error") if error else None
        head.append(element("td", text, spread, data_value=value, data_label=_label(metric, texts), class_=class_))
    rows = [_run_row(run, metrics, texts, beside) for run in one.runs] if several else []
    return element("tbody", element("tr", *head), *rows)


def _run_row(run: LoadedRun, metrics: Sequence[Metric], texts: Texts, beside: Path) -> Html:
    seed = run.result.get("seed", run.config.get("seed"))
    name = run.folder.name if seed is None else f"seed {seed}"
    name = name if run.finished else f"{name}, unfinished"
    address = link(run, beside)
    cells = [element("th", element("a", name, href=address) if address else name, scope="row")]
    for metric in metrics:
        text, _ = texts[metric.name].get(str(run.folder), ("–", ""))
        cells.append(element("td", text, data_label=_label(metric, texts)))
    return element("tr", *cells, class_="single")
