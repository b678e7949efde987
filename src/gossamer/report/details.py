"""The end of the page: every measurement with its meaning, how to run it again, and what is amiss with a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.formats import integer, number, size
from gossamer.metrics import METRICS
from gossamer.report.markup import Html, element, join
from gossamer.report.runs import LoadedRun

__all__ = ["again", "measurements", "notices"]


def measurements(run: LoadedRun) -> Html:
    """All numbers of the result, each with its sentence; last those of metrics that are not registered here."""
    known = [(one.label, one.format, run.value(one.name), one.meaning) for one in METRICS.values()]
    unknown = [(name.replace("_", " "), number, run.value(name), "") for name in run.measured if name not in METRICS]
    rows = [
        element("tr", element("th", label, scope="row"), element("td", form(value)), element("td", meaning))
        for label, form, value, meaning in known + unknown
        if value is not None
    ]
    return element("div", element("table", element("tbody", *rows), class_="measurements"), class_="scroll wide")


def notices(runs: Sequence[LoadedRun]) -> list[Html]:
    """What a reader must know before trusting the numbers: unfinished runs, losses that are no numbers, unlike data."""
    found = []
    for run in runs:
        name = "This run" if len(runs) == 1 else str(run.folder)
        if not run.finished:
            step = run.last("step")
            reached = f"its last recorded step is {integer(step)}" if step else "no step is recorded yet"
            command = element("code", f"gossamer train --resume {shlex.quote(str(run.folder))}")
            found.append(join([f"{name} is unfinished: {reached}. Continue it with ", command]))
        lost = next((row.get("step") for row in run.metrics if _lost(row.get("loss"))), None)
        if lost is not None:
            found.append(join([f"{name} diverged: its loss is not a finite number from step {lost} on."]))
    data = sorted({run.name("data") for run in runs} - {""})
    if len(data) > 1:
        found.append(join([f"The runs are on different data ({', '.join(data)}): compare with care."]))
    return [element("p", text, class_="notice", role="note") for text in found]


def again(runs: Sequence[LoadedRun]) -> Html:
    """Command, configuration and environment of each run."""
    head = element("div", element("h2", "Run it again"), class_="head")
    if len(runs) == 1:
        return element("section", head, _again(runs[0]), id="again")
    folded = [element("details", element("summary", _name(run)), _again(run)) for run in runs]
    return element("section", head, *folded, id="again")


def _name(run: LoadedRun) -> Html:
    seed = run.config.get("seed")
    who = ", ".join(filter(None, [run.name("method"), "" if seed is None else f"seed {seed}"]))
    return join([f"{who} " if who else "", element("span", str(run.folder), class_="soft")])


def _again(run: LoadedRun) -> Html:
    command = run.command
    shown = None
    if command:
        copy = element("button", "Copy", type="button", class_="quiet copy", hidden=True)
        shown = element("div", element("pre", element("code", command), class_="command"), copy, class_="with-copy")
    lists = [_list("Configuration", run.settings), _list("Environment", _environment(run))]
    return element("div", shown, element("div", *lists, class_="pair"))


def _environment(run: LoadedRun) -> dict[str, Any]:
    known = dict(run.environment)
    versions = known.pop("versions", None)
    known.pop("argv", None)
    memory = known.pop("memory_bytes", None)
    if "time" in known:
        known["time"] = str(known["time"]).replace("T", " ").replace("+00:00", " UTC")
    flat = known | (dict(versions) if isinstance(versions, Mapping) else {})
    return flat | ({"memory": size(memory)} if isinstance(memory, int) else {}) | {"folder": str(run.folder)}


def _list(title: str, table: Mapping[str, Any]) -> Html | None:
    rows = [
        element("div", element("dt", key), element("dd", _text(value)))
        for key, value in table.items()
        if value is not None
    ]
    return element("div", element("h3", title), element("dl", *rows)) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _lost(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
