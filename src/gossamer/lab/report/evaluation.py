"""What ``gossamer evaluate`` measured after a training: other inputs, and what held-out examples add to a run."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gossamer._text.formats import Format, integer, is_number, number, percent
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Bars, histogram
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.markup import Html
from gossamer.lab.report.runs import LoadedRun, mapping
from gossamer.lab.report.table import panel
from gossamer.metrics import METRICS, shown

MEASURES = ("auroc", "aupr_out", "aupr_in", "fpr95")
SCORES = {
    "entropy": "Entropy, nats",
    "mutual_information": "Mutual information, nats",
    "std": "Std, target standardised",
    "epistemic_std": "Epistemic std, target standardised",
}
"""Scores that get a figure, and their axes; the table has the others, too."""

_COLLAPSED = 0.01  # a factor of the variances below which draws are all but equal

_KINDS = {
    "lac": "least ambiguous sets",
    "aps": "adaptive sets",
    "predicted": "as predicted",
    "scaled": "std scaled",
    "shifted": "ends shifted",
}
"""Ways to make conformal sets or intervals, in words."""


def detections(run: LoadedRun) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Set, score and what was measured of it."""
    return [
        (str(name), str(score), values)
        for name, content in mapping(run.evaluation.get("ood")).items()
        for score, values in mapping(mapping(content).get("scores")).items()
        if isinstance(values, Mapping)
    ]


def outside(run: LoadedRun) -> list[Figure | Html | None]:
    """Histograms of the scores of the test data and of inputs from outside, and a table of every set and score."""
    drawn = [one for one in detections(run) if one[1] in SCORES]
    figures = [_histogram(*one, f"ood-{place}") for place, one in enumerate(drawn)]
    rows = [[f"{name}, {score.replace('_', ' ')}", *(_told(values.get(key), METRICS[key].format) for key in MEASURES)]
            for name, score, values in detections(run) if any(map(is_number, map(values.get, MEASURES)))]  # fmt: skip
    heads = {"Outside, by score": "", **{METRICS[key].label: METRICS[key].meaning for key in MEASURES}}
    return [*figures, panel("ood-scores", "All scores", "", heads, rows)]


def held_out(run: LoadedRun) -> list[Html | None]:
    """Calibration, conformal sets or intervals, and the right to abstain, as held-out examples chose them."""
    return [_calibration(run), _temperature(run), _conformal(run), _selective(run)]


def corrupted(run: LoadedRun) -> list[Html | None]:
    """For each source of corrupted images the metrics of a comparison, by severity."""
    sources = mapping(run.evaluation.get("corruptions"))
    return [_severities(str(name), mapping(entry)) for name, entry in sources.items()]


def _histogram(name: str, score: str, values: Mapping[str, Any], slug: str) -> Figure | None:
    edges, sides = values.get("edges"), {"test data": values.get("count_in"), name: values.get("count_out")}
    if not isinstance(edges, list) or not all(isinstance(counts, list) and len(counts) == len(edges) - 1 and sum(counts)
                                              for counts in sides.values()):  # fmt: skip
        return None
    if not edges[-1] - edges[0] > 1e-5:  # a single network has no mutual information
        return None
    bars, least = [], 1.0
    for colour, (label, counts) in enumerate(sides.items()):
        total = sum(counts or ())
        texts = [f"{integer(n)} of {integer(total)}, {label}" for n in counts or ()]
        bars.append(Bars(label, [n / total for n in counts or ()], texts, colour))
        least = min(least, 1 / total)
    told = [f"{METRICS[key].label} {_told(values[key], METRICS[key].format)}" for key in ("auroc", "fpr95")
            if is_number(values.get(key))]  # fmt: skip
    axis = Axis(SCORES[score], number)
    shares = Axis("Share of examples", percent, 0.7 * least, 1.0, log=True)
    title = f"{axis.label.partition(',')[0]}: test data and {name}"
    return Figure(slug, title, f"{', '.join(told)}." if told else "", histogram(edges, bars, axis, shares))


