"""``gossamer list``: names with a line about each. They are read from the source: importing it would take seconds."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

from gossamer._text.names import suggestion
from gossamer._text.tables import columns
from gossamer.lab.cli import UsageError

LISTS = ("methods", "data", "models", "criteria", "recipes")
NO_RECIPES = (
    "there is no folder recipes here. A recipe is a TOML file of your own, which gossamer compare FILE trains (the "
    "guide to the command line has an example); those of the papers are in the folder recipes of the repository"
)
PACKAGE = Path(__file__).parents[2]


def list_names(given: list[str]) -> int:
    """Print the names of a kind, each with a line about it."""
    if given in (["-h"], ["--help"]):
        print(f"usage: gossamer list {'|'.join(LISTS)}")
        return 0
    if len(given) != 1 or given[0] not in LISTS:
        raise UsageError(f"list takes one of {', '.join(LISTS)}{suggestion(' '.join(given), LISTS) or '.'}")
    rows = described(given[0])
    print(columns(rows) if rows else NO_RECIPES, file=sys.stdout if rows else sys.stderr)
    return 0


def described(kind: str) -> dict[str, str]:
    """The names of a kind, each with a line about it.

    Example:
        >>> described("methods")["ssvi"]
        'Sparse subspace variational inference (Li, Miao, Qiu and Zhang, ICLR 2024), Algorithm 1.'
    """
    if kind == "methods":
        return _modules("methods")
    if kind == "data":
        lines = _modules("data")
        about, sets = lines.pop("uci"), _keys(PACKAGE / "data" / "uci.py", "SETS")
        return lines | {f"uci/{name}": about for name in sets}
    if kind == "models":
        lines = {
            name: line for path in sorted((PACKAGE / "models").glob("*.py")) for name, line in _lines(path).items()
        }
        return {name: lines[name] for name in _keys(PACKAGE / "models" / "__init__.py", "_BUILDERS")}
    if kind == "criteria":
        path = PACKAGE / "sparsity" / "criteria.py"
        lines, tables = _lines(path), {"removal": _keys(path, "REMOVAL"), "addition": _keys(path, "ADDITION")}
        return {name: f"{use}: {lines[name]}" for use, names in tables.items() for name in names}
    return {str(path): path.read_text().splitlines()[0].lstrip("# ") for path in sorted(Path("recipes").glob("*.toml"))}


def _modules(room: str) -> dict[str, str]:
    """The first line of each public module of a room."""
    paths = sorted((PACKAGE / room).glob("[!_]*.py"))
    return {path.stem: _first_line(ast.get_docstring(_tree(path))) for path in paths}


def _lines(path: Path) -> dict[str, str]:
    """The first line about each function of a file, and about each value that has a docstring below it."""
    body, lines = _tree(path).body, dict[str, str]()
    for node, below in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.FunctionDef):
            lines[node.name] = _first_line(ast.get_docstring(node))
        elif isinstance(node, ast.Assign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            lines[ast.unparse(node.targets[0])] = _first_line(str(below.value.value))
    return lines


def _keys(path: Path, table: str) -> list[str]:
    """The keys of a dictionary of a file."""
    for node in _tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if table in [target.id for target in targets if isinstance(target, ast.Name)]:
            return [ast.literal_eval(key) for key in node.value.keys]  # type: ignore[attr-defined]
    raise AssertionError(f"{path} has no {table}")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0].replace("``", "")
