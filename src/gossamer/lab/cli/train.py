"""``gossamer train``: a new run from flags and a configuration file, or an interrupted one."""

import json
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypedDict

from gossamer import methods
from gossamer._text.names import refuse_foreign_code, unknown
from gossamer._text.terminal import columns
from gossamer.files import schema
from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, folder, with_underscores
from gossamer.lab.record import Run, to_toml
from gossamer.lab.runs.settings import CHECKPOINT_SECONDS, Settings

SWITCHES = {"--quiet", "--print_config", "--help", "-h"}


def train(given: list[str]) -> int:
    """Train a new run, or continue one."""
    given = with_underscores(given)
    if any(argument.split("=")[0] == "--resume" for argument in given):
        return _resume(given)
    file, given = take_value(given, "--config")
    content = read_config(folder(file)) if file is not None else {}
    if not content and not positions(given):
        return _without_method(given)
    try:
        method, given = _take_method(given, content)
        data = content.pop("data", None)
        known = [
            *(item.name for item in fields(Settings) if item.name != "options"),
            *methods.options_of(method),
            "out",
        ]
        title = (methods.find(method).__doc__ or method).splitlines()[0].replace("``", "")
        parser = add_method_flags(Parser(f"gossamer train {method}", title), method)
        flags = flags_of(file or "", content, known, lambda flags: parser.parse(["data", *flags]))
        names = [] if data is None or positions(given) else [str(data)]
        options = parser.parse([*names, *flags, *given])  # the last of two flags wins
        settings = _settings(method, vars(options))
    except ValueError as error:
        raise UsageError(str(error)) from error
    if options.print_config:
        print(to_toml(settings.to_config()), end="")
        return 0
    from gossamer.lab.runs.job import train as train_run

    _print_run(train_run(settings, None if options.out is None else folder(options.out), **_way_of_running(options)))
    return 0


def add_method_flags(parser: Parser, method: str) -> Parser:
    """The data, the options of a method, and the settings of any run."""
    what = "Name of the data set (gossamer list data has them), or your own: a file of a table or of arrays, a "
    parser.add_argument("data", help=f"{what}folder of images with a sub-folder per class, or module:function.")
    parser.add_signature(methods.find(method), f"options of {method}", skip={"task", "steps"}, optional=True)
    return _add_settings(parser)


def add_common_flags(parser: Parser) -> Parser:
    """What can be said about training by any method."""
    parser.add_flag("resume", str | None, "Continue the run in this folder, to the bit.")
    return _add_settings(parser)


def _add_settings(parser: Parser) -> Parser:
    parser.add_signature(Settings, "settings of the run", skip={"method", "data", "options"})
    parser.add_flag("out", str | None, "The run folder; runs/<date>-<method>-<data>-<seed> if not given.")
    parser.add_flag("config", str | None, "A TOML file with any of these; flags given here win.")
    parser.add_flag("print_config", None, "Print the configuration as TOML and stop.")
    return _add_way_of_running(parser)


def _add_way_of_running(parser: Parser) -> Parser:
    parser.add_flag("checkpoint_seconds", float, "Seconds between checkpoints.", CHECKPOINT_SECONDS)
    parser.add_flag("stop_after", float | None, "Seconds after which to stop with a checkpoint; --resume goes on.")
    parser.add_flag("trust", str | None, "Code of yours, module:function with commas, that a file may name.")
    parser.add_flag("quiet", None, "Show no progress.")
    return parser


def _way_of_running(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("quiet", "checkpoint_seconds", "stop_after")}


def _resume(given: Sequence[str]) -> int:
    parser = Parser("gossamer train", "Continue a run, with the settings it has.")
    parser.add_flag("resume", str, "The run folder.")
    parser.add_flag("data", str | None, "Where the data of the run are now, if they have moved.")
    parser.add_flag("ranks", int | None, "Processes that train together from here on; as many as before if not given.")
    options = _add_way_of_running(parser).parse(given)
    run = Run.open(folder(options.resume))  # reports a wrong path before the training loop is imported
    from gossamer.lab.runs.job import resume
    from gossamer.lab.runs.progress import is_first_process

    was_finished = run.result() is not None
    run = resume(run.folder, data=options.data, ranks=options.ranks, **_way_of_running(options))
    if was_finished and is_first_process():
        print(f"{run.folder} is finished already; nothing was trained", file=sys.stderr)
    _print_run(run)
    return 0


