"""``gossamer reproduce``."""

from __future__ import annotations

from gossamer.cli.errors import UsageError

__all__ = ["run"]


def run(given: list[str]) -> int:
    """Name what replaced it."""
    raise UsageError("python -m reproductions NAME in a checkout of the repository measures a table of a paper again")
