"""Detection of inputs from outside, where ``gossamer evaluate --ood`` measured it: histograms and a table of scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from gossamer._text.formats import integer, is_number, number, percent
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Bars, Words, histogram
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.markup import Html, element
from gossamer.lab.report.rows import DotRow, dots
from gossamer.lab.report.runs import Group, LoadedRun
from gossamer.metrics import METRICS

MEASURES = ("auroc", "aupr_out", "aupr_in", "fpr95")
DRAWN = {
    "entropy": "Entropy, nats",
    "mutual_information": "Mutual information, nats",
    "std": "Std, target standardised",
    "epistemic_std": "Epistemic std, target standardised",
}
"""Scores that get a figure, and their axes; the table has the others, too."""


def figures(run: LoadedRun) -> list[Figure]:
    """The scores of the test data and of inputs from outside."""
    drawn = [(name, score, values) for name, score, values in _scores(run) if score in DRAWN]
    found = [_histogram(name, score, values, f"ood-{place}") for place, (name, score, values) in enumerate(drawn)]
    return [figure for figure in found if figure is not None]


def table(run: LoadedRun) -> Html | None:
    """Every set and score, with all measures."""
    rows = []
    for name, score, values in _scores(run):
        texts = [METRICS[key].format(values[key]) if is_number(values.get(key)) else "–" for key in MEASURES]
        head = element("th", f"{name}, {score.replace('_', ' ')}", scope="row")
        cells = [element("td", text, data_label=METRICS[key].label) for key, text in zip(MEASURES, texts, strict=True)]
        rows.append(element("tr", head, *cells))
    if not rows:
        return None
    heads = [element("th", "Outside, by score", scope="col", class_="text")]
    heads += [element("th", METRICS[key].label, scope="col", title=METRICS[key].meaning) for key in MEASURES]
    inner = element("table", element("thead", element("tr", *heads)), element("tbody", *rows), class_="plain")
    return element(
        "div", inner, class_="scroll wide", tabindex="0", role="region", aria_label="Detection of the outside"
    )


def comparison(groups: Sequence[Group], scope: str = "") -> list[Figure]:
    """AUROC of each group, for every set and score that at least two of them have."""
    found: dict[tuple[str, str], dict[str, list[float]]] = {}
    for one in groups:
        for run in one.runs:
            for name, score, values in _scores(run):
                if score in DRAWN and is_number(values.get("auroc")):
                    found.setdefault((name, score), {}).setdefault(one.label, []).append(values["auroc"])
    several = [(key, values) for key, values in found.items() if len(values) > 1]
    return [_dots(*key, values, groups, f"{scope}ood-{place}") for place, (key, values) in enumerate(several)]


def _scores(run: LoadedRun) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Set, score and what was measured of it."""
    sets = run.evaluation.get("ood")
    found = []
    for name, content in sets.items() if isinstance(sets, Mapping) else ():
        scores = content.get("scores") if isinstance(content, Mapping) else None
        for score, values in scores.items() if isinstance(scores, Mapping) else ():
            if isinstance(values, Mapping):
                found.append((str(name), str(score), values))
    return found


def _histogram(name: str, score: str, values: Mapping[str, Any], slug: str) -> Figure | None:
    edges, inside, outside = (values.get(key) for key in ("edges", "count_in", "count_out"))
    sides = [("test data", inside), (name, outside)]
    if not isinstance(edges, list) or not all(isinstance(some, list) and len(some) == len(edges) - 1 and sum(some)
                                              for _, some in sides):  # fmt: skip
        return None
    if not edges[-1] - edges[0] > 1e-5:  # a single network has no mutual information
        return None
    axis, bars, least = DRAWN[score], [], 1.0
    for colour, (label, counts) in enumerate(sides):
        assert isinstance(counts, list)
        total = sum(counts)
        shares = [count / total for count in counts]
        least = min(least, 1 / total)
        hovers = [f"{label}: {integer(count)} of {integer(total)} from {number(a)} to {number(b)}"
                  for count, a, b in zip(counts, edges[:-1], edges[1:], strict=True)]  # fmt: skip
        bars.append(Bars(label, shares, hovers, colour))
    told = [f"{METRICS[key].label} {METRICS[key].format(values[key])}" for key in ("auroc", "fpr95")
            if is_number(values.get(key))]  # fmt: skip
    title = f"{axis.partition(',')[0]}: test data and {name}"
    axes = Axis(axis, number), Axis("Share of examples", percent, 0.7 * least, 1.0, log=True)
    words = Words(slug, title, ", ".join(told))
    return Figure(slug, title, f"{words.description}." if told else "", histogram(edges, bars, axes, words))


def _dots(name: str, score: str, values: Mapping[str, list[float]], groups: Sequence[Group], slug: str) -> Figure:
    metric, rows = METRICS["auroc"], []
    for one in groups:
        if some := values.get(one.label):
            mean, error = fmean(some), stdev(some) / math.sqrt(len(some)) if len(some) > 1 else 0.0
            specks = some if len(some) > 1 else []
            hover = f"{one.label}: {metric.format(mean)}"
            rows.append(DotRow(one.label, mean, mean - error, mean + error, hover, one.colour, specks=specks))
    caption = f"Separating {name} from the test data; 50\u202f% is chance. Mean ± standard error over runs."
    words = Words(slug, f"AUROC by {score.replace('_', ' ')}, {name}", "; ".join(row.hover for row in rows))
    chart = dots(rows, Axis("AUROC", metric.format), words, ("method", "mean", "low", "high"))
    return Figure(slug, words.title, caption, chart, "rows")
