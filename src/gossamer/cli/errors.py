"""What is wrong with a command line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["UsageError", "suggestion"]


class UsageError(Exception):
    """The command line cannot be understood."""


def suggestion(word: str, known: Iterable[str]) -> str:
    """The nearest known word, as the end of a sentence.

    Example:
        >>> suggestion("trian", ["train", "show"]), suggestion("x", ["train", "show"])
        ("; did you mean 'train'?", '.')
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."
