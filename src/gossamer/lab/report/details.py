"""The parts of the page without a chart: notices, test images, all measurements, and how to run it again."""

from __future__ import annotations

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer._text.formats import integer, is_number, number, percent, size
from gossamer.lab.report.images import png
from gossamer.lab.report.markup import Html, element, join
from gossamer.lab.report.runs import LoadedRun
from gossamer.metrics import METRICS, shown

_MOST_BARS = 4
_KINDS = {
    "surest_mistakes": ("Surest mistakes", "Wrong predictions of the highest confidence."),
    "least_certain": ("Most uncertain", "Predictions of the highest entropy, in nats."),
}


def examples(run: LoadedRun) -> list[Html]:
    """The surest mistakes and the most uncertain examples: images, or a table of their rows."""
    given = run.result.get("examples")
    parts = []
    for key, (title, text) in _KINDS.items():
        found = given.get(key) if isinstance(given, Mapping) else None
        shown = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        cards = [card for one in shown if "image" in one and (card := _example(one, run)) is not None]
        if cards:
            columns = len(cards) if len(cards) <= 6 else 4 if len(cards) in (7, 8) else 5
            grid = element("div", *cards, class_="examples", style=f"--columns:{columns}")
        elif shown and not any("image" in one for one in shown):
            grid = _rows(shown, run)
        else:
            continue
        head = element("figcaption", element("h3", title), element("p", text))
        kind = "figure wide" if cards else "figure"
        parts.append(element("figure", head, grid, class_=kind, id=f"figure-{key.replace('_', '-')}"))
    return parts


def measurements(run: LoadedRun) -> Html:
    """All numbers of the result, each with its sentence; last the metrics that are not registered here."""
    unknown = [one for one in shown("comparison", run.measured) if one.name not in METRICS]
    found = [(one, value) for one in (*METRICS.values(), *unknown) if (value := run.value(one.name)) is not None]
    cells = [(element("th", one.label, scope="row"), one.format(value), one.meaning) for one, value in found]
    rows = [element("tr", head, element("td", text), element("td", meaning)) for head, text, meaning in cells]
    return element("div", element("table", element("tbody", *rows), class_="measurements"), class_="scroll wide")


def notices(runs: Sequence[LoadedRun]) -> list[Html]:
    """What a reader must know before trusting the numbers: unfinished and diverged runs."""
    found = []
    for run in runs:
        name = "This run" if len(runs) == 1 else str(run.folder)
        if not run.finished:
            step = run.last("step")
            reached = f"its last recorded step is {integer(step)}" if step else "no step is recorded yet"
            command = element("code", f"gossamer train --resume {shlex.quote(str(run.folder))}")
            found.append(join([f"{name} is unfinished: {reached}. Continue it with ", command]))
        losses = ((row.get("step"), row.get("loss")) for row in run.metrics)
        lost = next((step for step, loss in losses if isinstance(loss, float) and not math.isfinite(loss)), None)
        if lost is not None:
            found.append(join([f"{name} diverged: its loss is not a finite number from step {lost} on."]))
    return [element("p", text, class_="notice", role="note") for text in found]


def again(runs: Sequence[LoadedRun]) -> Html:
    """Command, configuration and environment of each run."""
    head = element("div", element("h2", "Reproduce"), class_="head")
    if len(runs) == 1:
        return element("section", head, _again(runs[0]), id="again")
    folded = [element("details", element("summary", _name(run)), _again(run)) for run in runs]
    return element("section", head, *folded, id="again")


def _name(run: LoadedRun) -> Html:
    seed = run.config.get("seed")
    who = ", ".join(filter(None, [run.name("method"), "" if seed is None else f"seed {seed}"]))
    return join([f"{who} " if who else "", element("span", str(run.folder), class_="soft")])


def _again(run: LoadedRun) -> Html:
    shown = None
    if run.command:
        copy = element("button", "Copy", type="button", class_="quiet copy", hidden=True)
        shown = element("div", element("pre", element("code", run.command), class_="command"), copy, class_="with-copy")
    lists = [_list("Configuration", run.settings), _list("Environment", _environment(run))]
    return element("div", shown, element("div", *lists, class_="pair"))


def _environment(run: LoadedRun) -> dict[str, Any]:
    known = {key: value for key, value in run.environment.items() if key not in ("argv", "versions", "memory_bytes")}
    versions, memory = run.environment.get("versions"), run.environment.get("memory_bytes")
    if "time" in known:
        known["time"] = str(known["time"]).replace("T", " ").replace("+00:00", " UTC")
    known |= versions if isinstance(versions, Mapping) else {}
    return known | ({"memory": size(memory)} if isinstance(memory, int) else {}) | {"folder": str(run.folder)}


def _list(title: str, table: Mapping[str, Any]) -> Html | None:
    known = {key: value for key, value in table.items() if value is not None}
    rows = [element("div", element("dt", key), element("dd", _text(value))) for key, value in known.items()]
    return element("div", element("h3", title), element("dl", *rows)) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


def _rows(shown: Sequence[Mapping[str, Any]], run: LoadedRun) -> Html:
    """Examples that are no images, by their row in the test data."""
    head = element("tr", *(element("th", name, scope="col") for name in ("Row", "Label", "Predicted", "Confidence")))
    rows = []
    for one in shown:
        probs = one.get("probs")
        sure = max(filter(is_number, probs), default=0.0) if isinstance(probs, list) else 0.0
        cells = [_class_name(one.get("label"), run), _class_name(one.get("predicted"), run), percent(sure)]
        first = element("th", str(one.get("row", "")), scope="row")
        rows.append(element("tr", first, *(element("td", cell) for cell in cells)))
    return element("table", element("thead", head), element("tbody", *rows), class_="rows")


def _example(example: Mapping[str, Any], run: LoadedRun) -> Html | None:
    """One image and its prediction."""
    try:
        data = base64.b64encode(png(example["image"])).decode()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    label, predicted = _class_name(example.get("label"), run), _class_name(example.get("predicted"), run)
    right = example.get("label") == example.get("predicted")
    verdict = [element("b", f"{'✓' if right else '✗'} {predicted}"), element("span", f"label {label}")]
    picture = element("img", src=f"data:image/png;base64,{data}", alt=f"Test image of {label}, taken for {predicted}")
    facts = [("Entropy", example.get("entropy")), ("Mutual information", example.get("mutual_information"))]
    told = [element("span", f"{name} {_small(value)}") for name, value in facts if is_number(value)]
    return element(
        "div",
        picture,
        element("div", *verdict, class_="verdict right" if right else "verdict wrong"),
        _likeliest(example.get("probs"), run),
        element("div", *told, class_="facts") if told else None,
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


def _small(value: float) -> str:
    return number(value, 2) if value >= 0.001 else "<\u202f0.001"


def _class_name(place: object, run: LoadedRun) -> str:
    names = run.result.get("class_names")
    if isinstance(names, list) and isinstance(place, int) and 0 <= place < len(names):
        return str(names[place])
    return "" if place is None else str(place)
