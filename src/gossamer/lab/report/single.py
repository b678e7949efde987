"""What only the page of one run has: figures of its predictions, examples, and figures of the weights that it left."""

import base64
from collections.abc import Mapping
from typing import Any

from gossamer._text.formats import count, integer, is_number, number, percent
from gossamer._text.terminal import Table
from gossamer.lab.report.charts import DotRow, Series, dots, histogram, line, matrix
from gossamer.lab.report.parts import Axis, Figure, Html, element, png
from gossamer.lab.report.runs import LoadedRun, mapping
from gossamer.lab.report.table import panel

MOST_CLASSES = 32  # of a confusion matrix
_MOST_ROWS = 20  # of what is shown instead
_NORMAL_90 = 1.645  # stds on either side of the mean that hold 90 % of a Gaussian
_DOUBTS = {
    "entropy": ("Entropy", "All uncertainty of a prediction, in nats."),
    "mutual_information": (
        "Mutual information",
        "The part of the entropy on which drawn networks disagree (epistemic).",
    ),
}
_MOST_BARS = 4  # of the probabilities of an example
_EXAMPLES = {
    "surest_mistakes": ("Surest mistakes", "Wrong predictions of the highest confidence."),
    "least_certain": ("Most uncertain", "Predictions of the highest entropy, in nats."),
}


def predictions(run: LoadedRun) -> list[Figure | Html | None]:
    """Those that the result has the numbers for."""
    doubts = [_doubt(run, name, *words) for name, words in _DOUBTS.items()]
    return [_predicted(run), _errors(run), *doubts, _confusion(run)]


def examples(run: LoadedRun) -> list[Html | None]:
    """The surest mistakes and the most uncertain examples: images, or a table of their rows."""
    return [_examples(run, key, *words) for key, words in _EXAMPLES.items()]


def weights(run: LoadedRun) -> list[Figure | None]:
    """Where the active weights are, and how certain each is."""
    return [_density(run), _std_by_layer(run), _snr(run)]


def _predicted(run: LoadedRun) -> Figure | None:
    rows = run.rows("points", "target", "mean", "low90", "high90")
    if not rows:
        return None
    inside = sum(low <= target <= high for target, _, low, high in rows)
    caption = f"With 90\u202f% intervals; {integer(inside)} of the {integer(len(rows))} shown hold the true value."
    ends = [pick(value for row in rows for value in row[:2]) for pick in (min, max)]
    ideal = Series("", [(end, end) for end in ends], kind="reference")
    intervals = [(target, low, high) for target, _, low, high in rows]
    points = Series("examples", [(target, mean) for target, mean, *_ in rows], kind="points", band=intervals)
    return Figure(
        "predicted", "Predicted against true", caption, line([points, ideal], Axis("True"), Axis("Predicted"))
    )


def _errors(run: LoadedRun) -> Figure | None:
    """|residual| against std, and the RMSE of groups of examples with about the same std (Levi et al. 2022)."""
    points = [(std, abs(target - mean)) for target, mean, std in run.rows("points", "target", "mean", "std")]
    if not points:
        return None
    widest = max(std for std, _ in points)
    inside = sum(error <= _NORMAL_90 * std for std, error in points) / len(points)
    caption = (
        "RMSE of groups with about the same std should follow the dashed line, RMSE = std. "
        f"{percent(inside, 0)} of the residuals are within {_NORMAL_90} std."
    )
    ideal, grouped = Series("", [(0.0, 0.0), (widest, widest)], kind="reference"), run.rows("errors", "std", "rmse")
    series = [Series("examples", points, kind="points"), ideal]
    series += [Series("RMSE of groups", sorted((std, rmse) for std, rmse in grouped), 1)] if len(grouped) > 1 else []
    x = Axis("Predicted std", number, min(std for std, _ in points), widest)
    chart = line(series, x, Axis("|true − predicted|", number, 0.0))
    return Figure("residual", "Residual against std", caption, chart)


