"""The command ``gossamer``: train, evaluate, compare, report, predict, list, show.

A method's signature is its configuration: its flags, their types and their help come from the function itself. Exit
codes: 0 fine, 1 failure, 2 usage, 130 interrupted with a checkpoint to continue from.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from gossamer import __version__, data, methods, models
from gossamer.sparsity import criteria

try:
    from jsonargparse import ArgumentParser, Namespace
except ModuleNotFoundError as missing:  # the library itself needs none of this
    sys.exit(f"the gossamer command needs {missing.name}: pip install 'gossamer[train]'")

__all__ = ["main"]

USAGE = """usage: gossamer COMMAND [...]

  train METHOD DATA [options]     train a run; gossamer train METHOD --help lists the method's options
  train --resume RUN              continue an interrupted run, to the bit
  train --config FILE             train what a TOML or YAML file says (a run's config.toml, for example)
  evaluate RUN                    the metrics of a run again
  compare METHOD,METHOD… | FILE   several methods or a recipe, several seeds, one table and one report
  report RUN…                     one HTML file about one run or several
  predict RUN INPUT               predictions for new inputs (.npy or .csv)
  list methods|data|models|criteria|recipes
  show RUN                        a run in a few lines
  completion bash|zsh|fish        a script that completes commands and names in your shell

  --version   --help   --debug (show tracebacks)

Examples:
  gossamer train ssvi digits --density 0.05
  gossamer compare sgd,vi,ssvi --data digits --seeds 3
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code.

    Example:
        >>> main(["list", "methods"])
        rigl  RigL (Evci et al., ICML 2020): deterministic sparse training, drop by magnitude, grow by gradient.
        sgd   The plain network by Adam or SGD: what every other method is compared with.
        ssvi  Sparse subspace variational inference (Li, Miao, Qiu and Zhang, ICLR 2024), Algorithm 1.
        vi    Dense mean-field variational inference: every weight is active, with a mean and a standard deviation.
        0
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    given = [argument for argument in given if argument != "--debug"]
    try:
        return _dispatch(given)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 1
    except UsageError as error:
        print(f"gossamer: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("gossamer: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        return 1
    except Exception as error:
        from gossamer.experiments import Interrupted

        if debug:
            raise
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"gossamer: {text}", file=sys.stderr)
        return 130 if isinstance(error, Interrupted) else 1


class UsageError(Exception):
    """The command line cannot be understood."""


def _dispatch(given: list[str]) -> int:
    if not given or given[0] in ("-h", "--help"):
        print(USAGE, end="")
        return 0 if given else 2
    if given[0] == "--version":
        print(f"gossamer {__version__}")
        return 0
    command, rest = given[0], given[1:]
    if command not in COMMANDS:
        raise UsageError(f"unknown command {command!r}{_nearest(command, COMMANDS)} gossamer --help lists them")
    return COMMANDS[command](rest)


def _train(given: list[str]) -> int:
    from gossamer.experiments import Settings, resume, train

    parser = _Parser("gossamer train")
    parser.add_argument("--resume", type=str | None, help="Continue the run in this folder.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    if "--resume" in given or any(argument.startswith("--resume=") for argument in given):
        options = parser.parse_args(given)
        _print_result(resume(options.resume, quiet=options.quiet))
        return 0
    method, given = _method_and_arguments(given)
    parser = _Parser(f"gossamer train {method}")
    parser.add_argument("data", type=str, help="Name of the data set; gossamer list data has them.")
    parser.add_class_arguments(Settings, skip={"method", "data", "options"})
    parser.add_function_arguments(methods.find(method), skip={"task", "steps"}, fail_untyped=False)
    parser.add_argument(
        "--out", type=str | None, help="The run folder; runs/<date>-<method>-<data>-<seed> if not given."
    )
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    parser.add_argument("--config", type=str | None, help="A TOML or YAML file with any of these; flags go before it.")
    # The parser has a meaning of its own for this flag, so it is taken out before.
    parser.epilog = "--print_config prints the configuration as TOML and stops."
    print_config = "--print_config" in given
    settings, options = _settings(method, parser.parse_args([flag for flag in given if flag != "--print_config"]))
    if print_config:
        from gossamer.record.toml import to_toml

        print(to_toml(settings.to_config()), end="")
        return 0
    _print_result(train(settings, options.out, quiet=options.quiet))
    return 0


def _method_and_arguments(given: list[str]) -> tuple[str, list[str]]:
    """The name of the method and the flags, those of a ``--config`` file first so that later ones win."""
    given = [
        part
        for argument in given
        for part in (argument.split("=", 1) if argument.startswith("--config=") else [argument])
    ]
    from_file: dict[str, Any] = {}
    if "--config" in given:
        at = given.index("--config")
        if at + 1 >= len(given):
            raise UsageError("--config needs a file")
        from_file = _read_config(Path(given[at + 1]))
        given = given[:at] + given[at + 2 :]
    named = [argument for argument in given[:2] if not argument.startswith("-")]
    method = given.pop(0) if named and given and given[0] == named[0] else from_file.pop("method", None)
    from_file.pop("method", None)
    if method is None:
        if given and given[0] in ("-h", "--help"):
            print(USAGE, end="")
            raise SystemExit(0)
        raise UsageError(f"train needs a method: gossamer train METHOD DATA; methods are {', '.join(methods.names())}")
    if method not in methods.names():
        raise UsageError(
            f"unknown method {method!r}{_nearest(method, methods.names())} Known: {', '.join(methods.names())}"
        )
    set_name = from_file.pop("data", None)
    has_data = bool(given) and not given[0].startswith("-")
    flags = [f"--{key}={_flag(value)}" for key, value in from_file.items()]
    head = [given.pop(0)] if has_data else ([set_name] if set_name else [])
    return method, [*head, *flags, *given]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    try:
        if path.suffix in (".yaml", ".yml"):
            import yaml

            content = yaml.safe_load(text) or {}
        else:
            content = tomllib.loads(text)
    except Exception as error:
        raise UsageError(f"{path} is broken: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold keys and values")
    content.pop("format", None)
    options = content.pop("options", {})
    return {**content, **options}


def _flag(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _settings(method: str, options: Namespace) -> tuple[Any, Namespace]:
    """Settings from parsed flags; the method's own options are those that differ from their defaults."""
    import inspect

    from gossamer.experiments import Settings

    values = vars(options)
    fields = [name for name in Settings.__dataclass_fields__ if name not in ("method", "options")]
    parameters = inspect.signature(methods.find(method)).parameters
    own = {
        name: values[name]
        for name in parameters
        if name in values and name not in ("task", "steps") and values[name] != parameters[name].default
    }
    try:
        settings = Settings(method, **{name: values[name] for name in fields}, options=own)
    except ValueError as error:
        raise UsageError(str(error)) from error
    return settings, options


def _evaluate(given: list[str]) -> int:
    from gossamer.experiments import evaluate_run

    parser = _Parser("gossamer evaluate")
    parser.add_argument("run", type=str, help="The run folder.")
    parser.add_argument("--n_draws", type=int | None, help="Networks to draw; as the run was told if not given.")
    parser.add_argument("--split", type=str, default="test", help="train, val or test.")
    parser.add_argument("--json", action="store_true", help="As JSON.")
    options = parser.parse_args(given)
    metrics = evaluate_run(options.run, options.n_draws, options.split)
    print(json.dumps(metrics, indent=1) if options.json else _lines(metrics))
    return 0


def _compare(given: list[str]) -> int:
    from gossamer.experiments import Settings, compare
    from gossamer.experiments.comparing import read_recipe
    from gossamer.report import write_report

    parser = _Parser("gossamer compare")
    parser.add_argument("what", type=str, help="Methods with commas between them, or a recipe (a TOML file).")
    parser.add_class_arguments(Settings, skip={"method", "data", "options", "seed"})
    parser.add_argument("--data", type=str, default="digits", help="Name of the data set.")
    parser.add_argument("--density", type=float | None, help="For the methods that have one.")
    parser.add_argument("--seeds", type=int | None, help="Runs of each method; 3 if not given.")
    parser.add_argument("--out", type=str, default="runs/compare", help="Folder of the comparison.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")
    options = parser.parse_args(given)
    if Path(options.what).suffix == ".toml":
        entries, seeds = read_recipe(Path(options.what))
    else:
        entries, seeds = _entries(options), 3
    seeds = options.seeds or seeds
    say = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    comparison = compare(entries, seeds, options.out, quiet=options.quiet, say=say)
    print(comparison.to_text())
    if comparison.folders:
        print(f"\nreport: {write_report(comparison.folders, Path(options.out) / 'report.html')}")
    print(f"tables: {options.out}/comparison.md, .csv, .json")
    return 0 if comparison.folders else 1


def _entries(options: Namespace) -> dict[str, Any]:
    import inspect

    from gossamer.experiments import Settings

    values = vars(options)
    fields = {name: values[name] for name in Settings.__dataclass_fields__ if name in values and name != "data"}
    entries = {}
    for method in options.what.split(","):
        if method not in methods.names():
            known = ", ".join(methods.names())
            raise UsageError(f"unknown method {method!r}{_nearest(method, methods.names())} Known: {known}")
        takes_density = "density" in inspect.signature(methods.find(method)).parameters
        own = {"density": options.density} if takes_density and options.density is not None else {}
        try:
            entries[method] = Settings(method, options.data, **fields, options=own)
        except ValueError as error:
            raise UsageError(str(error)) from error
    return entries


def _report(given: list[str]) -> int:
    from gossamer.report import write_report

    parser = _Parser("gossamer report")
    parser.add_argument("runs", nargs="+", type=str, help="Run folders.")
    parser.add_argument(
        "--out", type=str | None, help="The HTML file; report.html in the (first) run folder if not given."
    )
    options = parser.parse_args(given)
    folders = [Path(run) for run in options.runs]
    print(write_report(folders, Path(options.out) if options.out else folders[0] / "report.html"))
    return 0


def _predict(given: list[str]) -> int:
    from gossamer.experiments import predict_run

    parser = _Parser("gossamer predict")
    parser.add_argument("run", type=str, help="The run folder.")
    parser.add_argument("input", type=str, help="A .npy array or a .csv table, one example a row.")
    parser.add_argument("--n_draws", type=int | None, help="Networks to draw; as the run was told if not given.")
    parser.add_argument("--json", action="store_true", help="As JSON, one object a line.")
    options = parser.parse_args(given)
    rows = predict_run(options.run, options.input, options.n_draws)
    if options.json:
        print("\n".join(json.dumps(row) for row in rows))
        return 0
    print(",".join(rows[0]) if rows else "")
    for row in rows:
        print(",".join(f"{value:.6g}" if isinstance(value, float) else str(value) for value in row.values()))
    return 0


def _list(given: list[str]) -> int:
    what = {
        "methods": lambda: {name: _first_line(methods.find(name).__module__) for name in methods.names()},
        "data": lambda: {name: _first_line(_module_of(data.find(name))) for name in data.names()},
        "models": lambda: {name: _first_doc(getattr(models, name)) for name in models.names()},
        "criteria": lambda: {
            name: f"{kind}: {_first_doc(criterion)}"
            for kind, table in (("removal", criteria.REMOVAL), ("addition", criteria.ADDITION))
            for name, criterion in table.items()
        },
        "recipes": lambda: {str(path): _comment(path) for path in sorted(Path("recipes").glob("*.toml"))},
    }
    if len(given) != 1 or given[0] not in what:
        raise UsageError(f"list takes one of {', '.join(what)}")
    rows = what[given[0]]()
    width = max(map(len, rows), default=0)
    for name, line in rows.items():
        print(f"{name.ljust(width)}  {line}".rstrip())
    return 0


def _show(given: list[str]) -> int:
    from gossamer.experiments import show

    parser = _Parser("gossamer show")
    parser.add_argument("run", type=str, help="The run folder.")
    print(show(parser.parse_args(given).run))
    return 0


def _completion(given: list[str]) -> int:
    from gossamer.completion import script

    if len(given) != 1:
        raise UsageError("completion takes one of bash, zsh, fish")
    words = {
        "": list(COMMANDS),
        "train": methods.names(),
        "compare": methods.names(),
        "list": ["methods", "data", "models", "criteria", "recipes"],
        "completion": ["bash", "zsh", "fish"],
        "train *": data.names(),
    }
    try:
        print(script(given[0], words), end="")
    except ValueError as error:
        raise UsageError(str(error)) from error
    return 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "evaluate": _evaluate,
    "compare": _compare,
    "report": _report,
    "predict": _predict,
    "list": _list,
    "show": _show,
    "completion": _completion,
}


class _Parser(ArgumentParser):
    """A parser whose errors are one line that names the nearest flag."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, default_meta=False)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong in one line."""
        known = [flag for action in self._actions for flag in action.option_strings]
        unknown = re.findall(r"--[\w-]+", message) if "nrecognized" in message or "not recognized" in message else []
        hint = "".join(_nearest(flag, known) for flag in unknown)
        raise UsageError(f"{' '.join(message.split())}{hint} ({self.prog} --help lists the options)")


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else "."


def _print_result(run: Any) -> None:
    result = run.result()
    if result is not None:
        print(_lines(result["metrics"]))
    print(f"run: {run.folder}")


def _lines(metrics: dict[str, float]) -> str:
    width = max(map(len, metrics), default=0)
    return "\n".join(f"{name.ljust(width)}  {value:.4f}" for name, value in metrics.items())


def _module_of(loader: Any) -> str:
    return str(getattr(loader, "func", loader).__module__)


def _first_line(module: str) -> str:
    return (sys.modules[module].__doc__ or "").strip().splitlines()[0]


def _first_doc(thing: Any) -> str:
    return ((thing.__doc__ or "").strip().splitlines() or [""])[0]


def _comment(path: Path) -> str:
    return path.read_text().splitlines()[0].lstrip("# ")


if __name__ == "__main__":
    sys.exit(main())
