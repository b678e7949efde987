"""``gossamer completion``."""

from __future__ import annotations

from gossamer import data, methods
from gossamer.cli import COMMANDS, compare, evaluate, predict, report, reproduce, show, train
from gossamer.cli.errors import UsageError
from gossamer.cli.lists import LISTS
from gossamer.completion import SHELLS, script

__all__ = ["run"]


def run(given: list[str]) -> int:
    """Print a script that completes commands, names and flags in a shell."""
    if given in (["-h"], ["--help"]):
        print(f'usage: gossamer completion {"|".join(SHELLS)}\n\nIn ~/.bashrc: eval "$(gossamer completion bash)"')
        return 0
    if len(given) != 1 or given[0] not in SHELLS:
        raise UsageError(f"completion takes one of {', '.join(SHELLS)}")
    words = {
        "": [*COMMANDS, "--help", "--version"],
        "train": methods.names(),
        "compare": methods.names(),
        "list": list(LISTS),
        "completion": list(SHELLS),
    }
    words |= {f"train {method}": data.names() for method in methods.names()}
    print(script(given[0], words, _flags()), end="")
    return 0


def _flags() -> dict[str, list[str]]:
    """The flags of each command, and of ``train`` with each method."""
    modules = (compare, evaluate, predict, report, reproduce, show)
    flags = {module.__name__.rpartition(".")[2]: module.parser().flags() for module in modules}
    flags |= {f"train {method}": train.method_parser(method).flags() for method in methods.names()}
    return flags | {"train": train.common_parser().flags()}
