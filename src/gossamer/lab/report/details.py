"""The parts of the page without a chart: notices, test images, all measurements, and how to run it again."""

import base64
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer._text.formats import integer, is_number, percent, size
from gossamer._text.terminal import Table
from gossamer.lab.report.parts import Html, element, join, png
from gossamer.lab.report.runs import LoadedRun, mapping
from gossamer.lab.report.table import panel
from gossamer.metrics import METRICS, shown

_MOST_BARS = 4
_KINDS = {
    "surest_mistakes": ("Surest mistakes", "Wrong predictions of the highest confidence."),
    "least_certain": ("Most uncertain", "Predictions of the highest entropy, in nats."),
}


def examples(run: LoadedRun) -> list[Html | None]:
    """The surest mistakes and the most uncertain examples: images, or a table of their rows."""
    return [_examples(run, key, *words) for key, words in _KINDS.items()]


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
    command = None
    if run.command:
        copy = element("button", "Copy", type="button", class_="quiet copy", hidden=True)
        code = element("pre", element("code", run.command), class_="command")
        command = element("div", code, copy, class_="with-copy")
    lists = [_list("Configuration", run.settings), _list("Environment", _environment(run))]
    return element("div", command, element("div", *lists, class_="pair"))


def _environment(run: LoadedRun) -> dict[str, Any]:
    known = {key: value for key, value in run.environment.items() if key not in ("argv", "versions", "memory_bytes")}
    if "time" in known:
        known["time"] = str(known["time"]).replace("T", " ").replace("+00:00", " UTC")
    memory = run.environment.get("memory_bytes")
    known |= mapping(run.environment.get("versions"))
    return known | ({"memory": size(memory)} if isinstance(memory, int) else {}) | {"folder": str(run.folder)}


def _list(title: str, table: Mapping[str, Any]) -> Html | None:
    known = {key: value for key, value in table.items() if value is not None}
    rows = [element("div", element("dt", key), element("dd", _text(value))) for key, value in known.items()]
    return element("div", element("h3", title), element("dl", *rows)) if rows else None


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return ("yes" if value else "no") if isinstance(value, bool) else str(value)


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