def _calibration(run: LoadedRun) -> Html | None:
    """The width of the posterior and the temperature of the logits that ended the training."""
    known = mapping(run.result.get("calibration"))
    if not all(is_number(known.get(key)) for key in ("temperature", "nll_before", "nll_after")):
        return None
    rows = [
        ["Variances of the weights times", number(known["temperature"])],
        ["Logits divided by", _told(known.get("logit_temperature"), number)],
        *([f"NLL of held-out examples {when}", number(known[f"nll_{when}"])] for when in ("before", "after")),
    ]
    caption = "Chosen at the end of the training; every prediction of this run uses it."
    if known["temperature"] < _COLLAPSED:
        caption += " So small a factor leaves almost one network: what the draws disagreed on is given up."
    return panel("calibration", "Calibration", caption, {"": "", "Value": ""}, rows)


def _temperature(run: LoadedRun) -> Html | None:
    entry = mapping(mapping(run.evaluation.get("temperature")).get("val"))
    before, after = mapping(entry.get("before")), mapping(entry.get("after"))
    if not is_number(entry.get("temperature")):
        return None
    rows = [
        [one.label, *(_told(values.get(one.name), one.format) for values in (before, after))]
        for one in shown("terminal")
        if one.name in before
    ]
    heads = {"On the test data": "", "As it is": "", f"Logits ÷ {number(entry['temperature'])}": ""}
    caption = f"One divisor of the logits, fitted to {integer(entry.get('n_val', 0))} held-out examples."
    return panel("temperature", "Temperature scaling", caption, heads, rows)


def _conformal(run: LoadedRun) -> Html | None:
    rows, is_class = [], False
    for level, entry in mapping(run.evaluation.get("conformal")).items():
        for kind, values in mapping(mapping(entry).get("kinds")).items():
            is_class = "mean_size" in values
            size = _told(values.get("mean_size", values.get("mean_width")), number)
            rows.append([f"{level}, {_KINDS.get(kind, kind)}", _told(values.get("coverage"), percent), size])
    things, size = ("sets of classes", "Mean size") if is_class else ("intervals", "Mean width")
    caption = f"Held-out examples choose how large the {things} are; covered is the share of the test data they hold."
    return panel("conformal", f"Conformal {things}", caption, {"Promised": "", "Covered": "", size: ""}, rows)


def _selective(run: LoadedRun) -> Html | None:
    rows, risk = [], None
    for score, entry in mapping(run.evaluation.get("selective")).items():
        chosen = mapping(mapping(entry).get("selection"))
        risk = chosen.get("risk", risk)
        parts = (entry, "aurc"), (entry, "excess_aurc"), (chosen, "coverage"), (chosen, "error")
        rows.append([score.replace("_", " "), *(_told(mapping(part).get(key), percent) for part, key in parts)])
    heads = {"Doubt by": "", "AURC": METRICS["aurc"].meaning, "Excess": "Above the AURC of the best order."}
    caption = "AURC: mean error over all shares of examples answered, the surest first; excess: above the best order."
    if is_number(risk):
        heads |= {"Answered": "Share of the test data.", "Wrong": "Share of the answers."}
        caption += f" A threshold that held-out examples chose keeps wrong answers below {percent(risk)}."
    return panel("selection", "Abstaining when in doubt", caption, heads, [row[: len(heads)] for row in rows])


def _severities(name: str, entry: Mapping[str, Any]) -> Html | None:
    clean, kinds = mapping(entry.get("clean")), list(mapping(entry.get("corruptions")).values())
    rows = []
    for metric in (one for one in shown("comparison") if one.name in clean):
        means = [fmean(values) for values in zip(*(kind[metric.name] for kind in kinds), strict=True)]
        rows.append([metric.label, *(_told(value, metric.format) for value in (clean[metric.name], *means))])
    heads = dict.fromkeys(["", "Clean", *(f"Severity {k + 1}" for k in range(len(rows[0]) - 2))] if rows else [], "")
    caption = f"Means over {len(kinds)} corruptions of the test images."
    return panel(f"corrupted-{name}", f"Corrupted images, {name}", caption, heads, rows)


def _told(value: object, form: Format) -> str:
    return form(value) if is_number(value) else "–"
