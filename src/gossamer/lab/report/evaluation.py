"""What ``gossamer evaluate`` measured after a training: its tables, which the command prints, too, and its figures."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from gossamer._text.formats import Format, integer, is_number, number, percent
from gossamer._text.terminal import Table
from gossamer.lab.report.charts import histogram, line
from gossamer.lab.report.parts import Axis, Figure, Html
from gossamer.lab.report.runs import LoadedRun, mapping
from gossamer.lab.report.table import panel
from gossamer.metrics import METRICS, Detection, shown

SCORES = {
    "entropy": "Entropy, nats",
    "mutual_information": "Mutual information, nats",
    "std": "Std, target standardised",
    "epistemic_std": "Epistemic std, target standardised",
}
"""Scores that get a figure, and their axes; the table has the others, too."""

COVERAGES = (1.0, 0.95, 0.9, 0.8, 0.5)  # of the table of abstaining
_COLLAPSED = 0.01  # a factor of the variances below which draws are all but equal

_KINDS = {
    "lac": "least ambiguous sets",
    "aps": "adaptive sets",
    "predicted": "intervals of the draws",
    "scaled": "with std scaled",
    "shifted": "with ends shifted",
}
"""Ways to make conformal sets or intervals, in words."""


def ood_table(found: Mapping[str, Any]) -> Table:
    """How well each score of doubt finds each set from outside."""
    rows = [
        [name, score.replace("_", " "), *(_told(values.get(key), METRICS[key].format) for key in Detection._fields)]
        for name, score, values in detections(found)
        if any(map(is_number, map(values.get, Detection._fields)))
    ]
    heads = [METRICS[key].heading for key in Detection._fields]
    return Table("All scores", "", ["out of distribution", "score", *heads], rows, n_labels=2)


def corruption_tables(found: Mapping[str, Any]) -> list[Table]:
    """For each source the main metric of each corruption, and the means of all metrics by severity."""
    return [table for name, entry in found.items() for table in _severities(str(name), mapping(entry))]


def temperature_table(found: Mapping[str, Any]) -> Table:
    """Metrics without and with the divisor of the logits that fits the held-out examples."""
    entry = mapping(found.get("val"))
    before, after = mapping(entry.get("before")), mapping(entry.get("after"))
    metrics = [metric for metric in shown("terminal") if metric.name in before]
    ways = {1.0: before, entry["temperature"]: after} if "temperature" in entry else {}
    rows = [
        [number(divisor), *(_told(values.get(metric.name), metric.format) for metric in metrics)]
        for divisor, values in ways.items()
    ]
    note = f"On the test data; fitted to {integer(entry.get('n_val', 0))} held-out examples."
    heads = ["temperature of the logits", *(metric.heading for metric in metrics)]
    return Table("Temperature scaling", note, heads, rows, n_labels=0)


def conformal_table(found: Mapping[str, Any]) -> Table:
    """Coverage and size of conformal sets or intervals on the test data."""
    rows, size, kinds = [], "mean_width", dict[str, None]()
    for level, entry in found.items():
        for kind, values in mapping(mapping(entry).get("kinds")).items():
            size, kinds[kind] = "mean_size" if "mean_size" in values else "mean_width", None
            cells = _told(values.get("coverage"), percent), _told(values.get(size), number)
            rows.append([percent(float(level)), kind, *cells])
    note = "Held-out examples chose their sizes. " + "; ".join(f"{kind}: {_KINDS.get(kind, kind)}" for kind in kinds)
    title = "Conformal sets of classes" if size == "mean_size" else "Conformal intervals"
    return Table(title, f"{note}.", ["promised", "kind", "covered", size.replace("_", " ")], rows, n_labels=2)


def selective_table(found: Mapping[str, Any]) -> Table:
    """Accuracy on the examples about which the network is surest, by score of doubt."""
    rows, risk = [], None
    for name, entry in found.items():
        # The curve is thinned, so the nearest point stands for the coverage.
        points = list(zip(entry.get("coverage", ()), entry.get("accuracy", ()), strict=True))
        nearest = [min(points, key=lambda point: abs(point[0] - share))[1] for share in COVERAGES] if points else []
        cells = [*(nearest or [None] * len(COVERAGES)), entry.get("aurc"), entry.get("excess_aurc")]
        if chosen := entry.get("selection"):
            risk = chosen.get("risk")
            cells += [chosen.get("coverage"), chosen.get("error")]
        rows.append([name.replace("_", " "), *(_told(value, percent) for value in cells)])
    heads = ["accuracy on the surest", *(f"{share:.0%}" for share in COVERAGES), "AURC", "excess"]
    heads += [] if risk is None else [f"answered (risk {risk:g})", "wrong"]
    note = "AURC: mean error over all shares of examples answered, the surest first; excess: above the best order."
    return Table("Abstaining when in doubt", note, heads, [[*row, *["–"] * (len(heads) - len(row))] for row in rows])


def mean_by_severity(entry: Mapping[str, Any], metric: str) -> list[float]:
    """Mean of a metric over the corruptions of a source, for each severity."""
    columns = zip(*(values[metric] for values in entry["corruptions"].values()), strict=True)
    return [fmean(column) for column in columns]


def detections(found: object) -> list[tuple[str, str, Mapping[str, Any]]]:
    """Set, score and what was measured of it."""
    return [
        (str(name), str(score), values)
        for name, content in mapping(found).items()
        for score, values in mapping(mapping(content).get("scores")).items()
        if isinstance(values, Mapping)
    ]


def outside(run: LoadedRun) -> list[Figure | Html | None]:
    """Histograms of the scores of the test data and of inputs from outside, and a table of every set and score."""
    found = mapping(run.evaluation.get("ood"))
    drawn = [one for one in detections(found) if one[1] in SCORES]
    figures = [_histogram(*one, f"ood-{place}") for place, one in enumerate(drawn)]
    return [*figures, panel("ood-scores", ood_table(found))]


def held_out(run: LoadedRun) -> list[Html | None]:
    """Calibration, conformal sets or intervals, and the right to abstain, as held-out examples chose them."""
    return [
        _calibration(run),
        panel("temperature", temperature_table(mapping(run.evaluation.get("temperature")))),
        panel("conformal", conformal_table(mapping(run.evaluation.get("conformal")))),
        panel("selection", selective_table(mapping(run.evaluation.get("selective")))),
    ]


def corrupted(run: LoadedRun) -> list[Html | None]:
    """The tables of corrupted images."""
    tables = corruption_tables(mapping(run.evaluation.get("corruptions")))
    return [panel(f"corrupted-{place}", table) for place, table in enumerate(tables)]


def _histogram(name: str, score: str, values: Mapping[str, Any], slug: str) -> Figure | None:
    edges, sides = values.get("edges"), {"test data": values.get("count_in"), name: values.get("count_out")}
    if not isinstance(edges, list) or not all(isinstance(counts, list) and len(counts) == len(edges) - 1 and sum(counts)
                                              for counts in sides.values()):  # fmt: skip
        return None
    if not edges[-1] - edges[0] > 1e-5:  # a single network has no mutual information
        return None
    totals = [sum(counts or ()) for counts in sides.values()]
    series = [
        histogram(label, edges, [n / total for n in counts or ()], colour)
        for colour, (total, (label, counts)) in enumerate(zip(totals, sides.items(), strict=True))
    ]
    told = [f"{METRICS[key].label} {_told(values[key], METRICS[key].format)}" for key in ("auroc", "fpr95")
            if is_number(values.get(key))]  # fmt: skip
    axis = Axis(SCORES[score], number)
    shares = Axis("Share of examples", percent, 0.7 / max(totals), 1.0, log=True)
    title = f"{axis.label.partition(',')[0]}: test data and {name}"
    return Figure(slug, title, f"{', '.join(told)}." if told else "", line(series, axis, shares))


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
    if is_number(n := mapping(run.result.get("second_training")).get("n_held_out")):
        caption += f" By {n:,} examples that a second training did not see: this one saw all."
    if known["temperature"] < _COLLAPSED:
        caption += " So small a factor leaves almost one network: what the draws disagreed on is given up."
    return panel("calibration", Table("Calibration", caption, ["", "Value"], rows))


def _severities(name: str, entry: Mapping[str, Any]) -> list[Table]:
    clean, rows = mapping(entry.get("clean")), mapping(entry.get("corruptions"))
    metrics = [metric for metric in shown("comparison") if metric.name in clean]
    if not metrics or not rows:
        return []
    main, means = METRICS[next(iter(clean))], []
    of_each = [[str(kind), *map(main.format, values[main.name])] for kind, values in rows.items()]
    for metric in metrics:
        means.append([metric.heading, *map(metric.format, (clean[metric.name], *mean_by_severity(entry, metric.name)))])
    severities = [f"severity {k + 1}" for k in range(len(of_each[0]) - 1)]
    note = f"Means over {len(rows)} corruptions of the test images."
    return [
        Table(f"{main.label} on corrupted images, {name}", "", [f"{main.heading}, {name}", *severities], of_each),
        Table(f"Corrupted images, {name}", note, ["mean over corruptions", "clean", *severities], means),
    ]


def _told(value: object, form: Format) -> str:
    return form(value) if is_number(value) else "–"
