"""What a user typed, checked: names against the known ones, values against the types of a signature."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any, Literal, Union, get_args, get_origin

__all__ = ["check_type", "describe_type"]


def check_type(name: str, value: Any, hint: Any) -> None:
    """Refuse a value that a type hint does not allow.

    Example:
        >>> check_type("density", 1, float)
        >>> check_type("density", "much", float | None)
        Traceback (most recent call last):
        ValueError: density must be a number or none; got 'much'
    """
    if not _fits(value, hint):
        raise ValueError(f"{name} must be {describe_type(hint)}; got {value!r}")


def describe_type(hint: Any) -> str:
    """A type in words.

    Example:
        >>> describe_type(Literal["32", "bf16"]), describe_type(int | None)
        ("'32' or 'bf16'", 'a whole number or none')
    """
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(describe_type(part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return " or ".join(map(repr, get_args(hint)))
    words = {int: "a whole number", float: "a number", str: "a text", bool: "true or false", type(None): "none"}
    return words.get(hint, "a function" if _is_callable(hint) else getattr(hint, "__name__", str(hint)))


def _fits(value: Any, hint: Any) -> bool:
    if get_origin(hint) in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if get_origin(hint) is Literal:
        return value in get_args(hint)
    if _is_callable(hint):
        return callable(value)
    if hint in (int, float) and isinstance(value, bool):  # Python counts True as 1
        return False
    plain = get_origin(hint) or hint
    return isinstance(value, int | float) if plain is float else not isinstance(plain, type) or isinstance(value, plain)


def _is_callable(hint: Any) -> bool:
    return get_origin(hint) is get_origin(Callable[[], None])
