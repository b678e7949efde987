"""``gossamer train``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from gossamer import methods
from gossamer.cli.config import as_flags, known_method, print_config, read_config
from gossamer.cli.errors import UsageError
from gossamer.cli.parser import Parser, folder, with_underscores
from gossamer.cli.printing import print_run
from gossamer.record import Run
from gossamer.runs.settings import CHECKPOINT_SECONDS, Settings, options_of

__all__ = ["common_parser", "method_parser", "run"]

WITHOUT_VALUE = {"--quiet", "--print_config", "--help", "-h"}


def run(given: list[str]) -> int:
    """Train a new run, or continue one."""
    given = with_underscores(given)
    if any(argument.split("=")[0] == "--resume" for argument in given):
        return _resume(given)
    file, given = _take_value(given, "--config")
    content = read_config(folder(file)) if file is not None else {}
    if not content and not _positions(given):
        return _without_method(given)
    method, given = _take_method(given, content)
    data = content.pop("data", None)
    flags = _flags_of(file or "", content, method)  # before those of the command line: the last one wins
    names = [] if data is None or _positions(given) else [str(data)]
    # The parser of jsonargparse has a meaning of its own for this flag.
    to_parse = [flag for flag in [*names, *flags, *given] if flag != "--print_config"]
    options = method_parser(method).parse(to_parse)
    settings = _settings(method, vars(options))
    if "--print_config" in given:
        print_config(settings)
        return 0
    from gossamer.runs.run import train

    out = None if options.out is None else folder(options.out)
    print_run(train(settings, out, **_way_of_running(options)))
    return 0


def method_parser(method: str) -> Parser:
    """All that can be said about training by a method."""
    function = methods.find(method)
    parser = Parser(f"gossamer train {method}", (function.__doc__ or method).splitlines()[0].replace("``", ""))
    parser.add_argument("data", type=str, help="Name of the data set; gossamer list data has them.")
    parser.add_signature(function, f"options of {method}", skip={"task", "steps"})
    return _with_settings(parser)


def common_parser() -> Parser:
    """What can be said about training by any method."""
    description = f"Train a run: gossamer train METHOD DATA [options]. Methods: {', '.join(methods.names())}."
    parser = Parser("gossamer train", description)
    parser.add_flag("resume", str | None, "Continue the run in this folder, to the bit.")
    return _with_settings(parser)


def _with_settings(parser: Parser) -> Parser:
    parser.add_signature(Settings, "settings of the run", skip={"method", "data", "options"})
    parser.add_flag("out", str | None, "The run folder; runs/<date>-<method>-<data>-<seed> if not given.")
    parser.add_flag("config", str | None, "A TOML or YAML file with any of these; flags given here win.")
    parser.add_argument("--print_config", action="store_true", help="Print the configuration as TOML and stop.")
    _add_way_of_running(parser)
    return parser


def _add_way_of_running(parser: Parser) -> None:
    parser.add_flag("checkpoint_seconds", float, "Time between checkpoints.", CHECKPOINT_SECONDS)
    parser.add_flag("stop_after", float | None, "Seconds after which to stop with a checkpoint; --resume goes on.")
    parser.add_argument("--quiet", action="store_true", help="No progress.")


def _way_of_running(options: Any) -> dict[str, Any]:
    return {name: getattr(options, name) for name in ("quiet", "checkpoint_seconds", "stop_after")}


def _resume(given: Sequence[str]) -> int:
    parser = Parser("gossamer train", "Continue a run, with the settings it has.")
    parser.add_flag("resume", str, "The run folder.")
    _add_way_of_running(parser)
    options = parser.parse(given)
    run = Run.open(folder(options.resume))  # a wrong path is found out before the training loop is imported
    from gossamer.runs.run import resume

    print_run(resume(run.folder, **_way_of_running(options)))
    return 0


def _without_method(given: Sequence[str]) -> int:
    if "-h" in given or "--help" in given:
        common_parser().print_help()
        print("\ngossamer train METHOD --help adds the options of a method; gossamer list methods describes them.")
        return 0
    raise UsageError(f"train needs a method: gossamer train METHOD DATA; methods are {', '.join(methods.names())}")


def _take_method(given: list[str], content: dict[str, Any]) -> tuple[str, list[str]]:
    """The method, from the command line or the file, and the arguments without it.

    One name beside a file that has a method is that of the data, unless a method is called so.
    """
    in_file, names = content.pop("method", None), _positions(given)
    if names and (len(names) > 1 or in_file is None or _is_method(given[names[0]])):
        return known_method(given[names[0]]), [*given[: names[0]], *given[names[0] + 1 :]]
    if in_file is None:
        raise UsageError("the file names no method: write method = … in it, or say gossamer train METHOD --config FILE")
    return known_method(str(in_file)), given


def _is_method(name: str) -> bool:
    return name in methods.names() or ":" in name


def _flags_of(file: str, content: dict[str, Any], method: str) -> list[str]:
    """The keys of a file as flags; what is wrong with them is said of the file."""
    flags = as_flags(Path(file), content, method)
    try:
        method_parser(method).parse(["data", *flags])
    except UsageError as error:
        raise UsageError(f"{file}: {error}") from error
    return flags


def _take_value(given: list[str], flag: str) -> tuple[str | None, list[str]]:
    """The value of a flag, and the arguments without it."""
    for at, argument in enumerate(given):
        if argument.startswith(f"{flag}="):
            return argument.removeprefix(f"{flag}="), [*given[:at], *given[at + 1 :]]
        if argument == flag:
            if at + 1 == len(given):
                raise UsageError(f"{flag} needs a file")
            return given[at + 1], [*given[:at], *given[at + 2 :]]
    return None, given


def _positions(given: Sequence[str]) -> list[int]:
    """Where the arguments stand that are neither flags nor values of flags."""
    found, is_value = [], False
    for at, argument in enumerate(given):
        is_flag = re.match(r"-+[A-Za-z]", argument) is not None
        if is_flag:
            is_value = "=" not in argument and argument not in WITHOUT_VALUE
            continue
        if not is_value:
            found.append(at)
        is_value = False
    return found


def _settings(method: str, values: dict[str, Any]) -> Settings:
    """Settings from parsed flags."""
    common = {item.name: values[item.name] for item in fields(Settings) if item.name not in ("method", "options")}
    try:
        return Settings(method, **common, options={name: values[name] for name in options_of(method)})
    except ValueError as error:
        raise UsageError(str(error)) from error
