"""Tables: plain ones under a title, ones that a heading sorts, and that of a comparison with its runs folded below."""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from gossamer._text.formats import column
from gossamer._text.terminal import Table
from gossamer.lab.report.parts import Html, colour_class, element, join
from gossamer.lab.report.runs import Group, LoadedRun
from gossamer.metrics import METRICS, Metric, shown

Texts = dict[str, tuple[str, str]]
"""By the label of a group or the folder of a run: the text of a value and that of its error."""

_UNIT = ""  # the label under which the unit of a column stands
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Quantiles of Student's t that leave out 5 % on both sides together, by degrees of freedom from 1."""


def panel(slug: str, table: Table) -> Html | None:
    """A table under its title, its labels in one column; nothing without rows."""
    if not table.rows:
        return None
    n = max(1, table.n_labels)
    heads, *rows = ([", ".join(row[:n]), *row[n:]] for row in (table.head, *table.rows))
    head = [element("th", name, scope="col", class_=None if k else "text") for k, name in enumerate(heads)]
    body = []
    for name, *texts in rows:
        cells = [element("td", text, data_label=label) for label, text in zip(heads[1:], texts, strict=True)]
        body.append(element("tr", element("th", name, scope="row"), *cells))
    inner = element("table", element("thead", element("tr", *head)), element("tbody", *body), class_="plain")
    words = element("figcaption", element("h3", table.title), element("p", table.note) if table.note else None)
    size = "figure wide" if len(heads) > 4 else "figure"
    return element("figure", words, _scroll(inner, table.title), id=f"figure-{slug}", class_=size)


def sortable(heads: Sequence[Html], bodies: Sequence[Html], label: str) -> Html:
    """A table whose headings sort its bodies."""
    return _scroll(element("table", element("thead", element("tr", *heads)), *bodies, class_="sortable"), label)


def heading(name: str, meaning: str = "", class_: str | None = None) -> Html:
    """A heading that sorts."""
    return element("th", element("button", name, type="button", title=meaning or None), scope="col", class_=class_)


def address(folder: Path, beside: Path) -> str | None:
    """That of a run's own report as seen from the file ``beside``; ``None`` where it has none."""
    report = folder / "report.html"
    if not report.is_file() or report.resolve() == beside.resolve():
        return None
    return quote(Path(os.path.relpath(report.resolve(), beside.resolve().parent)).as_posix())


def comparison(groups: Sequence[Group], beside: Path) -> Html:
    """Mean ± standard error of every group; headings sort. Links are relative to the file ``beside``."""
    measured = [name for one in groups for run in one.runs for name in run.measured]
    metrics = [one for one in shown("comparison", measured) if any(group.values(one.name) for group in groups)]
    columns = {metric: _texts(groups, metric) for metric in metrics}
    best = {metric: [one.label for one in leaders(groups, metric)] for metric in metrics}
    best = {metric: labels if len(labels) < len(groups) else [] for metric, labels in best.items()}
    heads = [heading("Method", "What was run; × how often.", "text")]
    heads += [heading(_label(metric, texts), metric.meaning) for metric, texts in columns.items()]
    bodies = [_body(one, columns, best, beside) for one in groups]
    return sortable(heads, bodies, "Comparison of all runs")


def leaders(groups: Sequence[Group], metric: Metric) -> list[Group]:
    """The best group, and those that cannot be told from it: by a t-test at 5 %, or as a single run has no error."""
    means = [(metric.distance(mean), one) for one in groups if (mean := one.mean(metric.name)) is not None]
    if metric.better is None or len(means) < 2:
        return []
    least, best = min(means, key=lambda pair: pair[0])
    return [one for distance, one in means if one is best or not _differ(distance - least, one, best, metric.name)]


def _differ(difference: float, one: Group, other: Group, key: str) -> bool:
    first, second, freedom = one.error(key), other.error(key), len(one.values(key)) + len(other.values(key)) - 2
    if first is None or second is None:
        return False
    return difference > (_T[freedom - 1] if freedom <= len(_T) else 2.1) * math.hypot(first, second)


def _scroll(table: Html, label: str) -> Html:
    return element("div", table, class_="scroll", tabindex="0", role="region", aria_label=label)


def _texts(groups: Sequence[Group], metric: Metric) -> Texts:
    """The texts of a column, of groups and of single runs, all in one unit and with as many decimals."""
    is_cost = metric.compute is None and metric.name in METRICS  # of which the table has the mean alone
    rows = [(one.label, one.mean(metric.name), None if is_cost else one.error(metric.name)) for one in groups]
    rows += [(str(run.folder), run.value(metric.name), None) for one in groups for run in one.runs]
    unit, cells = column([mean for _, mean, _ in rows], [error for _, _, error in rows], metric.format)
    parts = [cell.replace("-", "–" if cell == "-" else "\u2212").partition("±") for cell in cells]
    texts = [(mean, f"± {error}" if error else "") for mean, _, error in parts]
    return {_UNIT: (unit, "")} | {name: text for (name, _, _), text in zip(rows, texts, strict=True)}


def _label(metric: Metric, texts: Texts) -> str:
    return f"{metric.label}, {texts[_UNIT][0]}" if texts[_UNIT][0] else metric.label


def _body(one: Group, columns: Mapping[Metric, Texts], best: Mapping[Metric, Sequence[str]], beside: Path) -> Html:
    several = len(one.runs) > 1
    times = element("span", f" ×{len(one.runs)}", class_="times") if several else None
    detail = element("span", one.detail, class_="detail") if one.detail else None
    link = None if several else address(one.runs[0].folder, beside)
    method = element("a", one.method, href=link) if link else one.method
    name = join([element("i", class_=f"swatch {colour_class(one.colour)}"), element("span", method, times, detail)])
    opener = element("span", name, class_="fold plain")
    if several:
        opener = element("button", name, type="button", aria_expanded="false", class_="fold")
    cells = [element("th", opener, scope="row", data_value=one.label, class_="long" if detail else None)]
    for metric, texts in columns.items():
        mean, (text, error) = one.mean(metric.name), texts.get(one.label, ("–", ""))
        spread = element("span", error, class_="error") if error else None
        marks = {"data_value": "" if mean is None else f"{mean:.17g}", "data_label": _label(metric, texts)}
        cells.append(element("td", text, spread, **marks, class_="best" if one.label in best[metric] else None))
    rows = [_run_row(run, columns, beside) for run in one.runs] if several else []
    return element("tbody", element("tr", *cells), *rows)


def _run_row(run: LoadedRun, columns: Mapping[Metric, Texts], beside: Path) -> Html:
    seed = run.result.get("seed", run.config.get("seed"))
    name = (run.folder.name if seed is None else f"seed {seed}") + ("" if run.finished else ", unfinished")
    link = address(run.folder, beside)
    cells = [element("th", element("a", name, href=link) if link else name, scope="row")]
    for metric, texts in columns.items():
        text, _ = texts.get(str(run.folder), ("–", ""))
        cells.append(element("td", text, data_label=_label(metric, texts)))
    return element("tr", *cells, class_="single")
