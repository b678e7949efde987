"""What a file may hold, said by type hints: one check for every file that is read.

Files come from anybody. Whatever is read is parsed and compared with a hint before anything is made of it, and an error
names the file, the field, what is wrong with it and a way out. A hint is a type such as ``int``, ``X | Y``,
``Literal``, ``list[X]``, ``tuple[X, ...]``, ``dict[str, X]``, a ``TypedDict``, a dataclass, or any class; ``Within``
bounds a number. Keys that a ``TypedDict`` does not name are left alone: a later version may have written them.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import json
import math
import tomllib
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    NotRequired,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

LARGEST = 2**26  # bytes of a file of text, whose content takes some ten times as much in memory
WORDS = {"none": None, "null": None, "true": True, "yes": True, "false": False, "no": False}
WHOLE = 2**63  # no whole number in a file reaches it: neither numpy nor torch could hold it
_Kind = TypeVar("_Kind")


class Within(NamedTuple):
    """Bounds of a number, which is then finite: ``Annotated[float, Within(0, 1)]``."""

    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        low, high = (f"{end:g}" for end in self)
        return f"from {low} to {high}" if math.isfinite(self.high) else f"from {low}"


Finite = Annotated[float, Within()]
Count = Annotated[int, Within(0)]


def read(path: Path, hint: Any, fix: str, most: int = LARGEST) -> Any:
    """The content of a JSON or (with any other ending) TOML file of at most so many bytes, checked.

    ``fix``, what to do if the file does not hold what ``hint`` says, ends the message of a ``ValueError``.
    """
    size = path.stat().st_size
    if size > most:
        raise ValueError(f"{path} has {size:,} bytes, a file of its kind at most {most:,}; {fix}")
    return check(parse(path, read_bytes(path), fix), hint, path, fix)


def read_bytes(path: Path) -> bytes:
    """The content of a file; anything in its place that may never end, such as a named pipe, is an ``OSError``."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise OSError(errno.EINVAL, "it is not a file")
    return path.read_bytes()


def parse(path: Path, data: bytes, fix: str) -> Any:
    """The values that the text of a file means, by its ending."""
    meaning: Callable[[str], Any] = json.loads if path.suffix in (".json", ".jsonl") else tomllib.loads
    try:
        return _bounded(meaning(data.decode()))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is broken: {' '.join(str(error).split())[:200]}; {fix}") from error


def check(value: Any, hint: Any, where: object, fix: str) -> Any:
    """The value itself, if it is what a hint says; otherwise a ``ValueError`` about the field that is not."""
    problem = _problem(value, hint, "")
    if problem is not None:
        raise ValueError(f"{where} is broken: {problem}; {fix}")
    return value


def made(kind: type[_Kind], content: Any, where: object, fix: str) -> _Kind:
    """An instance of a dataclass, and of those in its fields, from the tree that ``dataclasses.asdict`` made of it."""
    check(content, kind, where, fix)
    result: _Kind = _made(kind, content)
    return result


def check_type(name: str, value: Any, hint: Any) -> None:
    """Reject an argument that a type hint does not allow."""
    if _problem(value, hint, "") is not None:
        raise ValueError(f"{name} must be {describe_type(hint)}; got {value!r:.100}")


def describe_type(hint: Any) -> str:
    """A type in words.

    Example:
        >>> describe_type(int | None), describe_type(dict[str, float]), describe_type(Count)
        ('a whole number or none', 'a table', 'a whole number from 0')
    """
    kind = get_origin(hint)
    if kind is Annotated:
        base, bounds = get_args(hint)
        return (
            describe_type(base).replace("a ", "a finite ", 1)
            if bounds == Within()
            else f"{describe_type(base)} {bounds}"
        )
    if kind in (Union, types.UnionType):
        return " or ".join(describe_type(part) for part in get_args(hint))
    if kind is Literal:
        return " or ".join(map(repr, get_args(hint)))
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
    plain = kind or hint
    if is_typeddict(hint) or dataclasses.is_dataclass(hint) or plain in (dict, Mapping):
        return "a table"
    if plain in (list, tuple, Sequence):
        return "a list"
    return words.get(hint, "a function" if kind is Callable else getattr(plain, "__name__", str(hint)))


def parse_value(text: str, hint: Any) -> Any:
    """The value of a type that a text means, as on the command line.

    Example:
        >>> parse_value("0.1", float), parse_value("none", int | None), parse_value("[8, 4]", list)
        (0.1, None, [8, 4])
    """
    kinds = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    if text.lower() in WORDS and any(type(WORDS[text.lower()]) is one for one in kinds):
        return WORDS[text.lower()]
    for one in kinds:
        if get_origin(one) is Literal and text in get_args(one):
            return text
    for one in (int, float, str):
        if one in kinds:
            with contextlib.suppress(ValueError):
                return one(text)
    with contextlib.suppress(ValueError):
        value = json.loads(text)  # a list or a table
        check_type("", value, hint)
        return value
    raise ValueError(f"must be {describe_type(hint)}; got {text!r}")