def _doubt(run: LoadedRun, name: str, title: str, caption: str) -> Figure | None:
    """Counts of right and wrong predictions on a log scale."""
    split = run.curve(name, "edges", "count", "right")
    if split is None or not sum(c for c in split[1] if c > 0) or split[0][-1] < 1e-5:  # as in a single network
        return None
    edges, counts, right = split
    parts = {"right": right, "wrong": [c - r for c, r in zip(counts, right, strict=True)]}
    series = [histogram(key, edges, some, colour) for colour, (key, some) in enumerate(parts.items())]
    log = Axis("Examples", integer, 0.8, max(2.0, max(counts)) * 1.2, log=True)
    chart = line(series, Axis(f"{title}, nats", number), log)
    return Figure(name.replace("_", "-"), f"{title}, right and wrong", caption, chart)


def _confusion(run: LoadedRun) -> Figure | Html | None:
    """The matrix, or a table of the most frequent confusions of many classes."""
    names = run.class_names
    pairs = [(int(a), int(b), int(c)) for a, b, c in run.rows("confusion", "label", "predicted", "count")]
    if not names or not pairs or any(not 0 <= k < len(names) for a, b, _ in pairs for k in (a, b)):
        return None
    wrong = sorted((pair for pair in pairs if pair[0] != pair[1]), key=lambda pair: -pair[2])
    caption = "It makes no mistake on the test data."
    if wrong:
        label, predicted, most = wrong[0]
        caption = f"Most frequent: {integer(most)} × {names[label]} taken for {names[predicted]}."
    if len(names) > MOST_CLASSES:
        rows = [[f"{names[a]} → {names[b]}", integer(n)] for a, b, n in wrong[:_MOST_ROWS]]
        return panel("confusion", Table("Most frequent confusions", caption, ["label → predicted", "Count"], rows))
    counts = [[0] * len(names) for _ in names]
    for label, predicted, n in pairs:
        counts[label][predicted] = n
    return Figure("confusion", "Confusion matrix", f"{caption} Rows are labels.", matrix(counts, names), "rows")


def _layer_name(layer: Mapping[str, Any]) -> str:
    """The name of a layer; a bare number gets its kind before it."""
    name, kind = str(layer.get("name", "")), str(layer.get("kind", ""))
    return f"{kind} {name}".strip() if name.isdigit() or not name else name


def _density(run: LoadedRun) -> Figure | None:
    if not run.layers:
        return None
    active, total = (sum(layer[key] for layer in run.layers) for key in ("active", "total"))
    caption = f"{count(active)} of {count(total)} weights are active, {percent(active / total)}."
    caption += " The rest are exactly zero." if active < total else ""
    rows = []
    for layer in run.layers:
        name, share = _layer_name(layer), min(1.0, layer["active"] / layer["total"])
        hover = f"{name}: {integer(layer['active'])} of {integer(layer['total'])} active, {percent(share)}"
        rows.append(DotRow(name, share, 0.0, share, hover))
    return Figure("layers", "Density of each layer", caption, dots(rows, Axis("Active weights", percent, 0.0)), "rows")


def _std_by_layer(run: LoadedRun) -> Figure | None:
    rows = []
    for layer in run.layers:
        given = layer.get("std_quantiles")
        if isinstance(given, list) and len(given) == 5 and all(is_number(q) and q > 0 for q in given):
            low, first, median, third, high = given
            hover = f"{_layer_name(layer)}: median {number(median)}, 90 % between {number(low)} and {number(high)}"
            rows.append(DotRow(_layer_name(layer), median, low, high, hover, specks=(first, third)))
    if not rows:
        return None
    caption = "Median, quartiles (small dots) and 90\u202f% of the posterior standard deviations σ of the weights."
    log = max(row.high for row in rows) > 3 * min(row.low for row in rows)
    return Figure("layer-std", "σ per layer", caption, dots(rows, Axis("σ", number, log=log)), "rows")


