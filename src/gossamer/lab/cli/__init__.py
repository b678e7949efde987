"""The command ``gossamer``. The flags of a method, their types and their help come from the signature of its function.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted with a checkpoint to continue from.
"""

import contextlib
import importlib
import os
import re
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from gossamer import __version__
from gossamer._text.names import own_code, suggestion, trusting
from gossamer._text.terminal import printable
from gossamer.lab.record import RecordError
from gossamer.lab.runs.progress import Interrupted, RankLostError, handled_by

__all__ = ["COMMANDS", "UsageError", "main"]

USAGE = """usage: gossamer COMMAND [...]

  train METHOD DATA [options]     train a run; DATA is a name, or your own: a file (table, arrays), a folder
                                  of images, or module:function; gossamer train METHOD --help lists options
  train --resume RUN              continue an interrupted run, to the bit
  train --config FILE             train what a TOML file says (a run's config.toml, for example)
  evaluate RUN                    compute the metrics of a run again
  compare METHOD,METHOD… | FILE   several methods or a recipe, several seeds, one table and one report
  sweep METHOD --data DATA --study NAME --search OPTION=VALUES
                                  search good options by held-out examples; start it as often as you like, anywhere
  report RUN… | COMPARISON        one HTML file about one run or several, or about a sweep
  predict RUN INPUT               predictions for new inputs: a table, an array, images, or - for standard input
  export RUN                      the trained network for other runtimes (ONNX, torch.export)
  runs [FOLDER]                   the runs in a folder (runs/ if not given)
  list methods|data|models|criteria|recipes
  show RUN                        a run in a few lines
  completion bash|zsh|fish        a script that completes commands and names in your shell

  --version   --help   --debug (show tracebacks)

gossamer COMMAND --help says more. Flags may be written with - or _ (--batch-size, --batch_size).

Examples:
  gossamer train ssvi digits --density 0.05
  gossamer train ssvi houses.csv --target price
  gossamer compare sgd,vi,ssvi --data digits --seeds 3
"""

COMMANDS = {  # name -> the function that runs it, as module:function of this or another package, imported on use
    "train": "train:train",
    "evaluate": "queries:evaluate",
    "compare": "compare:compare",
    "sweep": "gossamer_sweep.command:sweep",
    "report": "queries:report",
    "predict": "queries:predict",
    "export": "queries:export",
    "runs": "queries:runs",
    "list": "listing:list_names",
    "show": "queries:show",
    "completion": "listing:completion",
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
    # Threads that wait by spinning keep those that compute from a core; torch's libraries read this as they are loaded.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        # SIGTERM acts like Ctrl-C, also before training begins.
        with handled_by(signal.default_int_handler, [signal.SIGTERM]), warnings_in_a_line(), trusting(*_typed(given)):
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
    if command not in COMMANDS:
        raise UsageError(
            f"unknown command {command!r}{suggestion(command, COMMANDS) or '.'} gossamer --help lists them"
        )
    if _typed(given):
        sys.path.insert(0, str(Path.cwd()))
    module, _, function = COMMANDS[command].partition(":")
    module = module if "." in module else f"gossamer.lab.cli.{module}"
    run: Callable[[list[str]], int] = getattr(importlib.import_module(module), function)
    return run(rest)


def _typed(given: Sequence[str]) -> set[str]:
    """Every ``module:function`` that was typed, in the settings of a new training or after ``--trust``.

    Not those that a file names: a run or a recipe may come from anybody, and so may the folder that it is in, which may
    be called a:b.
    """
    trains = given[:1] in (["train"], ["compare"], ["sweep"]) and not any(word.startswith("--resume") for word in given)
    words = [word for last, word in zip(["", *given], given, strict=False) if trains or "--trust" in (last, word[:7])]
    return own_code([part for word in words for part in re.split("[=,]", word)])


@contextlib.contextmanager
def warnings_in_a_line() -> Iterator[None]:
    """Warnings as one line on standard error, without the place in the code."""
    before = warnings.showwarning
    warnings.showwarning = lambda message, *place: _say(f"warning: {' '.join(str(message).split())}")
    try:
        yield
    finally:
        warnings.showwarning = before


def _explain(error: BaseException) -> int:
    """One line on standard error; returns the exit code."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    is_expected = isinstance(error, RecordError | ValueError | OSError)
    if rank != "0" and (is_expected or isinstance(error, KeyboardInterrupt | Interrupted)):
        pass  # the first rank reports the same
    elif isinstance(error, KeyboardInterrupt):
        _say("stopped")
    elif isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("gossamer"):
        known = "pip install" in str(error)  # said already, and more precisely
        _say(str(error) if known else f"the command needs {error.name}: pip install 'gossamer[cli]'")
    else:
        text = " ".join(str(error).split())
        is_expected |= isinstance(error, UsageError | Interrupted | RankLostError)
        where = "" if rank == "0" else f"rank {rank}: "
        _say(where + (text if is_expected and text else f"{type(error).__name__}: {text} (--debug shows where)"))
    if isinstance(error, UsageError):
        return 2
    return 130 if isinstance(error, KeyboardInterrupt | Interrupted) else 1


def _say(text: str) -> None:
    print(f"gossamer: {printable(text)}", file=sys.stderr)
