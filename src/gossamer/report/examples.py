"""Test images that the model is surest of, and those it doubts most, with its probabilities."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping
from typing import Any

from gossamer.formats import is_number, number, percent
from gossamer.report.markup import Html, element
from gossamer.report.runs import LoadedRun

__all__ = ["examples", "png"]

_MOST_BARS = 4


def png(image: list[Any]) -> bytes:
    r"""A PNG file of an image of bytes, height × width or height × width × 3.

    Example:
        >>> png([[0, 255], [255, 0]])[:8]
        b'\x89PNG\r\n\x1a\n'
    """
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
    """The two rows of images, each under its heading; none where the result has no images."""
    given = run.result.get("examples")
    parts = []
    for key, title, text in (
        ("least_certain", "In most doubt", "Doubt is the entropy of the prediction, in nats."),
        ("most_certain", "Surest", "Disagreement is the part of the doubt on which drawn networks differ."),
    ):
        found = given.get(key) if isinstance(given, Mapping) else None
        shown = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
        errs = any(one.get("label") != one.get("predicted") for one in shown)
        cards = [card for one in shown if (card := _card(one, run, errs)) is not None]
        if cards:
            head = element("figcaption", element("h3", title), element("p", text))
            columns = len(cards) if len(cards) <= 6 else 4 if len(cards) in (7, 8) else 5
            grid = element("div", *cards, class_="examples", style=f"--columns:{columns}")
            parts.append(element("figure", head, grid, class_="figure wide", id=f"figure-{key.replace('_', '-')}"))
    return parts


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _card(example: Mapping[str, Any], run: LoadedRun, errs: bool) -> Html | None:
    """One image and what is made of it; ``errs``: room is kept for the label, as some image of the row needs it."""
    try:
        data = base64.b64encode(png(example["image"])).decode()
    except (KeyError, IndexError, TypeError, ValueError, OverflowError):
        return None
    label, predicted = _name(example.get("label"), run), _name(example.get("predicted"), run)
    right = example.get("label") == example.get("predicted")
    verdict = [
        element("b", f"{'✓' if right else '✗'} {predicted}"),
        element("span", "" if right else f"labelled {label}") if errs else None,
    ]
    picture = element("img", src=f"data:image/png;base64,{data}", alt=f"Test image of {label}, taken for {predicted}")
    facts = [("Doubt", example.get("entropy")), ("Disagreement", example.get("mutual_information"))]
    told = [element("span", f"{name} {_small(value)}") for name, value in facts if is_number(value)]
    return element(
        "div",
        picture,
        element("div", *verdict, class_="verdict right" if right else "verdict wrong"),
        _bars(example.get("probs"), run),
        element("div", *told, class_="facts") if told else None,
        class_="example",
    )


def _bars(probs: object, run: LoadedRun) -> Html | None:
    """The likeliest classes with bars as long as they are likely."""
    if not isinstance(probs, list):
        return None
    ranked = sorted(((p, place) for place, p in enumerate(probs) if is_number(p)), key=lambda pair: -pair[0])
    rows = [
        element(
            "li",
            element("span", _name(place, run)),
            element("i", style=f"--share:{min(1.0, max(0.0, p)):.3f}"),
            element("span", _rounded(p)),
        )
        for p, place in ranked[:_MOST_BARS]
    ]
    return element("ul", *rows, class_="probs") if rows else None


def _rounded(p: float) -> str:
    """Whole percents, but never a certainty that is not one."""
    return "<\u202f1\u202f%" if p < 0.01 else ">\u202f99\u202f%" if 0.995 <= p < 1 else percent(p, 0)


def _small(value: float) -> str:
    return number(value, 2) if value >= 0.001 else "<\u202f0.001"


def _name(place: object, run: LoadedRun) -> str:
    names = run.result.get("class_names")
    if isinstance(names, list) and isinstance(place, int) and 0 <= place < len(names):
        return str(names[place])
    return "" if place is None else str(place)
