"""The page of a sweep: its best trial, what it found in time, which options matter, all trials."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gossamer._text.formats import Format, duration, integer, is_number, number, percent
from gossamer.lab.record import write_atomically
from gossamer.lab.report import write_report
from gossamer.lab.report.charts import DotRow, Mark, Series, dots, line, scatter
from gossamer.lab.report.page import card, document, headline, section
from gossamer.lab.report.parts import Axis, Chart, Figure, Html, Point, element, join
from gossamer.lab.report.table import address, heading, sortable
from gossamer.metrics import METRICS
from gossamer_sweep.record import RANGE, SweepRecord, TrialRecord

COLOURS = {"finished": 0, "pruned": 1, "best": 2}
WIDE = 5.0  # times the smallest value is the largest: from here on an axis is logarithmic


def write_sweep(folder: Path, out: Path | None = None) -> Path:
    """Write the page of a sweep from its ``sweep.json``, and the report of its best trial, as far as they are here.

    Args:
        folder: The folder of the sweep.
        out: The file; ``report.html`` in the folder if not given.
    """
    record = SweepRecord.read(folder)
    best, out = record.best, out or folder / "report.html"
    out = out / "report.html" if out.is_dir() else out
    if best is not None and (folder / best.folder / "config.toml").exists():
        write_report([folder / best.folder], folder / best.folder)
    write_atomically(out, document(*_sweep(record, folder, out)))
    return out


def _sweep(record: SweepRecord, folder: Path, out: Path) -> tuple[str, Html]:
    title = f"Sweep of {record.method} on {record.data}"
    states = [f"{n} {state}" for state in ("finished", "pruned", "failed", "running") if (n := record.count(state))]
    seconds = sum(one.seconds or 0.0 for one in record.trials)
    took = [f"{duration(seconds)} of training"] if seconds else []
    subtitle = " · ".join([record.study, f"{len(record.trials)} of {record.asked} trials", *states, *took])
    again = element("pre", element("code", record.command), class_="command wide")
    parts = [
        element("header", element("h1", title), element("p", subtitle, class_="subtitle")),
        headline(_best(record)),
        section("Search", figures(record), "All by the held-out examples; the test data have chosen nothing."),
        section("All trials", [table(record, folder, out)], "A heading sorts."),
        section("Failures", failures(record)),
        section("Train the best on all training data", [again]) if record.command else None,
    ]
    return title, join(parts)


def _best(record: SweepRecord) -> list[Html]:
    """The best trial: what it reached, and its values."""
    best, metric = record.best, METRICS[record.metric]
    if best is None:
        return []
    label = f"Best {metric.label}, held out"
    cards = [card(record.metric, metric.format(best.objective or 0.0), f"Trial {best.number}.", label=label)]
    for name, value in best.values.items():
        text = number(value) if is_number(value) else str(value)
        where = element("p", f"Searched: {searched(record.space[name])}.", class_="meaning")
        cards.append(element("div", element("h3", name), element("p", text, class_="value"), where, class_="card"))
    return cards


def figures(record: SweepRecord) -> list[Figure | None]:
    """History, curves of the trials, importances, and each range, as far as there are trials for them."""
    ended = [one for one in record.trials if one.state in ("finished", "pruned") and is_number(one.objective)]
    if len(ended) < 2:
        return []
    ranges = [name for name, text in record.space.items() if RANGE.fullmatch(text)]
    by_importance = sorted(ranges, key=lambda name: -record.importances.get(name, 0.0))
    slices = [_slice(record, ended, name) for name in by_importance]
    return [_history(record, ended), _curves(record), _importances(record), *slices]


def table(record: SweepRecord, folder: Path, beside: Path) -> Html:
    """A row per trial of the sweep in a folder; headings sort. Links are relative to the file ``beside``."""
    metric, best = METRICS[record.metric], record.best
    names = ["State", f"{metric.label}, held out", *record.space, "Epochs", "Time", "Seed"]
    bodies = []
    for one in record.trials:
        epochs = one.epochs[-1][0] if one.epochs else None
        values: list[tuple[Any, Format]] = [
            (one.state, str),
            (one.objective, metric.format),
            *((one.values.get(name), number) for name in record.space),
            (epochs, integer),
            (one.seconds or None, duration),
            (one.seed, str),
        ]
        link, class_ = address(folder / one.folder, beside), "best" if best and best.number == one.number else None
        title = element("a", str(one.number), href=link) if link else str(one.number)
        head = element("th", element("span", title, class_="fold plain"), scope="row", data_value=str(one.number))
        cells = [
            element(
                "td",
                form(value) if is_number(value) else _text(value),
                data_value=f"{value:.17g}" if is_number(value) else _text(value),
                data_label=name,
                class_=class_,
            )
            for name, (value, form) in zip(names, values, strict=True)
        ]
        bodies.append(element("tbody", element("tr", head, *cells)))
    return sortable([heading("Trial", class_="text"), *map(heading, names)], bodies, "All trials")


def searched(text: str) -> str:
    """Where a value was searched, in words.

    Example:
        >>> searched("log:0.0001..0.1"), searched("1..4"), searched("snr_abs,magnitude")
        ('from 0.0001 to 0.1, on a log scale', 'from 1 to 4', 'snr_abs or magnitude')
    """
    span = RANGE.fullmatch(text)
    if span is None:
        *some, last = re.split(r",(?![^\[]*\])", text)  # not inside of a list
        return f"{', '.join(some)} or {last}" if some else last
    words = f"from {number(float(span[2]))} to {number(float(span[3]))}"
    return f"{words}, on a log scale" if span[1] else words


def failures(record: SweepRecord) -> list[Html]:
    """What went wrong, by trial."""
    failed = [one for one in record.trials if one.failure]
    items = [element("li", element("b", f"Trial {one.number}"), element("span", one.failure)) for one in failed]
    return [element("ul", *items, class_="legend list wide")] if items else []


def _history(record: SweepRecord, ended: Sequence[TrialRecord]) -> Figure:
    """The objective of each trial, and the best so far."""
    sign, steps = -1 if record.better == "higher" else 1, list[Point]()
    for one in ended:
        value = one.objective or 0.0
        if one.state == "finished" and (not steps or sign * value < sign * steps[-1][1]):
            steps.append((one.number, value))
    chart = _scatter(record, ended, lambda one: one.number, Axis("Trial", integer), steps)
    return Figure("history", "History", "Each dot is a trial; the dashed line is the best that has finished.", chart)


def _slice(record: SweepRecord, ended: Sequence[TrialRecord], name: str) -> Figure:
    """The objective against one of the ranges."""
    x = Axis(name, number, log=record.space[name].startswith("log:"))
    chart = _scatter(record, ended, lambda one: float(str(one.values[name])), x)
    return Figure(f"by-{name.replace('_', '-')}", f"By {name}", f"{record.better.capitalize()} is better.", chart)


def _scatter(
    record: SweepRecord,
    ended: Sequence[TrialRecord],
    x_of: Callable[[TrialRecord], float],
    x: Axis,
    steps: Sequence[Point] = (),
) -> Chart:
    """The objective of each trial against something; the best is named."""
    marks, y = list[Mark](), _objective(record, [one.objective or 0.0 for one in ended])
    for one in ended:
        kind = _kind(one, record)
        name = "best" if kind == "best" else ""
        marks.append(Mark(x_of(one), one.objective or 0.0, name, _told(one, y.form), COLOURS[kind]))
    names = [(state, COLOURS[state]) for state in ("finished", "pruned") if any(one.state == state for one in ended)]
    return scatter(marks, x, y, steps, names)


def _curves(record: SweepRecord) -> Figure | None:
    series = []
    for one in record.trials:
        points = [(float(epoch), float(value)) for epoch, value in one.epochs if is_number(value)]
        kind = _kind(one, record)
        if kind in COLOURS and len(points) > 1:
            series.append(Series(kind, points, COLOURS[kind], "line" if kind == "best" else "thin"))
    if len(series) < 2:
        return None
    series.sort(key=lambda one: one.label == "best")  # drawn last, on top
    y = _objective(record, [height for one in series for _, height in one.points])
    chart = line(series, Axis("Epoch", integer), y)
    return Figure("curves", "Trials by epoch", "Of the network at its means; pruned trials end early.", chart)


def _importances(record: SweepRecord) -> Figure | None:
    if not record.importances:
        return None
    rows = [DotRow(name, share, 0.0, share, f"{name}: {percent(share)}") for name, share in record.importances.items()]
    said = "Share of the variance of the objective that an option explains alone (fANOVA), among the finished trials."
    return Figure("importances", "Which options matter", said, dots(rows, Axis("Share", percent, 0.0)), "rows")


def _objective(record: SweepRecord, values: Sequence[float]) -> Axis:
    metric = METRICS[record.metric]
    return Axis(f"{metric.label}, held out", metric.format, log=_is_wide(values))


def _kind(one: TrialRecord, record: SweepRecord) -> str:
    return "best" if record.best is not None and one.number == record.best.number else one.state


def _told(one: TrialRecord, form: Format) -> str:
    values = ", ".join(f"{name} {_text(value)}" for name, value in one.values.items())
    return f"Trial {one.number}, {one.state}: {form(one.objective or 0.0)} with {values}"


def _is_wide(values: Sequence[float]) -> bool:
    return min(values) > 0 and max(values) > WIDE * min(values)


def _text(value: Any) -> str:
    if is_number(value):
        return number(value)
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value)
