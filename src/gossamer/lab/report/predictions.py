"""Figures of predictions: of classes and of numbers."""

import math
from itertools import pairwise
from typing import NamedTuple

from gossamer._text.formats import integer, number, percent
from gossamer.lab.report.charts import DIAGONAL, Bars, Series, histogram, line
from gossamer.lab.report.parts import Axis, Figure, Html, PlotFrame, Point, element, join
from gossamer.lab.report.plots import BarRow, Cloud, bars, cloud, matrix
from gossamer.lab.report.runs import LoadedRun

MOST_CLASSES = 32  # of a confusion matrix
_MOST_ROWS = 20  # of what is shown instead
SELECTIVE_AXES = Axis("Coverage: share of examples answered", percent), Axis("Accuracy on these", percent)


class Doubt(NamedTuple):
    """A histogram of right and wrong predictions: its title, its axis, and a sentence about it."""

    title: str
    axis: Axis
    caption: str


_DOUBTS = {
    "entropy": Doubt("Entropy", Axis("Entropy, nats", number), "All uncertainty of a prediction, in nats."),
    "mutual_information": Doubt("Mutual information", Axis("Mutual information, nats", number),
                                "The part of the entropy on which drawn networks disagree (epistemic)."),
}  # fmt: skip


def class_figures(run: LoadedRun) -> list[Figure | None]:
    """Those that the result has the numbers for."""
    entropy, information = (_doubt(run, name, *doubt) for name, doubt in _DOUBTS.items())
    return [_reliability(run), _selective(run), entropy, _confusion(run), information]


def selective_points(run: LoadedRun) -> list[Point]:
    """Accuracy against the share of examples answered; empty where a line cannot be drawn."""
    points = sorted((coverage, accuracy) for coverage, accuracy in run.rows("selective", "coverage", "accuracy"))
    return points if len(points) > 1 else []


