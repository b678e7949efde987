"""``gossamer completion``: a script that completes commands, names and flags in a shell."""

from __future__ import annotations

from typing import Any

from gossamer import data, methods
from gossamer.lab.cli import COMMANDS, UsageError, compare, evaluate, predict, queries, train
from gossamer.lab.cli.listing import LISTS
from gossamer.lab.cli.parser import Parser
from gossamer_sweep import command as sweep

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
    """All commands and methods as one parser."""
    import shtab

    root = Parser("gossamer")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers(prog="gossamer")
    parsers = {name: commands.add_parser(name, help=name) for name in COMMANDS}
    parsers["list"].add_argument("kind", choices=LISTS)
    parsers["completion"].add_argument("shell", choices=SHELLS)
    compare.add_compare_flags(parsers["compare"])
    evaluate.add_evaluate_flags(parsers["evaluate"])
    predict.add_predict_flags(parsers["predict"])
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