def _snr(run: LoadedRun) -> Figure | None:
    """A histogram of log10 |μ|/σ, without empty ends, on a logarithmic axis."""
    powers, counts = run.curve("snr", "edges", "count") or ([], [])
    total = sum(c for c in counts if c > 0)
    heights = [c / total if c > 0 else 0.0 for c in counts]
    filled = [place for place, height in enumerate(heights) if height > 2e-4]
    if not filled:
        return None
    heights = heights[filled[0] : filled[-1] + 1]
    edges = [10.0**power for power in powers[filled[0] : filled[-1] + 2]]
    below = sum(h for high, h in zip(edges[1:], heights, strict=True) if high <= 1 + 1e-9)
    caption = f"|μ|/σ of the active weights; {percent(below, 0)} are smaller than their own σ."
    axes = Axis("|μ| / σ", number, edges[0], edges[-1], log=True), Axis("Share of active weights", percent, 0.0)
    return Figure("snr", "Signal-to-noise ratio", caption, line([histogram("share", edges, heights)], *axes))


def _examples(run: LoadedRun, key: str, title: str, text: str) -> Html | None:
    given = mapping(run.result.get("examples")).get(key)
    shown = [one for one in given if isinstance(one, Mapping)] if isinstance(given, list) else []
    slug, cards = key.replace("_", "-"), [_example(one, run) for one in shown if "image" in one]
    cards = [card for card in cards if card is not None]
    if not cards:
        rows = [_row(one, run) for one in shown] if not any("image" in one for one in shown) else []
        return panel(slug, Table(title, text, ("Row", "Label", "Predicted", "Confidence"), rows))
    columns = len(cards) if len(cards) <= 6 else 4 if len(cards) in (7, 8) else 5
    grid = element("div", *cards, class_="examples", style=f"--columns:{columns}")
    head = element("figcaption", element("h3", title), element("p", text))
    return element("figure", head, grid, class_="figure wide", id=f"figure-{slug}")


def _row(example: Mapping[str, Any], run: LoadedRun) -> list[str]:
    """An example that is no image, by its row in the test data."""
    probs = example.get("probs")
    sure = max(filter(is_number, probs), default=0.0) if isinstance(probs, list) else 0.0
    names = [_class_name(example.get(key), run) for key in ("label", "predicted")]
    return [str(example.get("row", "")), *names, percent(sure)]


def _example(example: Mapping[str, Any], run: LoadedRun) -> Html | None:
    try:
        data = base64.b64encode(png(example["image"])).decode()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    label, predicted = (_class_name(example.get(key), run) for key in ("label", "predicted"))
    mark, kind = ("✓", "right") if example.get("label") == example.get("predicted") else ("✗", "wrong")
    verdict = [element("b", f"{mark} {predicted}"), element("span", f"label {label}")]
    picture = element("img", src=f"data:image/png;base64,{data}", alt=f"Test image of {label}, taken for {predicted}")
    return element(
        "div",
        picture,
        element("div", *verdict, class_=f"verdict {kind}"),
        _likeliest(example.get("probs"), run),
        class_="example",
    )


def _likeliest(probs: object, run: LoadedRun) -> Html | None:
    """The likeliest classes, with bars of their probabilities."""
    if not isinstance(probs, list):
        return None
    ranked = sorted(((p, place) for place, p in enumerate(probs) if is_number(p)), key=lambda pair: -pair[0])
    rows = []
    for p, place in ranked[:_MOST_BARS]:
        bar = element("i", style=f"--share:{min(1.0, max(0.0, p)):.3f}")
        rows.append(element("li", element("span", _class_name(place, run)), bar, element("span", _rounded(p))))
    return element("ul", *rows, class_="probs") if rows else None


def _rounded(p: float) -> str:
    """Whole percents, but 0 and 100 only if exact."""
    return "<\u202f1\u202f%" if p < 0.01 else ">\u202f99\u202f%" if 0.995 <= p < 1 else percent(p, 0)


def _class_name(place: object, run: LoadedRun) -> str:
    names = run.result.get("class_names")
    if isinstance(names, list) and isinstance(place, int) and 0 <= place < len(names):
        return str(names[place])
    return "" if place is None else str(place)