def wilson(share: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share of ``n``."""
    z, share, n = 1.96, min(max(share, 0.0), 1.0), max(n, 1.0)
    middle = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def _reliability(run: LoadedRun) -> Figure | None:
    curve = run.curve("reliability", "edges", "confidence", "accuracy", "count")
    if curve is None or not sum(c for c in curve[3] if c > 0):
        return None
    edges, bins = curve[0], list(zip(*curve[1:], strict=True))
    known = [(s, a, c) for s, a, c in bins if c > 0 and math.isfinite(s + a)]
    n = sum(c for *_, c in known)
    mean_sure, mean_right = sum(c * s for s, _, c in known) / n, sum(c * a for _, a, c in known) / n
    verdict = "overconfident" if mean_sure > mean_right else "underconfident"
    caption = (
        "ECE, the mean distance of the columns from the dashed line, is "
        f"{percent(sum(c * abs(s - a) for s, a, c in known) / n)}. Mean confidence is "
        f"{percent(mean_sure)} and accuracy {percent(mean_right)}: {verdict} on average."
    )
    heights = [a if c > 0 and math.isfinite(a) else 0.0 for _, a, c in bins]
    texts = [f"accuracy {percent(a)} where its mean is {percent(s)}, {integer(c)} examples" for s, a, c in bins]

    def over(frame: PlotFrame) -> Html:
        diagonal = f"M{frame.x(0):.1f} {frame.y(0):.1f}L{frame.x(1):.1f} {frame.y(1):.1f}"
        intervals = [
            f"M{frame.x((start + end) / 2):.1f} {frame.y(low):.1f}V{frame.y(high):.1f}"
            for (start, end), (_, a, c) in zip(pairwise(edges), bins, strict=True)
            if c > 0 and math.isfinite(a)
            for low, high in [wilson(a, c)]
        ]
        drawn = [element("path", d=path, class_="interval") for path in intervals]
        return join([element("path", d=diagonal, class_="line reference"), *drawn])

    axes = Axis("Confidence", percent, 0.0, 1.0), Axis("Accuracy, with 95\u202f% intervals", percent, 0.0, 1.0)
    chart = histogram(edges, [Bars("", heights, texts)], *axes, over)
    rows = [(*row, c) for row, (*_, c) in zip(chart.rows, bins, strict=True)]
    chart = chart._replace(columns=(*chart.columns, "examples"), rows=rows)
    return Figure("reliability", "Reliability diagram", caption, chart)


def _selective(run: LoadedRun) -> Figure | None:
    points = selective_points(run)
    if not points:
        return None
    kept, half = min(points, key=lambda point: abs(point[0] - 0.5))
    caption = f"Answering only the {percent(kept, 0)} of the highest confidence, it gets {percent(half)} right."
    return Figure("selective", "Selective accuracy", caption, line([Series("Accuracy", points)], *SELECTIVE_AXES))


def _doubt(run: LoadedRun, name: str, title: str, axis: Axis, caption: str) -> Figure | None:
    """Counts of right and wrong predictions on a log scale."""
    split = run.curve(name, "edges", "count", "right")
    if split is None or not sum(c for c in split[1] if c > 0) or split[0][-1] < 1e-5:  # as in a single network
        return None
    edges, counts, right = split
    parts = {"right": right, "wrong": [c - r for c, r in zip(counts, right, strict=True)]}
    bars = [Bars(key, some, [f"{integer(c)} {key}" for c in some], k) for k, (key, some) in enumerate(parts.items())]
    log = Axis("Examples", integer, 0.8, max(2.0, max(counts)) * 1.2, log=True)
    chart = histogram(edges, bars, axis, log)
    return Figure(name.replace("_", "-"), f"{title}, right and wrong", caption, chart)


def _confusion(run: LoadedRun) -> Figure | None:
    names = run.class_names
    pairs = [(int(a), int(b), int(c)) for a, b, c in run.rows("confusion", "label", "predicted", "count")]
    if not names or not pairs or any(not 0 <= k < len(names) for a, b, _ in pairs for k in (a, b)):
        return None
    wrong = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -pair[2])
    caption = "It makes no mistake on the test data."
    if wrong:
        label, predicted, most = wrong[0]
        caption = f"Most frequent: {integer(most)} × {names[label]} taken for {names[predicted]}."
    if len(names) <= MOST_CLASSES:
        counts = [[0] * len(names) for _ in names]
        for label, predicted, count in pairs:
            counts[label][predicted] = count
        caption += " Rows are labels."
        return Figure("confusion", "Confusion matrix", caption, matrix(counts, names), "rows")
    if not wrong:
        return None
    rows = [BarRow(f"{names[a]} → {names[b]}", n / most, integer(n), f"{names[a]} taken for {names[b]}: {integer(n)}")
            for a, b, n in wrong[:_MOST_ROWS]]  # fmt: skip
    chart = bars(rows, ("label → predicted", "share of most"))
    return Figure("confusion", "Most frequent confusions", caption, chart, "rows")


NORMAL_90 = 1.645  # stds on either side of the mean that hold 90 % of a Gaussian
COVERAGE_AXES = Axis("Nominal coverage", percent, 0.0, 1.0), Axis("Actual coverage", percent, 0.0, 1.0)


def number_figures(run: LoadedRun) -> list[Figure | None]:
    """Those that the result has the numbers for."""
    return [_predicted(run), _coverage(run), _errors(run), _std(run)]


def coverage_points(run: LoadedRun) -> list[Point]:
    """Actual against nominal coverage, from (0, 0) to (1, 1)."""
    points = run.rows("coverage", "nominal", "actual")
    return [(0.0, 0.0), *((nominal, actual) for nominal, actual in points), (1.0, 1.0)] if points else []


def _predicted(run: LoadedRun) -> Figure | None:
    rows = run.rows("points", "target", "mean", "low90", "high90")
    if not rows:
        return None
    inside = sum(low <= target <= high for target, _, low, high in rows)
    caption = f"With 90\u202f% intervals; {integer(inside)} of the {integer(len(rows))} shown hold the true value."
    low, high = (pick(value for row in rows for value in row[:2]) for pick in (min, max))
    ideal = Series("", [(low, low), (high, high)], kind="reference")
    points = Cloud([(target, mean) for target, mean, *_ in rows], [(low, high) for *_, low, high in rows])
    chart = cloud(points, [ideal], Axis("True"), Axis("Predicted"))
    return Figure("predicted", "Predicted against true", caption, chart)


def _coverage(run: LoadedRun) -> Figure | None:
    points = coverage_points(run)
    if not points:
        return None
    gaps = [actual - nominal for nominal, actual in points[1:-1]]
    verdict = "intervals are too wide (underconfident)" if sum(gaps) > 0 else (
        "intervals are too narrow (overconfident)")  # fmt: skip
    caption = f"Mean distance from the dashed line {percent(sum(map(abs, gaps)) / len(gaps))}; on average {verdict}."
    chart = line([DIAGONAL, Series("Actual", points)], *COVERAGE_AXES, direct=False)
    return Figure("coverage", "Calibration of intervals", caption, chart)


def _errors(run: LoadedRun) -> Figure | None:
    """|residual| against std, and the RMSE of groups of examples with about the same std (Levi et al. 2022)."""
    points = [(std, abs(target - mean)) for target, mean, std in run.rows("points", "target", "mean", "std")]
    if not points:
        return None
    widest = max(std for std, _ in points)
    inside = sum(error <= NORMAL_90 * std for std, error in points) / len(points)
    caption = (
        "RMSE of groups with about the same std should follow the dashed line, RMSE = std. "
        f"{percent(inside, 0)} of the residuals are within {NORMAL_90} std."
    )
    lines = [Series("", [(0.0, 0.0), (widest, widest)], kind="reference")]
    grouped = [(std, rmse) for std, rmse in run.rows("errors", "std", "rmse")]
    lines += [Series("RMSE of groups", sorted(grouped), 1)] if len(grouped) > 1 else []
    x = Axis("Predicted std", number, min(std for std, _ in points), widest)
    chart = cloud(Cloud(points), lines, x, Axis("|true − predicted|", number, 0.0))
    return Figure("residual", "Residual against std", caption, chart)


def _std(run: LoadedRun) -> Figure | None:
    names = (("std", "std"), ("epistemic_std", "epistemic std"))
    known = [(label, *both) for name, label in names if (both := run.shares(name))]
    if not known or known[0][0] != "std":
        return None
    bars = [Bars(label, heights, list(map(percent, heights)), k) for k, (label, _, heights) in enumerate(known)]
    caption = "How uncertain its predictions are"
    caption += "; epistemic: the part on which drawn networks disagree." if len(known) > 1 else "."
    edges = [10.0**power for power in known[0][1]]
    axes = Axis("Predicted std", number, edges[0], edges[-1], log=True), Axis("Share of examples", percent, 0.0)
    return Figure("std", "Distribution of std", caption, histogram(edges, bars, *axes))
