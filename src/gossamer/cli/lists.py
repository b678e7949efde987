"""Commands about names: ``list`` prints them, ``completion`` completes them in a shell."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gossamer import data, methods, models
from gossamer.cli import COMMANDS, UsageError
from gossamer.names import suggestion
from gossamer.sparsity import criteria
from gossamer.tables import columns

__all__ = ["LISTS", "SHELLS", "completion", "list_names"]

SHELLS = ("bash", "zsh", "fish")


def list_names(given: list[str]) -> int:
    """Print the names of a kind, each with a line about it."""
    if given in (["-h"], ["--help"]):
        print(f"usage: gossamer list {'|'.join(LISTS)}")
        return 0
    if len(given) != 1 or given[0] not in LISTS:
        raise UsageError(f"list takes one of {', '.join(LISTS)}{suggestion(' '.join(given), LISTS) or '.'}")
    rows = LISTS[given[0]]()
    if rows:
        print(columns(rows))
    else:
        print(f"there are no {given[0]} here", file=sys.stderr)
    return 0


def completion(given: list[str]) -> int:
    """Print a script that completes commands, names and flags in a shell."""
    if given in (["-h"], ["--help"]):
        print(f'usage: gossamer completion {"|".join(SHELLS)}\n\nIn ~/.bashrc: eval "$(gossamer completion bash)"')
        return 0
    if len(given) != 1 or given[0] not in SHELLS:
        raise UsageError(f"completion takes one of {', '.join(SHELLS)}")
    import shtab

    print(shtab.complete(_whole_parser(), given[0]))
    return 0


def _whole_parser() -> Any:
    """All commands and methods as one parser, which only completion needs."""
    import shtab

    from gossamer.cli import compare, queries, train
    from gossamer.cli.parser import Parser

    root = Parser("gossamer")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers(prog="gossamer")
    parsers = {name: commands.add_parser(name, help=name) for name in COMMANDS}
    parsers["list"].add_argument("kind", choices=list(LISTS))
    parsers["completion"].add_argument("shell", choices=SHELLS)
    for name in ("compare", "reproduce"):
        compare.add_compare_flags(parsers[name])
    for name in ("evaluate", "predict", "show", "report"):
        getattr(queries, f"add_{name}_flags")(parsers[name])
    after_train = train.add_common_flags(parsers["train"]).add_subparsers(prog="gossamer train")
    parsers |= {
        f"train {name}": train.add_method_flags(after_train.add_parser(name, help=name), name)
        for name in methods.names()
    }
    known = {"data": data.names(), "model": models.names(), "what": methods.names()}
    for action in (action for parser in parsers.values() for action in parser._actions):
        if action.dest in known:
            action.choices = known[action.dest]
        elif action.dest in ("run", "runs", "input", "resume", "config", "out", "json", "data_dir"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root


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
