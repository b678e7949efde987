"""Names that users type: looked up, and corrected where a known one is near."""

import contextlib
import difflib
import importlib
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, TypeVar, cast

Part = TypeVar("Part", bound=Callable[..., Any])
Base = TypeVar("Base")


def suggestion(word: str, known: Iterable[str], n: int = 1) -> str:
    """The nearest known words as the end of a sentence; nothing if none is near."""
    spelled = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), spelled, n=n)
    return f"; did you mean {', '.join(repr(spelled[name]) for name in near)}?" if near else ""


def unknown(kind: str, name: object, known: Iterable[str]) -> str:
    """The message for a name that does not exist."""
    names = list(known)
    hint = suggestion(name, names) if isinstance(name, str) else ""
    return f"unknown {kind} {name!r}{hint or '.'} Known: {', '.join(names)}"


def lookup(kind: str, choice: str | Part, known: Mapping[str, Part]) -> Part:
    """The function called ``choice``, or one of yours as ``module:function``; a callable is returned as it is."""
    if callable(choice):
        return choice
    if choice in known:
        return known[choice]
    if isinstance(choice, str) and ":" in choice:
        return cast(Part, imported(kind, choice))
    raise ValueError(f"{unknown(kind, choice, known)}. Any callable is accepted too.")


def imported(kind: str, name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names, in any module that Python finds."""
    module, _, function = name.partition(":")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{kind} {name!r}: Python finds no module {error.name!r}: install it, or name its folder in PYTHONPATH "
            "(PYTHONPATH=. for this one) if you trust the code there"
        ) from error
    result: Callable[..., Any] | None = getattr(found, function, None)
    if not callable(result):
        hint = suggestion(function, dir(found))
        raise ValueError(f"{kind} {name!r}: the module {module} has no function {function!r}{hint}")
    return result


def code_name(kind: type) -> str:
    """``module:Class``, by which a file names a class; the module is the first package that has it by its name.

    Example:
        >>> from gossamer.files import schema
        >>> code_name(schema.Entries)
        'gossamer.files.schema:Entries'
    """
    parts = kind.__module__.split(".")
    for module in (".".join(parts[: i + 1]) for i in range(len(parts))):
        if getattr(sys.modules.get(module), kind.__qualname__, None) is kind:  # also if it is imported on first use
            return f"{module}:{kind.__qualname__}"
    raise TypeError(
        f"{kind.__qualname__} cannot be saved, because no other program would find it: define it in a module"
    )


def named_class(base: type[Base], name: str, where: object) -> type[Base]:
    """The subclass of ``base`` that a file calls ``module:Class``; one that is not Gossamer's own has to be trusted."""
    if not OUR_CODE.fullmatch(name):
        refuse_foreign_code(where, name)
    try:
        kind: Any = imported(base.__name__, name) if OWN_CODE.fullmatch(name) else None
    except (ValueError, ImportError) as error:
        raise ValueError(f"{where} is {name!r:.50}: {error}; upgrade gossamer, or find the module") from error
    if not (isinstance(kind, type) and issubclass(kind, base)) or inspect.isabstract(kind):
        raise ValueError(
            f"{where} is {name!r:.50}, which is no {base.__name__} that this version knows; upgrade gossamer"
        )
    return kind


def needs(*modules: str, extra: str) -> None:
    """Raise an error that names the extra to install, unless all of these modules can be found.

    >>> needs("torch", extra="train")
    >>> needs("a_module_that_is_not_there", extra="train")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: this needs a_module_that_is_not_there: pip install 'gossamer[train]'
    """
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"this needs {name}: pip install 'gossamer[{extra}]'", name=name)


OWN_CODE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
OUR_CODE = re.compile(r"gossamer(\.[a-z]\w*)*:[A-Z]\w*")  # a class of ours, and nothing that runs when it is imported
_trusted: ContextVar[frozenset[str]] = ContextVar("trusted", default=frozenset())
NEVER_CODE = ("data_dir", "target", "drop", "out")  # settings that are texts of any form


def own_code(value: Any) -> set[str]:
    """Every ``module:function`` in a value, or in the tables and lists that it holds.

    Example:
        >>> sorted(own_code({"data": "mine:load", "options": {"removal": "lamp:lamp", "density": 0.1}}))
        ['lamp:lamp', 'mine:load']
    """
    if isinstance(value, Mapping):
        return {name for key, item in value.items() if key not in NEVER_CODE for name in own_code(item)}
    if isinstance(value, list | tuple):
        return {name for item in value for name in own_code(item)}
    return {value} if isinstance(value, str) and OWN_CODE.fullmatch(value) else set()


@contextlib.contextmanager
def trusting(*names: str) -> Iterator[None]:
    """Within the block, files such as the configuration of a run may name these ``module:function``.

    Example:
        >>> with trusting("mine:load"):
        ...     refuse_foreign_code("config.toml", {"data": "mine:load"})
    """
    token = _trusted.set(_trusted.get() | frozenset(names))
    try:
        yield
    finally:
        _trusted.reset(token)


def refuse_foreign_code(where: object, content: Any) -> None:
    """A file may come from anybody: the code that it names is imported only if the user names it, too."""
    foreign = sorted(own_code(content) - _trusted.get())
    if foreign:
        raise ValueError(
            f"{where} names code that is not part of Gossamer: {', '.join(foreign)}. If you trust it, name it again: "
            f"--trust {','.join(foreign)} (in Python: with gossamer.lab.trusting(…))"
        )


def file_name(name: str) -> str:
    """A name as a part of a path."""
    return name.translate(str.maketrans("/: ", "---"))
