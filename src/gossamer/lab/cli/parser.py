"""Flags from signatures: names, types, defaults and help of a function's arguments become those of a command."""

import argparse
import functools
import inspect
import json
import re
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NoReturn, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse

from gossamer._text.names import suggestion
from gossamer.files.schema import parse_value
from gossamer.lab.cli import UsageError

_NOT_GIVEN = re.compile("`*None`* is")  # in the docstring of a function: a flag is rather left out


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line that names the nearest flag."""

    def __init__(self, prog: str, description: str = "", **rest: Any) -> None:
        super().__init__(prog=prog, description=description.replace("%", "%%"), allow_abbrev=False, **rest)

    def add_flag(self, name: str, kind: Any, help: str, default: Any = None, group: Any = None) -> None:
        """A flag with a value of a type, or a switch if the type is ``None``."""
        text = _NOT_GIVEN.sub("if not given,", " ".join(help.split())).replace(". if", ". If")
        text = text.replace("``", "").replace("%", "%%")  # argparse formats with %
        if kind is None:
            (group or self).add_argument(f"--{name}", action="store_true", help=text)
            return
        shown = "" if default is None else f" (default: {_as_typed(default)})".replace("%", "%%")
        convert, choices = functools.partial(_typed, kind=kind), _choices(name, kind)
        value = f"{{{','.join(choices)}}}" if choices else None
        (group or self).add_argument(f"--{name}", type=convert, default=default, metavar=value, help=text + shown)

    def add_signature(
        self, function: Callable[..., Any], title: str, skip: Collection[str] = (), *, optional: bool = False
    ) -> None:
        """A flag for every argument of a function or class, with the help of its docstring.

        An ``optional`` flag is ``None`` unless it is given; its default is only mentioned in the help.
        """
        group = self.add_argument_group(title)
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
        help_of = {item.arg_name: item.description or "" for item in parse(function.__doc__ or "").params}
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in skip:
                default, text = parameter.default, help_of.get(name, "")
                if optional and default is not None:
                    default, text = None, f"{text} {_as_typed(default)} if not given."
                self.add_flag(name, hints[name], text, default, group)

    def parse(self, given: Sequence[str]) -> argparse.Namespace:
        """The values of the flags; ``-`` inside the name of a flag is as good as ``_``."""
        return self.parse_args(with_underscores(given))

    def format_help(self) -> str:
        """The help, with a usage of one line: forty flags in brackets help nobody."""
        forms = {"?": "[{}]", "+": "{} …"}
        positions = [action for action in self._actions if not action.option_strings]
        names = [forms.get(str(action.nargs), "{}").format(action.dest.upper()) for action in positions]
        self.usage = " ".join(["%(prog)s", *names, "[options]"])
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        text = re.sub(r"^argument (--\w+): must be", r"\1 must be", " ".join(message.split()))
        hint = ""
        if text.startswith("unrecognized arguments"):
            known = [flag for action in self._actions for flag in action.option_strings]
            for flag in re.findall(r"--[\w-]+", text)[:1]:
                text, hint = f"{self.prog} takes no {flag}", suggestion(flag, known)
        raise UsageError(f"{text}{hint or '.'} {self.prog} --help lists the options")


def add_reading_flags(parser: Parser) -> Parser:
    """Flags of commands that restore a run."""
    parser.add_flag("data", str | None, "Where the data of the run are now, if they have moved.")
    parser.add_flag("trust", str | None, "Code of yours, module:function with commas, that the run may import.")
    parser.add_flag("quiet", None, "Show no progress.")
    return parser


def _choices(name: str, kind: Any) -> list[str]:
    """The words that a flag takes, if they are few; some take a function of yours as well."""
    if kind is bool:
        return ["true", "false"]
    if name in ("model", "removal", "addition", "allocation"):
        from gossamer import models
        from gossamer.sparsity import allocation, criteria

        tables: Mapping[str, Iterable[str]] = {
            "model": models.names(),
            "removal": criteria.REMOVAL,
            "addition": criteria.ADDITION,
            "allocation": allocation.ALLOCATION,
        }
        return [word for word in tables[name] if not word.endswith("_")]
    parts = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    words = [str(word) for part in parts if get_origin(part) is Literal for word in get_args(part)]
    return [*words, "NUMBER"] if words and float in parts else words


def _as_typed(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _typed(text: str, kind: Any) -> Any:
    try:
        return parse_value(text, kind)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def with_underscores(given: Sequence[str]) -> list[str]:
    """The flags with ``_`` for each ``-`` inside their names; their values as they are."""
    parts = [argument.partition("=") if argument.startswith("--") else ("", "", argument) for argument in given]
    return ["--" * bool(name) + name[2:].replace("-", "_") + equals + value for name, equals, value in parts]


def folder(text: str) -> Path:
    """The path that a flag names; a shell does not expand ``~`` in ``--out=~/runs``."""
    return Path(text).expanduser()


def names_of(given: str | None) -> list[str]:
    """Names with commas between them."""
    return [name.strip() for name in (given or "").split(",") if name.strip()]


def writable(flag: str, path: str | None) -> Path | None:
    """The file that a flag names, if it can be written there: said now, not after the work."""
    if path is None:
        return None
    file = folder(path)
    if not file.parent.is_dir():
        raise UsageError(f"--{flag} {file}: the folder {file.parent} does not exist")
    if file.is_dir():
        raise UsageError(f"--{flag} {file} is a folder, give a file in it")
    return file
