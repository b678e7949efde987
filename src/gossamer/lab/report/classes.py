"""Figures of predicted classes: calibration, uncertainty of right and wrong predictions, confusion."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.axes import Axis, PlotFrame
from gossamer.lab.report.charts import Bars, Chart, Point, Series, Words, histogram, line
from gossamer.lab.report.fields import matrix
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.markup import Html, element, join
from gossamer.lab.report.rows import BarRow, DotRow, bars, dots
from gossamer.lab.report.runs import LoadedRun

MOST_CLASSES = 32  # of a confusion matrix
_MOST_ROWS = 20  # of what is shown instead
_RIGHT, _WRONG = 0, 1  # colours

_SPLIT = {
    "confidence": ("Confidence", "Confidence", percent, "A wrong prediction with high confidence is a mistake that "
                   "the model does not see."),
    "entropy": ("Entropy", "Entropy, nats", number, "All uncertainty of a prediction, in nats."),
    "mutual_information": ("Mutual information", "Mutual information, nats", number,
                           "The part of the entropy on which drawn networks disagree (epistemic)."),
}  # fmt: skip


def figures(run: LoadedRun) -> list[Figure]:
    """All that the result has."""
    confidence, entropy, information = (_split(run, name) for name in _SPLIT)
    found = [_reliability(run), _selective(run), confidence, entropy, _confusion(run), _classes(run), information]
    return [figure for figure in found if figure is not None]


def selective_points(run: LoadedRun) -> list[Point]:
    """Accuracy against the share of examples answered; empty where a line cannot be drawn."""
    found = run.curve("selective", "coverage", "accuracy")
    points = sorted((c, a) for c, a in zip(*found, strict=True) if math.isfinite(c + a)) if found else []
    return points if len(points) > 1 else []


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``n``."""
    z = 1.96
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _reliability(run: LoadedRun) -> Figure | None:
    found = run.curve("reliability", "edges", "confidence", "accuracy", "count")
    if found is None or not sum(c for c in found[3] if c > 0):
        return None
    edges, sure, right, counts = found
    bins = [(s, a, c) for s, a, c in zip(sure, right, counts, strict=True) if c > 0 and math.isfinite(s + a)]
    n = sum(c for _, _, c in bins)
    mean_sure, mean_right = sum(c * s for s, _, c in bins) / n, sum(c * a for _, a, c in bins) / n
    gap = sum(c * abs(s - a) for s, a, c in bins) / n
    verdict = "overconfident" if mean_sure > mean_right else "underconfident"
    caption = (
        f"ECE, the mean distance of the columns from the dashed line, is {percent(gap)}. Mean confidence is "
        f"{percent(mean_sure)} and accuracy {percent(mean_right)}: {verdict} on average."
    )
    hovers = [
        f"accuracy {percent(a)} at confidence {percent(s)}: {integer(c)} examples" if c > 0 else ""
        for s, a, c in zip(sure, right, counts, strict=True)
    ]
    heights = [a if c > 0 and math.isfinite(a) else 0.0 for a, c in zip(right, counts, strict=True)]
    axes = Axis("Confidence", percent, 0.0, 1.0), Axis("Accuracy, with 95\u202f% intervals", percent, 0.0, 1.0)
    middles = [(low + high) / 2 for low, high in pairwise(edges)]

    def over(frame: PlotFrame) -> Html:
        diagonal = f"M{frame.x(0):.1f} {frame.y(0):.1f}L{frame.x(1):.1f} {frame.y(1):.1f}"
        whiskers = [_interval(frame, x, a, c) for x, a, c in zip(middles, right, counts, strict=True)]
        return join([element("path", d=diagonal, class_="line reference"), *whiskers])

    words = Words("reliability", "Reliability diagram", caption)
    chart = histogram(edges, [Bars("", heights, hovers)], axes, words, over)
    rows = [(*row, c) for row, c in zip(chart.rows, counts, strict=True)]
    return Figure("reliability", words.title, caption, Chart(chart.html, (*chart.columns, "examples"), rows))


def _interval(frame: PlotFrame, x: float, share: float, n: float) -> Html | None:
    if not n > 0 or not math.isfinite(share):
        return None
    low, high = wilson(share, n)
    return element("path", d=f"M{frame.x(x):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}", class_="interval")


def _selective(run: LoadedRun) -> Figure | None:
    points = selective_points(run)
    if not points:
        return None
    kept, half = min(points, key=lambda point: abs(point[0] - 0.5))
    caption = f"Answering only the {percent(kept, 0)} of the highest confidence, it gets {percent(half)} right."
    axes = Axis("Coverage: share of examples answered", percent), Axis("Accuracy on these", percent)
    chart = line([Series("Accuracy", points)], *axes, Words("selective", "Selective accuracy", caption))
    return Figure("selective", "Selective accuracy", caption, chart)


