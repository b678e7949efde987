"""``gossamer show``."""

from __future__ import annotations

from gossamer.cli.parser import Parser

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Print a run in a few lines."""
    options = parser().parse(given)
    from gossamer.runs.reader import show

    print(show(options.run))
    return 0


def parser() -> Parser:
    """Its flags."""
    flags = Parser("gossamer show", "A run in a few lines: what it was told, how far it is, what it reached.")
    flags.add_argument("run", type=str, help="The run folder.")
    return flags
