"""HTML and SVG as nested calls, in which a string that is not markup is escaped; and images as PNG files."""

from __future__ import annotations

import html
import struct
import zlib
from collections.abc import Iterable
from typing import Any

_VOID = {"br", "img", "link", "meta"}
_KINDS = {1: 0, 3: 2, 4: 6}  # channels -> colour type of PNG


class Html(str):
    """Text that is markup, not to be escaped."""

    __slots__ = ()


def join(parts: Iterable[str | None], between: str = "") -> Html:
    """The parts in sequence, escaped unless they are markup."""
    return Html(between.join(part if isinstance(part, Html) else html.escape(part) for part in parts if part))


def element(tag: str, *children: str | None, **attributes: str | float | None) -> Html:
    """One element. ``class_`` becomes ``class``, ``data_value`` ``data-value``; ``None`` and ``False`` are left out."""
    written = "".join(
        f" {name.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{_attribute(value)}"')
        for name, value in attributes.items()
        if value is not None and value is not False
    )
    return Html(f"<{tag}{written}>" if tag in _VOID else f"<{tag}{written}>{join(children)}</{tag}>")


def _attribute(value: str | float) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return html.escape(str(value))


def png(image: list[Any]) -> bytes:
    """A PNG file of an image of bytes: height × width, or × 3 for colours, or × 4 with opacity."""
    first = image[0][0]
    channels = len(first) if isinstance(first, list) else 1
    rows = [[value for pixel in row for value in pixel] if isinstance(first, list) else row for row in image]
    width = len(rows[0]) // channels
    if any(len(row) != channels * width for row in rows) or not width or channels not in _KINDS:
        raise ValueError("an image has rows of the same length, and 1, 3 or 4 channels")
    # Each row starts with its filter type, 0: none.
    pixels = b"".join(b"\x00" + bytes(min(255, max(0, int(value))) for value in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(rows), 8, _KINDS[channels], 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
