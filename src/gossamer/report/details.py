"""The parts of the page without a chart: notices, test images, all measurements, and how to run it again."""

from __future__ import annotations

import base64
import math
import shlex
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.formats import integer, is_number, number, percent, size
from gossamer.metrics import METRICS, shown
from gossamer.report.markup import Html, element, join
from gossamer.report.runs import LoadedRun

_MOST_BARS = 4


def png(image: list[Any]) -> bytes:
    r"""A PNG file of an image of bytes, height × width or height × width × 3."""
    coloured = isinstance(image[0][0], list)
    rows = [[value for pixel in row for value in pixel] if coloured else row for row in image]
    width = len(rows[0]) // (3 if coloured else 1)
    if any(len(row) != len(rows[0]) for row in rows) or (coloured and len(rows[0]) != 3 * width) or not width:
        raise ValueError("rows of an image must be of the same length")
    # Each row starts with its filter type, 0: none.
    pixels = b"".join(b"\x00" + bytes(min(255, max(0, int(value))) for value in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, 2 if coloured else 0, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def examples(run: LoadedRun) -> list[Html]:
    """Two rows of test images, each under its heading; none if the result has no images."""
    given = run.result.get("examples")
    parts = []
    for key, title, text in (
        ("least_certain", "In most doubt", "Doubt is the entropy of the prediction, in nats."),
        ("most_certain", "Surest", "Disagreement is the part of the doubt on which drawn networks differ."),
    ):
        found = given.get(key) if isinstance(given, Mapping) else None
        shown = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        errs = any(one.get("label") != one.get("predicted") for one in shown)
        cards = [card for one in shown if (card := _example(one, run, errs)) is not None]
        if cards:
            head = element("figcaption", element("h3", title), element("p", text))
            columns = len(cards) if len(cards) <= 6 else 4 if len(cards) in (7, 8) else 5
            grid = element("div", *cards, class_="examples", style=f"--columns:{columns}")
            parts.append(element("figure", head, grid, class_="figure wide", id=f"figure-{key.replace('_', '-')}"))
    return parts


def measurements(run: LoadedRun) -> Html:
    """All numbers of the result, each with its sentence; last the metrics that are not registered here."""
    unknown = [one for one in shown("comparison", run.measured) if one.name not in METRICS]
    found = [(one, value) for one in (*METRICS.values(), *unknown) if (value := run.value(one.name)) is not None]
    cells = [(element("th", one.label, scope="row"), one.format(value), one.meaning) for one, value in found]
    rows = [element("tr", head, element("td", text), element("td", meaning)) for head, text, meaning in cells]
    return element("div", element("table", element("tbody", *rows), class_="measurements"), class_="scroll wide")


def notices(runs: Sequence[LoadedRun]) -> list[Html]:
    """What a reader must know before trusting the numbers: unfinished or diverged runs, different data."""
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


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _example(example: Mapping[str, Any], run: LoadedRun, errs: bool) -> Html | None:
    """One image and its prediction; with ``errs`` there is room for the label, since an image of the row needs it."""
    try:
        data = base64.b64encode(png(example["image"])).decode()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    label, predicted = _class_name(example.get("label"), run), _class_name(example.get("predicted"), run)
    right = example.get("label") == example.get("predicted")
    labelled = element("span", "" if right else f"labelled {label}") if errs else None
    verdict = [element("b", f"{'✓' if right else '✗'} {predicted}"), labelled]
    picture = element("img", src=f"data:image/png;base64,{data}", alt=f"Test image of {label}, taken for {predicted}")
    facts = [("Doubt", example.get("entropy")), ("Disagreement", example.get("mutual_information"))]
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