def _split(run: LoadedRun, name: str) -> Figure | None:
    """Counts of right and wrong predictions on a log scale; of an earlier version's result, of all together."""
    title, axis, form, caption = _SPLIT[name]
    found = run.curve(name, "edges", "count", "right")
    every = run.curve(name, "edges", "count")
    if every is None or not sum(c for c in every[1] if c > 0) or every[0][-1] < 1e-5:  # as in a single network
        return None
    edges, counts = every
    parts = [("all", counts, _RIGHT)]
    if found is not None:
        wrong = [c - r for c, r in zip(counts, found[2], strict=True)]
        parts = [("right", found[2], _RIGHT), ("wrong", wrong, _WRONG)]
        caption = f"{_medians(edges, parts, form)} {caption}"
    bars = [
        Bars(label, some, [f"{integer(c)} {label}, {axis.lower()} {form(a)} to {form(b)}"
                              for a, b, c in zip(edges[:-1], edges[1:], some, strict=True)], colour)
        for label, some, colour in parts
    ]  # fmt: skip
    words = Words(name.replace("_", "-"), f"Histogram of {title.lower()}", caption)
    log = Axis("Examples", integer, 0.8, max(2.0, max(counts)) * 1.2, log=True)
    return Figure(words.slug, title + (", right and wrong" if found else ""), caption,
                  histogram(edges, bars, (Axis(axis, form), log), words))  # fmt: skip


def _medians(edges: Sequence[float], parts: Sequence[tuple[str, Sequence[float], int]], form: object) -> str:
    """The medians of both parts, to the middle of a bin."""
    told = []
    for label, counts, _ in parts:
        total, below = sum(counts), 0.0
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
            below += count
            if total and below >= total / 2:
                text = percent((low + high) / 2, 0) if form is percent else number((low + high) / 2, 2)
                told.append(f"{text} where it is {label}")
                break
    return f"Median {', '.join(told)}." if told else ""


def _confusion(run: LoadedRun) -> Figure | None:
    found = run.curve("confusion", "label", "predicted", "count")
    names = class_names(run)
    if found is None or not names:
        return None
    pairs = [(int(a), int(b), int(c)) for a, b, c in zip(*found, strict=True) if math.isfinite(a + b + c)]
    if any(not 0 <= place < len(names) for a, b, _ in pairs for place in (a, b)):
        return None
    wrong = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -pair[2])
    caption = "It makes no mistake on the test data."
    if wrong:
        label, predicted, count = wrong[0]
        caption = f"Most frequent: {integer(count)} × {names[label]} taken for {names[predicted]}."
    if len(names) <= MOST_CLASSES:
        counts = [[0] * len(names) for _ in names]
        for label, predicted, count in pairs:
            counts[label][predicted] = count
        words = Words("confusion", "Confusion matrix", caption)
        return Figure("confusion", words.title, f"{caption} Rows are labels.", matrix(counts, names, words), "rows")
    if not wrong:
        return None
    most = wrong[0][2]
    rows = [BarRow(f"{names[a]} → {names[b]}", n / most, integer(n), f"{names[a]} taken for {names[b]}: {integer(n)}")
            for a, b, n in wrong[:_MOST_ROWS]]  # fmt: skip
    chart = bars(rows, Words("confusion", "Most frequent confusions", caption), ("label → predicted", "share of most"))
    return Figure("confusion", "Most frequent confusions", caption, chart, "rows")


def _classes(run: LoadedRun) -> Figure | None:
    """Accuracy of the predictions of each class (precision) beside their mean confidence."""
    found = run.curve("classes", "predicted", "right", "confidence", "ece")
    names = class_names(run)
    if found is None or len(names) != len(found[0]):
        return None
    every = [(name, *row) for name, row in zip(names, zip(*found, strict=True), strict=True)]
    told = [(str(name), n, r, s, e) for name, (n, r, s, e) in ((row[0], row[1:]) for row in every) if n > 0]
    worst = sorted(told, key=lambda row: -abs(row[3] - row[2] / row[1]))[:_MOST_ROWS]
    kept = {row[0] for row in worst}
    rows = []
    for name, n, right, sure, ece in (row for row in told if row[0] in kept):
        low, high = wilson(right / n, n)
        hover = f"{name}: {integer(n)} predictions, {percent(right / n)} right, mean confidence {percent(sure)}, "
        rows.append(DotRow(name, right / n, low, high, f"{hover}ECE of the class {percent(ece)}", ring=sure))
    if not rows:
        return None
    caption = (
        "Of the predictions of a class, the share that is right (dot, 95\u202f% interval) and mean confidence (ring)."
    )
    if len(told) > len(rows):
        caption += f" The {len(rows)} classes with the largest gaps."
    words = Words("class-calibration", "Calibration per class", caption)
    names_of = ("class", "precision", "low", "high")
    chart = dots(rows, Axis("Share", percent, None, 1.0), words, names_of)
    chart = Chart(chart.html, (*names_of, "mean confidence"), chart.rows)
    return Figure(words.slug, words.title, caption, chart, "rows")


def class_names(run: LoadedRun) -> list[str]:
    """Names by class number; numbers where the result has no names."""
    names = run.result.get("class_names")
    if isinstance(names, list) and names:
        return [str(name) for name in names]
    curves = run.result.get("curves")
    classes = curves.get("classes") if isinstance(curves, Mapping) else None
    counts = classes.get("count") if isinstance(classes, Mapping) else None
    return [str(place) for place in range(len(counts))] if isinstance(counts, list) else []
