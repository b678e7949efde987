"""HTML and SVG as nested calls; a string that is not markup is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable

_VOID = {"br", "img", "link", "meta"}


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
