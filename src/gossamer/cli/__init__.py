"""The command ``gossamer``. The flags of a method, their types and their help come from the signature of its function.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted with a checkpoint to continue from.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from gossamer import __version__
from gossamer.names import suggestion
from gossamer.record import RecordError
from gossamer.runs.interrupt import Interrupted, handled_by

__all__ = ["COMMANDS", "UsageError", "main"]

USAGE = """usage: gossamer COMMAND [...]

  train METHOD DATA [options]     train a run; gossamer train METHOD --help lists the method's options
  train --resume RUN              continue an interrupted run, to the bit
  train --config FILE             train what a TOML or YAML file says (a run's config.toml, for example)
  evaluate RUN                    compute the metrics of a run again
  compare METHOD,METHOD… | FILE   several methods or a recipe, several seeds, one table and one report
  reproduce RECIPE                a recipe beside the figures that its paper printed
  report RUN…                     one HTML file about one run or several
  predict RUN INPUT               predictions for new inputs (.npy or .csv)
  export RUN                      the trained network for other runtimes (ONNX, torch.export)
  list methods|data|models|criteria|recipes
  show RUN                        a run in a few lines
  completion bash|zsh|fish        a script that completes commands and names in your shell

  --version   --help   --debug (show tracebacks)

gossamer COMMAND --help says more. Flags may be written with - or _ (--batch-size, --batch_size).

Examples:
  gossamer train ssvi digits --density 0.05
  gossamer compare sgd,vi,ssvi --data digits --seeds 3
"""

COMMANDS = {  # name -> the function that runs it, as module:function of this package, imported on use
    "train": "train:train",
    "evaluate": "evaluate:evaluate",
    "compare": "compare:compare",
    "reproduce": "compare:reproduce",
    "report": "queries:report",
    "predict": "queries:predict",
    "export": "queries:export",
    "list": "queries:list_names",
    "show": "queries:show",
    "completion": "queries:completion",
}


class UsageError(Exception):
    """The command line cannot be understood."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        gossamer ...
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        with handled_by(signal.default_int_handler, [signal.SIGTERM]):  # like Ctrl-C, also before training begins
            code = _dispatch(given)
            sys.stdout.flush()
            return code
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:  # nobody reads our output any more; keep the interpreter from failing again at exit
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (Exception, KeyboardInterrupt) as error:
        if debug:
            traceback.print_exc()
        return _explain(error)


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help", "help"):
        print(USAGE, end="")
        return 0 if given else 2
    if given[0] == "--version":
        print(f"gossamer {__version__}")
        return 0
    command, rest = given[0], given[1:]
    if command == "bench":
        instead = "make bench in a checkout of the repository measures this machine"
        raise UsageError(f"gossamer bench has moved: {instead}")
    if command not in COMMANDS:
        raise UsageError(
            f"unknown command {command!r}{suggestion(command, COMMANDS) or '.'} gossamer --help lists them"
        )
    if command in ("train", "compare") and _names_own_code(rest):
        sys.path.insert(0, str(Path.cwd()))
    module, _, function = COMMANDS[command].partition(":")
    run: Callable[[list[str]], int] = getattr(importlib.import_module(f"gossamer.cli.{module}"), function)
    return run(rest)


def _names_own_code(arguments: Sequence[str]) -> bool:
    """Whether ``module:function`` was typed.

    Not whether a file names one: a run or a recipe may come from anybody, and so may the folder that it is in.
    """
    resumes = any(argument.startswith("--resume") for argument in arguments)  # a folder may be called a:b
    return not resumes and any(re.search(r"(^|[=,])[\w.]+:\w+(,|$)", argument) for argument in arguments)


def _explain(error: BaseException) -> int:
    """One line on standard error; returns the exit code."""
    rank = os.environ.get("LOCAL_RANK", "0")
    is_expected = isinstance(error, RecordError | ValueError | OSError)
    if rank != "0" and (is_expected or isinstance(error, KeyboardInterrupt | Interrupted)):
        pass  # the first rank reports the same
    elif isinstance(error, KeyboardInterrupt):
        _say("stopped")
    elif isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("gossamer"):
        _say(f"the command needs {error.name}: pip install 'gossamer[train]'")
    else:
        text = " ".join(str(error).split())
        is_expected |= isinstance(error, UsageError | Interrupted)
        where = "" if rank == "0" else f"rank {rank}: "
        _say(where + (text if is_expected and text else f"{type(error).__name__}: {text} (--debug shows where)"))
    if isinstance(error, UsageError):
        return 2
    return 130 if isinstance(error, KeyboardInterrupt | Interrupted) else 1


def _say(text: str) -> None:
    print(f"gossamer: {text}", file=sys.stderr)