def _print_run(run: Run) -> None:
    """What a run reached, and where it is; printed once, however many processes trained it."""
    from gossamer.lab.runs.progress import is_first_process
    from gossamer.metrics.registry import texts

    if not is_first_process():
        return
    result = run.result()
    if result is not None:
        print(columns(texts(result["metrics"])))
    print(f"run: {run.folder}")


def _without_method(given: Sequence[str]) -> int:
    if "-h" in given or "--help" in given:
        title = f"Train a run. Methods: {', '.join(methods.names())}."
        add_common_flags(Parser("gossamer train METHOD DATA", title)).print_help()
        print("\ngossamer train METHOD --help adds the options of a method; gossamer list methods describes them.")
        return 0
    raise UsageError(f"train needs a method: gossamer train METHOD DATA; methods are {', '.join(methods.names())}")


def _take_method(given: list[str], content: dict[str, Any]) -> tuple[str, list[str]]:
    """The method, from the command line or the file, and the arguments without it.

    A single name beside a file that has a method is the name of the data, unless a method has that name.
    """
    in_file, names = content.pop("method", None), positions(given)
    first = given[names[0]] if names else ""
    later = [given[at] for at in names[1:] if given[at] in methods.names()]
    if later and ":" not in first and first not in methods.names():
        raise UsageError(f"the method comes first: gossamer train {later[0]} {shlex.quote(first)}")
    if names and (len(names) > 1 or in_file is None or first in methods.names() or ":" in first):
        return first, [*given[: names[0]], *given[names[0] + 1 :]]
    if in_file is None:
        raise UsageError("the file names no method: write method = … in it, or say gossamer train METHOD --config FILE")
    return str(in_file), given


def take_value(given: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag, and the arguments without it."""
    for at, argument in enumerate(given):
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}="), [*given[:at], *given[at + 1 :]]
        if argument == flag:
            if at + 1 == len(given):
                raise UsageError(f"{flag} needs a file")
            return given[at + 1], [*given[:at], *given[at + 2 :]]
    return None, given


def positions(given: Sequence[str]) -> list[int]:
    """Where the arguments stand that are neither flags nor values of flags."""
    found, is_value = [], False
    for at, argument in enumerate(given):
        if re.match(r"-+[A-Za-z]", argument):
            is_value = "=" not in argument and argument not in SWITCHES
            continue
        if not is_value:
            found.append(at)
        is_value = False
    return found


def _settings(method: str, values: dict[str, Any]) -> Settings:
    common = {item.name: values[item.name] for item in fields(Settings) if item.name not in ("method", "options")}
    options = {name: values[name] for name in methods.options_of(method) if values[name] is not None}
    return Settings(method, **common, options=options)


class _Config(TypedDict, total=False):
    """A file of settings; all but the options are checked like flags."""

    options: dict[str, Any]


def read_config(path: Path) -> dict[str, Any]:
    """The keys of a TOML file; options of the method stand among the others."""
    try:
        content: dict[str, Any] = schema.read(path, _Config, "write keys and values")
        refuse_foreign_code(path, content)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if isinstance(content.get("methods"), dict):
        raise UsageError(f"{path} is a recipe: gossamer compare {shlex.quote(str(path))} trains it")
    options = content.pop("options", {})
    content.pop("format", None)
    return {**content, **options}


def flags_of(
    file: str, content: dict[str, Any], known: Sequence[str], parse: Callable[[list[str]], object]
) -> list[str]:
    """The keys of a file as flags, which a parser takes; an error names the file."""
    for key in content:
        if key.replace("-", "_") not in known:
            raise UsageError(f"{file}: {unknown('key', key, known)}")
    flags = [f"--{key}={value if isinstance(value, str) else json.dumps(value)}" for key, value in content.items()]
    try:
        parse(flags)
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return flags