class Entries:
    """A dictionary of a file whose entries are checked as they are read: an error names the file, the entry and a fix.

    For files whose later entries depend on the earlier ones, or on a network.
    """

    FIX = "write the file again"

    def __init__(self, path: Path, content: dict[Any, Any], name: str = "") -> None:
        self.path, self.content, self.name = path, content, name

    def get(self, key: str, hint: type[_Kind]) -> _Kind:
        """The entry ``key``, which must be what a hint says; a bool is no number, and a whole number is a float too."""
        if key not in self.content:
            raise self.error(key, "is missing")
        value = self.content[key]
        problem = _problem(value, hint, f"{self.name}{key:.100}")
        if problem is not None:
            raise ValueError(f"{self.path}: {problem}; {self.FIX}")
        return float(value) if hint is float else value  # type: ignore[return-value]

    def inside(self, key: str) -> Entries:
        """The entry ``key``, a dictionary itself."""
        return Entries(self.path, self.get(key, dict), f"{self.name}{key}/")

    def each(self, key: str) -> list[Entries]:
        """The entry ``key``, a list of dictionaries with at least one."""
        items = self.get(key, list[dict[Any, Any]])
        if not items:
            raise self.error(key, "is empty")
        return [Entries(self.path, item, f"{self.name}{key}/{i}/") for i, item in enumerate(items)]

    def error(self, key: str, problem: str, fix: str = FIX) -> ValueError:
        """The error about an entry."""
        return ValueError(f"{self.path}: {self.name}{key:.100} {problem}; {fix}")


def _problem(value: Any, hint: Any, name: str) -> str | None:
    """What is wrong with the field ``name``, in words; ``None`` if nothing is."""
    kind, parts = get_origin(hint), get_args(hint)
    if hint is Any or (kind is None and not isinstance(hint, type)):
        return None
    if kind is Annotated:
        problem = _problem(value, parts[0], name)
        right = problem is None and all(math.isfinite(value) and low <= value <= high for low, high in parts[1:])
        return None if right else _wrong(value, hint, name)
    if kind in (Union, types.UnionType):
        problems = [_problem(value, part, name) for part in parts]
        return None if None in problems else _wrong(value, hint, name)
    if kind is Literal:
        return None if any(value == part and type(value) is type(part) for part in parts) else _wrong(value, hint, name)
    if is_typeddict(hint) or dataclasses.is_dataclass(hint):
        return _problem_of_fields(value, hint, name)
    if not _is_a(value, kind or hint):
        return _wrong(value, hint, name)
    items: Any = ()
    if parts and kind in (dict, Mapping):
        items = [(key, key, parts[0]) for key in value] + [(key, item, parts[1]) for key, item in value.items()]
    elif parts and kind in (list, tuple, Sequence):
        hints = parts if kind is tuple and Ellipsis not in parts else (parts[0],) * len(value)
        if len(hints) != len(value):
            return f"{name or 'it'} must have {len(hints)} entries, not {len(value)}"
        items = zip(range(len(value)), value, hints, strict=True)
    found = (_problem(item, part, f"{name}/{key!s:.40}".lstrip("/")) for key, item, part in items)
    return next((problem for problem in found if problem is not None), None)


def _problem_of_fields(value: Any, hint: Any, name: str) -> str | None:
    if not isinstance(value, dict):
        return _wrong(value, hint, name)
    known, needed, is_open = _fields(hint)
    begin = f"{name}/" if name else ""
    if lost := needed - value.keys():
        return f"{begin}{min(lost)} is missing"
    if not is_open and (more := set(map(str, value)) - known.keys()):
        return f"{begin}{min(more)!s:.40} is unknown; known are {', '.join(known)}"
    found = (_problem(value[key], part, f"{begin}{key}") for key, part in known.items() if key in value)
    return next((problem for problem in found if problem is not None), None)


@functools.cache
def _fields(hint: Any) -> tuple[dict[str, Any], set[str], bool]:
    """Hints by name, names that must be there, and whether others may be."""
    known = get_type_hints(hint, include_extras=True)
    if is_typeddict(hint):  # its own __required_keys__ does not see NotRequired in hints that are strings
        free = {name for name, part in known.items() if get_origin(part) is NotRequired}
        plain = {name: get_args(part)[0] if name in free else part for name, part in known.items()}
        return plain, known.keys() - free if hint.__total__ else set(), True
    fields = dataclasses.fields(hint)
    needed = {item.name for item in fields if item.default is item.default_factory is dataclasses.MISSING}
    return {item.name: known[item.name] for item in fields}, needed, False


def _is_a(value: Any, kind: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool) and kind in (int, float):
        return -WHOLE <= value < WHOLE
    if isinstance(value, bool) and kind in (int, float):  # Python counts True as 1
        return False
    return not isinstance(kind, type) or isinstance(value, kind)


def _wrong(value: Any, hint: Any, name: str) -> str:
    given = type(value).__name__ if isinstance(value, dict | list) else f"{value!r:.40}"
    return f"{name or 'it'} must be {describe_type(hint)}; got {given}"


def _made(hint: Any, value: Any) -> Any:
    kind, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint) and isinstance(value, dict):
        known = _fields(hint)[0]
        return hint(**{name: _made(known[name], item) for name, item in value.items()})
    if kind in (Union, types.UnionType) and isinstance(value, dict):
        return _made(next(part for part in parts if _problem(value, part, "") is None), value)
    if kind is list:
        return [_made(parts[0], item) for item in value]
    return value


def _bounded(tree: Any) -> Any:
    """The tree itself; whole numbers of hundreds of digits, which nothing can compute with, are a ``ValueError``."""
    items = [tree]
    while items:
        item = items.pop()
        items += item.values() if isinstance(item, dict) else item if isinstance(item, list) else ()
        if isinstance(item, int) and not -WHOLE <= item < WHOLE:
            raise ValueError(f"a whole number of {len(str(item))} digits")
    return tree
