"""Write TOML, which the standard library only reads."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer.record.files import RecordError

__all__ = ["to_toml"]


def to_toml(table: Mapping[str, Any], prefix: tuple[str, ...] = ()) -> str:
    """A TOML document: plain values first, then each table under its own header; ``None`` is left out."""
    plain = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    lines = [f"{_key(key)} = {_value(value, (*prefix, key))}" for key, value in plain.items()]
    for key, value in table.items():
        if isinstance(value, Mapping):
            path = (*prefix, key)
            lines += ["", f"[{'.'.join(map(_key, path))}]", to_toml(value, path).strip("\n")]
    return "\n".join(lines) + "\n"


def _key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _string(key)


def _value(value: Any, path: tuple[str, ...]) -> str:
    if hasattr(value, "tolist"):  # a scalar or an array of torch or numpy
        value = value.tolist()
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else str(value)
        case str() | os.PathLike():
            return _string(str(value))
        case Sequence():
            return f"[{', '.join(_value(item, path) for item in value)}]"
    kind = type(value).__name__
    raise RecordError(f"config.toml cannot hold {'.'.join(path)}, a {kind}: give a str, int, float, bool or a list")


def _string(text: str) -> str:
    """A basic string; JSON escapes are TOML escapes, but for DEL, which TOML wants escaped as well."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecordError(f"config.toml cannot hold {text!a}: it is not valid Unicode, rename it") from None
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
