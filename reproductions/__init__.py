"""Tables and figures of papers, measured again: one file each, see ``frame``."""

from __future__ import annotations

import importlib
from typing import cast

from gossamer._text.names import unknown
from reproductions.parts import Reproduction, StoredParts, fill, reproduce

__all__ = ["NAMES", "Reproduction", "StoredParts", "fill", "find", "reproduce"]

NAMES = ("em-mcmc-figure1", "em-mcmc-figure2", "em-mcmc-table4")


def find(name: str) -> Reproduction:
    """The script of a table or figure.

    Example:
        >>> [part["method"] for part in find("em-mcmc-figure2").plan(seeds=1)]
        ['DFP', 'DPF']
    """
    if name not in NAMES:
        raise ValueError(unknown("reproduction", name, NAMES))
    return cast(Reproduction, importlib.import_module(f"reproductions.{name.replace('-', '_')}"))
