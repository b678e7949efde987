"""``gossamer list``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer import data, methods, models
from gossamer.cli.errors import UsageError
from gossamer.names import suggestion
from gossamer.sparsity import criteria
from gossamer.tables import columns

__all__ = ["LISTS", "run"]


def run(given: list[str]) -> int:
    """Print the names of a kind, each with a line about it."""
    if given in (["-h"], ["--help"]):
        print(f"usage: gossamer list {'|'.join(LISTS)}")
        return 0
    if len(given) != 1 or given[0] not in LISTS:
        hint = suggestion(" ".join(given), LISTS) or "."
        raise UsageError(f"list takes one of {', '.join(LISTS)}{hint}")
    rows = LISTS[given[0]]()
    if rows:
        print(columns(rows))
    else:
        print(f"there are no {given[0]} here", file=sys.stderr)
    return 0


def _data() -> dict[str, str]:
    loaders = {name: data.find(name) for name in data.names()}
    return {name: _first_line(sys.modules[getattr(load, "func", load).__module__]) for name, load in loaders.items()}


def _criteria() -> dict[str, str]:
    tables = (("removal", criteria.REMOVAL), ("addition", criteria.ADDITION))
    return {name: f"{kind}: {_describe(item)}" for kind, table in tables for name, item in table.items()}


def _describe(criterion: Any) -> str:
    return criterion.describe() if isinstance(criterion, criteria.GradientCriterion) else _first_line(criterion)


def _recipes() -> dict[str, str]:
    return {str(path): path.read_text().splitlines()[0].lstrip("# ") for path in sorted(Path("recipes").glob("*.toml"))}


def _first_line(thing: Any) -> str:
    return ((thing.__doc__ or "").strip().splitlines() or [""])[0]


LISTS: dict[str, Callable[[], dict[str, str]]] = {
    "methods": lambda: {name: _first_line(sys.modules[methods.find(name).__module__]) for name in methods.names()},
    "data": _data,
    "models": lambda: {name: _first_line(getattr(models, name)) for name in models.names()},
    "criteria": _criteria,
    "recipes": _recipes,
}
