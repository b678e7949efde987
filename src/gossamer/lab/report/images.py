"""Images as PNG files."""

from __future__ import annotations

import struct
import zlib
from typing import Any

_KINDS = {1: 0, 3: 2, 4: 6}  # channels -> colour type of PNG


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
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
