"""Tables and figures of papers, measured again: one file each. The folder is the registry.

A file has four functions. ``plan`` says what is to be measured, part by part; its arguments are the flags of the
command. ``measure`` does one part. ``tables`` and ``plot`` are made of the stored parts alone.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, cast

from gossamer.names import unknown
from gossamer.tables import Table
from reproductions._pages import fill
from reproductions._results import Part, Results, Row, Settings
from reproductions._running import Tick, reproduce

__all__ = ["Part", "Reproduction", "Results", "Row", "Settings", "Tick", "fill", "find", "names", "reproduce"]


class Reproduction(Protocol):
    """What a file of this folder holds."""

    plan: Callable[..., list[Settings]]
    """Options -> the settings of each part, plain values that JSON can hold."""

    def measure(self, settings: Settings, tick: Tick) -> list[Row]:
        """Do one part; ``tick(done, total, words)`` shows how far it is."""
        ...

    def tables(self, results: Results) -> dict[str, Table]:
        """Tables by name."""
        ...

    def plot(self, results: Results, path: Path) -> None:
        """Draw the picture; the suffix of the path says of which kind."""
        ...


def names() -> list[str]:
    """What can be reproduced.

    Example:
        >>> names()
        ['em-mcmc-figure1', 'em-mcmc-figure2', 'em-mcmc-table4']
    """
    modules = (module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))
    return sorted(name.replace("_", "-") for name in modules)


def find(name: str) -> Reproduction:
    """The file of that name.

    Example:
        >>> [part["method"] for part in find("em-mcmc-figure2").plan(seeds=1)]
        ['DFP', 'DPF']
    """
    if name not in names():
        raise ValueError(unknown("reproduction", name, names()))
    return cast(Reproduction, importlib.import_module(f"reproductions.{name.replace('-', '_')}"))
