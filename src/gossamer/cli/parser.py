"""Flags from signatures: names, types, defaults and help of a function's arguments become those of the command."""

from __future__ import annotations

import functools
import inspect
import operator
import re
import types
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn, Union, get_args, get_origin, get_type_hints

from docstring_parser import parse
from jsonargparse import ArgumentParser, Namespace

from gossamer.cli.errors import UsageError
from gossamer.names import suggestion
from gossamer.runs.settings import describe_type

__all__ = ["Parser", "folder", "with_underscores"]


class Parser(ArgumentParser):
    """A parser whose errors are one line that names the nearest flag."""

    def __init__(self, prog: str, description: str = "") -> None:
        super().__init__(prog=prog, description=description)
        self._types: dict[str, Any] = {}

    def add_flag(self, name: str, kind: Any, help: str, default: Any = None, group: Any = None) -> None:
        """A flag with a value, whose type its errors describe in words."""
        self._types[name] = kind
        text = help.replace("``", "").replace("%", "%%")  # argparse has a meaning of its own for %
        (group or self).add_argument(f"--{name}", type=kind, default=default, help=text)

    def add_signature(
        self, function: Callable[..., Any], title: str, skip: Collection[str] = (), *, optional: bool = False
    ) -> None:
        """A flag for every argument of a function or class, with the help of its docstring.

        An ``optional`` one is none unless it is given: its default only stands in the help.
        """
        group = self.add_argument_group(title)
        hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
        help_of = {item.arg_name: item.description or "" for item in parse(function.__doc__ or "").params}
        for name, parameter in inspect.signature(function).parameters.items():
            if name not in skip:
                kind, default, text = _typed_in_a_shell(hints[name]), parameter.default, help_of.get(name, "")
                if optional and default is not None:
                    kind, default, text = kind | None, None, f"{text} {default} if not given."
                self.add_flag(name, kind, text, default, group)

    def parse(self, given: Sequence[str]) -> Namespace:
        """The values of the flags; ``-`` inside the name of a flag is as good as ``_``."""
        return self.parse_args(with_underscores(given))

    def flags(self) -> list[str]:
        """All flags, by their long names."""
        return [flag for action in self._actions for flag in action.option_strings if flag.startswith("--")]

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        """Say what is wrong in one line."""
        text = " ".join(message.split())
        key = re.match(r'Parser key "(\w+)":.*?(?:Got value|Given value): (.*)$', text)
        if key and key[1] in self._types:
            text = f"--{key[1]} must be {describe_type(self._types[key[1]])}; got {key[2]!r}."
        elif "nrecognized arguments" in text:
            unknown = re.findall(r"--[\w-]+", text)
            text += "".join(suggestion(flag, self.flags()) for flag in unknown[:1]) or "."
        else:
            text += "."
        raise UsageError(f"{text} {self.prog} --help lists the options") from ex


def with_underscores(given: Sequence[str]) -> list[str]:
    """The flags with ``_`` for each ``-`` inside their names; their values as they are.

    Example:
        >>> with_underscores(["--batch-size=32", "--data-dir", "my-data"])
        ['--batch_size=32', '--data_dir', 'my-data']
    """
    return [_with_underscores(argument) if argument.startswith("--") else argument for argument in given]


def folder(text: str) -> Path:
    """The folder that a flag names; a shell does not resolve ``~`` in ``--out=~/runs``.

    Example:
        >>> folder("runs/first").as_posix()
        'runs/first'
    """
    return Path(text).expanduser()


def _with_underscores(flag: str) -> str:
    name, equals, value = flag.partition("=")
    return "--" + name[2:].replace("-", "_") + equals + value


def _typed_in_a_shell(hint: Any) -> Any:
    """The part of a type that can be typed in a shell: a name where a name or a function will do."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    parts = [part for part in get_args(hint) if get_origin(part) is not get_origin(Callable[[], None])]
    return functools.reduce(operator.or_, parts)
