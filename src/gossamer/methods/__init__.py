"""Methods: one file each, a function that names its parts. The folder is the registry."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

from gossamer.names import unknown
from gossamer.types import Method, Task

__all__ = ["build", "find", "names"]


def names() -> list[str]:
    """Names of all methods.

    Example:
        >>> {"sgd", "ssvi"} <= set(names())
        True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Callable[..., Method]:
    """The function called ``name`` in the file of that name.

    Example:
        >>> find("ssvi").__name__
        'ssvi'
    """
    if name not in names():
        raise ValueError(unknown("method", name, names()))
    function: Callable[..., Method] = getattr(importlib.import_module(f"gossamer.methods.{name}"), name)
    return function


def build(name: str, task: Task, steps: int, **options: Any) -> Method:
    """The method called ``name`` for a task and a length of training, with options of its own.

    Example:
        >>> from gossamer.data import digits
        >>> build("ssvi", digits.load(), steps=100, density=0.1).lr(0) > 0
        True
    """
    return find(name)(task, steps, **options)
