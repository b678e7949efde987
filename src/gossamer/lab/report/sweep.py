"""Figures and the table of a sweep: what it found in time, which options matter, which values the best trials have."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from gossamer._text.formats import duration, integer, is_number, number, percent
from gossamer.lab.record.sweep import SweepRecord, TrialRecord
from gossamer.lab.report.axes import Axis, Scale, log_ticks, nice_ticks, tick_labels
from gossamer.lab.report.charts import Cell, Chart, Mark, Point, Series, Words, line, scatter
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.markup import Html, element
from gossamer.lab.report.parallel import Row, Upright, parallel
from gossamer.lab.report.rows import BarRow, bars
from gossamer.metrics import METRICS

BEST_SHARE = 0.2  # of the trials, drawn in colour in the parallel coordinates
COLOURS = {"finished": 0, "pruned": 1, "best": 2}
RANGE = re.compile(r"(log:)?(\S+?)\.\.(\S+)")
WIDE = 5.0  # times the smallest value is the largest: from here on an axis is logarithmic


def figures(record: SweepRecord) -> list[Figure]:
    """History, curves of the trials, importances and parallel coordinates, as far as there are trials for them."""
    ended = [one for one in record.trials if one.state in ("finished", "pruned") and is_number(one.objective)]
    if len(ended) < 2:
        return []
    found = [
        _history(record, ended),
        _curves(record),
        _importances(record),
        _slice(record, ended),
        _parallel(record, ended),
    ]
    return [figure for figure in found if figure is not None]


def table(record: SweepRecord, folder: Path, beside: Path) -> Html:
    """A row per trial of the sweep in a folder; headings sort. Links are relative to the file ``beside``."""
    metric = METRICS[record.metric]
    names = ["Trial", "State", f"{metric.label}, held out", *record.space, "Epochs", "Time", "Seed"]
    heads = [
        element("th", element("button", name, type="button"), scope="col", class_="text" if name == "Trial" else None)
        for name in names
    ]
    bodies = [
        element("tbody", element("tr", *_cells(one, record, names, _address(folder / one.folder, beside))))
        for one in record.trials
    ]
    inner = element("table", element("thead", element("tr", *heads)), *bodies, class_="sortable")
    return element("div", inner, class_="scroll", tabindex="0", role="region", aria_label="All trials")


def _address(run: Path, beside: Path) -> str | None:
    """That of the report of a run, where it has one."""
    report = run / "report.html"
    if not report.is_file():
        return None
    return quote(Path(os.path.relpath(report.resolve(), beside.resolve().parent)).as_posix())


def _cells(one: TrialRecord, record: SweepRecord, names: Sequence[str], address: str | None) -> list[Html]:
    metric, best = METRICS[record.metric], record.best
    title = element("a", str(one.number), href=address) if address else str(one.number)
    head = element("th", element("span", title, class_="fold plain"), scope="row", data_value=str(one.number))
    class_ = "best" if best is not None and best.number == one.number else None
    cells: list[tuple[str, Any]] = [
        (one.state, one.state),
        (metric.format(one.objective) if is_number(one.objective) else "–", one.objective),
        *((_text(one.values.get(name)), one.values.get(name)) for name in record.space),
        (integer(one.epochs[-1][0]) if one.epochs else "–", one.epochs[-1][0] if one.epochs else None),
        (duration(one.seconds) if one.seconds else "–", one.seconds),
        (str(one.seed), one.seed),
    ]
    return [head] + [
        element(
            "td", text, data_value=f"{value:.17g}" if is_number(value) else _text(value), data_label=name, class_=class_
        )
        for name, (text, value) in zip(names[1:], cells, strict=True)
    ]


def searched(text: str) -> str:
    """Where a value was searched, in words.

    Example:
        >>> searched("log:0.0001..0.1"), searched("1..4"), searched("snr_abs,magnitude")
        ('from 0.0001 to 0.1, on a log scale', 'from 1 to 4', 'snr_abs or magnitude')
    """
    found = RANGE.fullmatch(text)
    if found is None:
        *some, last = _choices(text)
        return f"{', '.join(some)} or {last}" if some else last
    span = f"from {number(float(found[2]))} to {number(float(found[3]))}"
    return f"{span}, on a log scale" if found[1] else span


def _choices(text: str) -> list[str]:
    return re.split(r",(?![^\[]*\])", text)


def failures(record: SweepRecord) -> list[Html]:
    """What went wrong, by trial."""
    failed = [one for one in record.trials if one.failure]
    items = [element("li", element("b", f"Trial {one.number}"), element("span", one.failure)) for one in failed]
    return [element("ul", *items, class_="legend list wide")] if items else []


def _history(record: SweepRecord, ended: Sequence[TrialRecord]) -> Figure:
    """The objective of each trial, and the best so far."""
    metric, best = METRICS[record.metric], record.best
    sign = -1 if record.better == "higher" else 1
    steps, marks = list[Point](), list[Mark]()
    for one in ended:
        value, hover = one.objective or 0.0, f"Trial {one.number}, {one.state}: {metric.format(one.objective or 0.0)}"
        is_best = best is not None and one.number == best.number
        kind = "best" if is_best else one.state
        marks.append(Mark(one.number, value, "best" if is_best else "", hover, COLOURS[kind], 0.09 if is_best else 0.0))
        if one.state == "finished" and (not steps or sign * value < sign * steps[-1][1]):
            steps.append((one.number, value))
    y = Axis(f"{metric.label}, held out", metric.format, log=_is_wide([mark.y for mark in marks]))
    words = Words("history", "History", f"{metric.label} of the held-out examples by trial.")
    names = [(name, COLOURS[name]) for name in ("finished", "pruned") if any(one.state == name for one in ended)]
    chart = scatter(marks, Axis("Trial", integer), y, words, steps, names)
    return Figure("history", "History", "Each dot is a trial; the dashed line is the best that has finished.", chart)


def _curves(record: SweepRecord) -> Figure | None:
    metric, best = METRICS[record.metric], record.best
    series = []
    for one in record.trials:
        points = [(float(epoch), float(value)) for epoch, value in one.epochs if is_number(value)]
        kind = "best" if best is not None and one.number == best.number else one.state
        if kind in COLOURS and len(points) > 1:
            series.append(Series(kind, points, COLOURS[kind], "line" if kind == "best" else "thin"))
    if len(series) < 2:
        return None
    series.sort(key=lambda one: one.label == "best")  # drawn last, on top
    y = Axis(f"{metric.label}, held out", metric.format, log=_is_wide([y for one in series for _, y in one.points]))
    words = Words("curves", "Trials by epoch", f"{metric.label} of the held-out examples after each epoch, by trial.")
    chart = line(series, Axis("Epoch", integer), y, words, direct=False)
    return Figure("curves", "Trials by epoch", "Of the network at its means; pruned trials end early.", chart)


def _importances(record: SweepRecord) -> Figure | None:
    if not record.importances:
        return None
    rows = [
        BarRow(name, share, percent(share), f"{name}: {percent(share)}") for name, share in record.importances.items()
    ]
    words = Words("importances", "Which options matter", "Shares of the variance of the objective by option.")
    said = "Share of the variance of the objective that an option explains alone (fANOVA), among the finished trials."
    return Figure("importances", "Which options matter", said, bars(rows, words, ("option", "share")), "rows")


def _slice(record: SweepRecord, ended: Sequence[TrialRecord]) -> Figure | None:
    """The objective against the range that matters most."""
    name = next((one for one in record.importances if RANGE.fullmatch(record.space[one])), None)
    if name is None:
        return None
    metric, best, marks = METRICS[record.metric], record.best, list[Mark]()
    for one in ended:
        is_best = best is not None and one.number == best.number
        at, colour = (one.values[name], one.objective or 0.0), COLOURS["best" if is_best else one.state]
        marks.append(Mark(*at, "best" if is_best else "", _told(one, metric.format), colour, 0.09 if is_best else 0.0))
    x = Axis(name, number, log=record.space[name].startswith("log:"))
    y = Axis(f"{metric.label}, held out", metric.format, log=_is_wide([mark.y for mark in marks]))
    words = Words("slice", f"By {name}", f"{metric.label} of the held-out examples against {name}, by trial.")
    names = [(state, COLOURS[state]) for state in ("finished", "pruned") if any(one.state == state for one in ended)]
    return Figure(
        "slice", f"By {name}", "Of the ranges, the one that matters most.", scatter(marks, x, y, words, (), names)
    )


def _parallel(record: SweepRecord, ended: Sequence[TrialRecord]) -> Figure | None:
    """A line per trial through its values, the best in colour."""
    metric = METRICS[record.metric]
    whole = [one for one in ended if record.space.keys() <= one.values.keys()]
    if len(whole) < 2:
        return None
    values = [one.objective or 0.0 for one in whole]
    axes = [_upright(name, text, [one.values[name] for one in whole]) for name, text in record.space.items()]
    axes.append(_numeric(metric.label, min(values), max(values), _is_wide(values), metric.format))
    sign = -1 if record.better == "higher" else 1
    ranked = sorted(whole, key=lambda one: sign * (one.objective or 0.0), reverse=True)  # the best drawn last
    best = {one.number for one in ranked[-max(1, round(BEST_SHARE * len(ranked))) :]}
    lines = [
        Row(
            [*(one.values[name] for name in record.space), one.objective],
            _told(one, metric.format),
            COLOURS["best" if one.number in best else "finished"],
            one.number in best,
        )
        for one in ranked
    ]
    words = Words("parallel", "Values of the trials", "A line per trial through its values and its objective.")
    heads = ("trial", *record.space, record.metric)
    cells: list[tuple[Cell, ...]] = [
        (str(one.number), *(_cell(one.values[name]) for name in record.space), one.objective or 0.0) for one in whole
    ]
    said = (
        f"A line per trial through the values that it tried, to the {metric.label} that it reached on the held-out "
        f"examples ({record.better} is better). The best {percent(BEST_SHARE, 0)} are in colour."
    )
    return Figure("parallel", "Values of the trials", said, Chart(parallel(axes, lines, words), heads, cells), "wide")


def _upright(name: str, text: str, values: Sequence[Any]) -> Upright:
    found = RANGE.fullmatch(text)
    if found is not None:
        whole = all(isinstance(value, int) for value in values)
        return _numeric(name, float(found[2]), float(found[3]), bool(found[1]), integer if whole else number)
    known = _choices(text)
    share = 1 / max(1, len(known) - 1)
    places = {one: k * share for k, one in enumerate(known)}
    return Upright(name, lambda value: places[_key(value)], [(places[one], one) for one in known], are_words=True)


def _numeric(name: str, low: float, high: float, log: bool, form: Callable[[float], str]) -> Upright:
    high = high if high > low else low + (abs(low) or 1.0)
    scale = Scale(low, high, 0.0, 1.0, log)
    ticks = log_ticks(low, high) if log else [tick for tick in nice_ticks(low, high, 4) if low <= tick <= high]
    powers = [tick for tick in ticks if log and math.log10(tick) == round(math.log10(tick))]
    ticks = powers if len(powers) > 2 else ticks  # lines run through the others
    ticks = [tick for tick in ticks if form is not integer or float(tick).is_integer()]
    labels = zip(ticks, tick_labels(ticks, form), strict=True)
    return Upright(name, lambda value: scale(value), [(scale(tick), text) for tick, text in labels])


def _told(one: TrialRecord, form: Callable[[float], str]) -> str:
    values = ", ".join(f"{name} {_text(value)}" for name, value in one.values.items())
    return f"Trial {one.number}, {one.state}: {form(one.objective or 0.0)} with {values}"


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > WIDE * min(values)


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(value: Any) -> str:
    return number(value) if is_number(value) else "–" if value is None else _key(value)


def _cell(value: Any) -> Cell:
    return float(value) if is_number(value) and math.isfinite(value) else _text(value)
