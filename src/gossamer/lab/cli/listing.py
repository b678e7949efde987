"""``gossamer list``, names with a line about each, and ``gossamer completion``, which completes them in a shell.

The lines are read from the source: importing it would take seconds.
"""

import ast
import sys
from pathlib import Path
from typing import Any

from gossamer._text.names import suggestion
from gossamer._text.terminal import columns
from gossamer.lab.cli import COMMANDS, UsageError

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
        lines, path = _modules("data"), PACKAGE / "data" / "images.py"
        about, _, images = lines.pop("uci"), lines.pop("images"), _lines(path)
        lines |= {name: images[name.upper()] for name in _keys(path, "SETS")}
        sets = _keys(PACKAGE / "data" / "uci.py", "SETS")
        return dict(sorted(lines.items())) | {f"uci/{name}": about for name in sets}
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
    for node in _tree(path).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if table in [target.id for target in targets if isinstance(target, ast.Name)]:
            return [ast.literal_eval(key) for key in node.value.keys]  # type: ignore[attr-defined]
    raise AssertionError(f"{path} has no {table}")


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0].replace("``", "")


FILE_FLAGS = ("run", "folder", "input", "resume", "config", "out", "json", "data_dir", "corruptions")
SHELLS = ("bash", "zsh", "fish")


def completion(given: list[str]) -> int:
    """Print the script."""
    if given in (["-h"], ["--help"]):
        print(f'usage: gossamer completion {"|".join(SHELLS)}\n\nIn ~/.bashrc: eval "$(gossamer completion bash)"')
        return 0
    if len(given) != 1 or given[0] not in SHELLS:
        raise UsageError(f"completion takes one of {', '.join(SHELLS)}")
    import shtab

    print(shtab.complete(_whole_parser(), given[0]))
    return 0


def _whole_parser() -> Any:
    import shtab

    from gossamer import data, methods
    from gossamer.lab.cli import compare, queries, train
    from gossamer.lab.cli.parser import Parser
    from gossamer_sweep import command as sweep

    root = Parser("gossamer")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers(prog="gossamer")
    parsers = {name: commands.add_parser(name, help=name) for name in COMMANDS}
    parsers["list"].add_argument("kind", choices=LISTS)
    parsers["completion"].add_argument("shell", choices=SHELLS)
    compare.add_compare_flags(parsers["compare"])
    for name in queries.TITLES:
        queries.add_flags(parsers[name], name)
    after_train = train.add_common_flags(parsers["train"]).add_subparsers(prog="gossamer train")
    after_sweep = sweep.add_study_flags(parsers["sweep"]).add_subparsers(prog="gossamer sweep")
    for name in methods.names():
        parsers[f"train {name}"] = train.add_method_flags(after_train.add_parser(name, help=name), name)
        parsers[f"sweep {name}"] = sweep.add_sweep_flags(after_sweep.add_parser(name, help=name), name)
    known = {"data": data.names(), "methods": methods.names()}
    for action in (action for parser in parsers.values() for action in parser._actions):
        if action.dest in FILE_FLAGS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif isinstance(action.metavar, str) and action.metavar.startswith("{"):
            action.choices = [word for word in action.metavar.strip("{}").split(",") if word != "NUMBER"]
        elif action.dest in known:
            action.choices = known[action.dest]
    return root
