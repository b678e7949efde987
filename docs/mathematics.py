"""Typesets the formulas of the pages as MathML while they are built, so that a reader's browser loads nothing for it.

In Markdown they stand between dollars, as GitHub shows them, too: ``$σ^2$`` within a line, ``$$`` around a paragraph.
"""

from __future__ import annotations

import html
import re
from typing import Any

from latex2mathml.converter import convert

__all__ = ["on_page_content"]

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.DOTALL)


def on_page_content(content: str, **kwargs: Any) -> str:
    """Replace the formulas of a page; mkdocs calls this after Markdown has become HTML."""
    return FORMULA.sub(_typeset, content)


def _typeset(found: re.Match[str]) -> str:
    return convert(html.unescape(found[3]), display="block" if found[1] == "div" else "inline")
