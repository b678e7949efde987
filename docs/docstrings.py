"""For the API pages: docstrings are written for doctest and for people; this makes Markdown of them.

Roles such as ``:func:`gossamer.predict``` become links where the pages have such a name, and examples, which doctest
finds by their ``>>>``, become sections of their own.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

__all__ = ["Docstrings", "to_markdown"]

ROLE = re.compile(r":(?:func|class|meth|mod):`~?([\w.]+)`")
EXAMPLE = re.compile(r"^( *)Example:$", re.MULTILINE)
BARE_EXAMPLE = re.compile(r"(?:\A|\n)\n*(>>> .*?)(?=\n\n|\Z)", re.DOTALL)


class Docstrings(griffe.Extension):
    """Rewrites every docstring once, after all modules are read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """One function, class or module."""
        if obj.docstring is not None:
            scope = obj.path if obj.is_module or obj.is_class else obj.path.rpartition(".")[0]
            obj.docstring.value = to_markdown(obj.docstring.value, scope)


def to_markdown(text: str, scope: str) -> str:
    """Roles to links that may lead nowhere, ``Example:`` and bare examples to sections.

    >>> to_markdown("See :func:`draw`.", "gossamer")
    'See <autoref optional identifier="gossamer.draw"><code>draw</code></autoref>.'
    """
    text = EXAMPLE.sub(r"\1Examples:", text)
    if "Examples:" not in text:
        text = BARE_EXAMPLE.sub(lambda found: "\n\nExamples:\n" + _indented(found[1]), text)
    return ROLE.sub(lambda found: _link(found[1], scope), text)


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.splitlines())


def _link(name: str, scope: str) -> str:
    target = name if name.startswith("gossamer.") else f"{scope}.{name}"
    return f'<autoref optional identifier="{target}"><code>{name}</code></autoref>'
