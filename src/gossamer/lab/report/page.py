"""The page, for one run and for several: its layout, and its parts without a chart."""

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import quote

from gossamer._text.formats import count, duration, integer, is_number, macs, percent, size
from gossamer.lab.record import RecordError, write_atomically
from gossamer.lab.report import compare, evaluation, single
from gossamer.lab.report.parts import Figure, Html, element, join
from gossamer.lab.report.runs import Group, LoadedRun, flat, group, read
from gossamer.lab.report.table import comparison, leaders
from gossamer.metrics import METRICS, shown

_SO_FAR = ("step", "val_accuracy", "val_rmse", "val_nll", "loss", "density", "seconds")
"""The cards of an unfinished run, from the last lines of its log."""

_ON_PREDICTIONS = "On the test data: how far its statements of uncertainty can be relied on."
_ON_OUTSIDE = "How well uncertainty tells inputs of another kind from the test data."
_ON_HELD_OUT = "What examples that were not trained on add to the predictions; judged on the test data."
_ON_WEIGHTS = "Where the active weights are, and how well each is known."


def write_report(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of one run, or the comparison of several, as one HTML file.

    Args:
        folders: Run folders, as ``gossamer.lab.record`` writes them.
        out: The file; in a folder that exists, ``report.html``.

    Returns:
        The file.

    Example:
        >>> import tempfile
        >>> from gossamer.lab.record import Run
        >>> folder = Path(tempfile.mkdtemp())
        >>> run = Run.create(folder / "run", {"method": "ssvi", "data": "digits"})
        >>> write_report([run.folder], folder).name
        'report.html'
    """
    if not folders:
        raise RecordError("a report needs at least one run folder: name one")
    runs = [read(folder) for folder in folders]
    out = Path(out) / "report.html" if Path(out).is_dir() else Path(out)
    title, body = _single(runs[0]) if len(runs) == 1 else _several(runs, out)
    write_atomically(out, document(title, body))
    return out


def write_comparison(folders: Sequence[Path], out: Path) -> Path:
    """Write the report of each run into its folder, and to ``out`` the comparison, which links to them.

    Example:
        >>> import tempfile
        >>> from gossamer.lab.record import Run
        >>> folder = Path(tempfile.mkdtemp())
        >>> runs = [Run.create(folder / name, {"method": name}).folder for name in ("sgd", "ssvi")]
        >>> 'href="sgd/report.html"' in write_comparison(runs, folder).read_text()
        True
    """
    for folder in folders:
        write_report([folder], folder)
    return write_report(folders, out)


def document(title: str, body: Html) -> str:
    """The whole file: style, script and pictures are inside."""
    names = ("page.html", "style.css", "script.js", "mark.svg")
    page, style, script, mark = ((files("gossamer.lab.report") / name).read_text(encoding="utf-8") for name in names)
    parts = {"title": escape(title), "icon": "data:image/svg+xml," + quote(mark), "mark": mark.strip()}
    return Template(page).substitute(parts, style=style, script=script, body=body)


def _single(run: LoadedRun) -> tuple[str, Html]:
    title = " on ".join(filter(None, (run.name("method"), run.name("data")))) or run.folder.name
    alone = group([run])
    parts = [
        element("header", element("h1", title), element("p", _subtitle(run), class_="subtitle")),
        *notices([run]),
        headline(_cards(run)),
        section("Predictions", [*compare.calibration(alone), *single.predictions(run)], _ON_PREDICTIONS),
        section("Out of distribution", [*evaluation.outside(run), *evaluation.corrupted(run)], _ON_OUTSIDE),
        section("Held-out examples", evaluation.held_out(run), _ON_HELD_OUT),
        section("Examples", single.examples(run)),
        section("Learning", compare.learning(alone)),
        section("Weights", single.weights(run), _ON_WEIGHTS),
        section("All measurements", [measurements(run)] if run.finished else []),
        again(run),
    ]
    return title, join(parts)


def _several(runs: Sequence[LoadedRun], out: Path) -> tuple[str, Html]:
    finished = [run for run in runs if run.finished] or runs  # before, data of one's own have the name of their file
    data = sorted({run.name("data") for run in finished} - {""})
    if len(data) > 1:
        raise RecordError(f"figures of different data cannot be compared: report on those of one: {', '.join(data)}")
    models = sorted({run.name("model") for run in runs} - {""})
    machines = sorted({_machine(run) for run in runs} - {""})
    methods = len({run.name("method") for run in runs})
    title = " on ".join(["Comparison", *data])
    subtitle = " · ".join(
        [f"{methods} {'method' if methods == 1 else 'methods'}", f"{len(runs)} runs", *models[:3], *machines[:3]]
    )
    groups, note = group(runs), "One run each: only several seeds can tell how much of a difference is chance. "
    if any(len(one.runs) > 1 for one in groups):
        note = (
            "Mean ± standard error over runs. Bold marks the best, and all that a t-test at 5 % cannot tell from it. "
        )
    parts = [
        element("header", element("h1", title), element("p", subtitle, class_="subtitle")),
        *notices(runs),
        headline(_winners(groups)),
        section("Side by side", [comparison(groups, out)], f"{note}A heading sorts; a method of several runs unfolds."),
        section("Quality", compare.quality(groups)),
        section("Cost", compare.costs(groups)),
        section("Calibration", compare.calibration(groups)),
        section("Out of distribution", compare.detection(groups), _ON_OUTSIDE),
        section("Learning", compare.learning(groups)),
    ]
    return title, join(parts)


def section(title: str, content: Iterable[Figure | Html | None], lead: str = "") -> Html | None:
    """Figures under a heading; nothing without one."""
    parts = [part.html() if isinstance(part, Figure) else part for part in content if part]
    if not parts:
        return None
    head = element("div", element("h2", title), element("p", lead) if lead else None, class_="head")
    return element("section", head, element("div", *parts, class_="figures"))


def _subtitle(run: LoadedRun) -> str:
    draws, seed = run.result.get("n_draws"), run.result.get("seed", run.config.get("seed"))
    steps, seconds = run.last("step"), run.value("seconds") or run.last("seconds")
    parts = [
        run.name("model"),
        f"seed {seed}" if seed is not None else "",
        f"{integer(steps)} steps" if steps else "",
        f"{draws} {'draw' if draws == 1 else 'draws'}" if draws else "",
        duration(seconds) if seconds else "",
        _machine(run),
        str(run.environment.get("time", ""))[:10],
    ]
    return " · ".join(filter(None, parts))


def _machine(run: LoadedRun) -> str:
    return str(run.environment.get("gpu") or run.environment.get("cpu") or "")


def headline(cards: Sequence[Html]) -> Html | None:
    """The cards, in rows of nearly equal length."""
    columns = len(cards) if len(cards) < 5 else 3 if len(cards) in (5, 6, 9) else 4
    style = f"--columns:{columns}"
    return element("section", *cards, class_="cards", style=style, aria_label="Headline numbers") if cards else None


def card(key: str, text: str, note: str = "", extra: Html | None = None, label: str = "") -> Html:
    """A number with its name and its meaning."""
    metric = METRICS[key]
    return element(
        "div",
        element("h3", label or metric.label),
        element("p", text, class_="value"),
        extra,
        element("p", f"{metric.meaning} {note}".strip(), class_="meaning"),
        class_="card",
        data_quantity=key,
    )


def _cards(run: LoadedRun) -> list[Html]:
    if not run.finished:
        return [card(key, METRICS[key].format(value)) for key in _SO_FAR if (value := run.last(key)) is not None]
    known = [(one, value) for one in shown("headline") if (value := run.value(one.name)) is not None]
    return [card(one.name, one.format(value), _note(run, one.name)) for one, value in known]


def _note(run: LoadedRun, key: str) -> str:
    """A fact of this run that puts a headline number into proportion."""
    total = run.value("total_parameters")
    if key == "accuracy" and (counts := run.curve("reliability", "count")):
        return f"Measured on {integer(sum(c for c in counts[0] if c > 0))} of them."
    if key == "active_parameters" and total:
        return f"Here {percent((run.value(key) or 0) / total)} of {count(total)}."
    if key == "checkpoint_bytes" and total:
        return f"The weights of the dense network alone: {size(4 * total)}."
    dense = sum(layer["dense_macs"] for layer in run.layers if is_number(layer.get("dense_macs")))
    return f"The dense network: {macs(dense)}." if key == "inference_macs" and dense else ""


def _winners(groups: Sequence[Group]) -> list[Html]:
    """The best group by each of a few measurements; no name where it cannot be told from the next."""
    cards = []
    for key, metric in METRICS.items():
        best = leaders(groups, metric) if metric.winner else []
        if len(best) == 1:
            by = element("p", best[0].text(metric), class_="by")
            cards.append(card(key, best[0].label, "", by, metric.winner))
        elif best and any(one.error(key) is not None for one in groups):
            told = f"{len(best)} of {len(groups)} cannot be told from the best."
            cards.append(card(key, "No clear winner", "", element("p", told, class_="by"), metric.winner))
    return cards


def measurements(run: LoadedRun) -> Html:
    """All numbers of the result, each with its sentence; last the metrics that are not registered here."""
    unknown = [one for one in shown("comparison", run.measured) if one.name not in METRICS]
    known = [(one, value) for one in (*METRICS.values(), *unknown) if (value := run.value(one.name)) is not None]
    cells = [(element("th", one.label, scope="row"), one.format(value), one.meaning) for one, value in known]
    rows = [element("tr", head, element("td", text), element("td", meaning)) for head, text, meaning in cells]
    return element("div", element("table", element("tbody", *rows), class_="measurements"), class_="scroll wide")


def notices(runs: Sequence[LoadedRun]) -> list[Html]:
    """What a reader must know before trusting the numbers: unfinished and diverged runs."""
    told = []
    for run in runs:
        name = "This run" if len(runs) == 1 else str(run.folder)
        if not run.finished:
            step = run.last("step")
            reached = f"its last recorded step is {integer(step)}" if step else "no step is recorded yet"
            command = element("code", f"gossamer train --resume {shlex.quote(str(run.folder))}")
            told.append(join([f"{name} is unfinished: {reached}. Continue it with ", command]))
        losses = ((row.get("step"), row.get("loss")) for row in run.metrics)
        lost = next((step for step, loss in losses if isinstance(loss, float) and not math.isfinite(loss)), None)
        if lost is not None:
            told.append(join([f"{name} diverged: its loss is not a finite number from step {lost} on."]))
    return [element("p", text, class_="notice", role="note") for text in told]


def again(run: LoadedRun) -> Html:
    """Command, configuration and environment of a run."""
    command = None
    if run.command:
        copy = element("button", "Copy", type="button", class_="quiet copy", hidden=True)
        code = element("pre", element("code", run.command), class_="command")
        command = element("div", code, copy, class_="with-copy")
    environment = flat({key: value for key, value in run.environment.items() if key != "argv"})
    lists = [_list("Configuration", run.settings), _list("Environment", environment | {"folder": str(run.folder)})]
    head = element("div", element("h2", "Reproduce"), class_="head")
    return element("section", head, command, element("div", *lists, class_="pair"), id="again")


def _list(title: str, table: Mapping[str, Any]) -> Html | None:
    known = {key: value for key, value in table.items() if value is not None}
    rows = [element("div", element("dt", key), element("dd", _text(value))) for key, value in known.items()]
    return element("div", element("h3", title), element("dl", *rows)) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)
