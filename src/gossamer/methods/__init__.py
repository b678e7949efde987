"""Methods: one file each, a function that names its parts. The folder is the registry.

Each takes the task, with N training examples, the length of the training in steps, and options of its own.

A method of your own needs no place in it: ``module:function`` names a function in any module that can be imported, for
:func:`build`, on the command line and in the configuration of a run.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Mapping
from typing import Any, get_args, get_type_hints

from gossamer._text.names import imported, unknown
from gossamer.types import Formerly, Method, Task

__all__ = ["as_recorded", "build", "find", "names", "options_of"]

# Options of earlier versions that are gone, at the value with which a run is what it would be now; ... is any value.
GONE: dict[str, Any] = {"compare": ..., "hot": 1.0, "scale_lr": None}


def names() -> list[str]:
    """Names of all methods.

    Example:
        >>> "ssvi" in names()
        True
    """
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Callable[..., Method]:
    """The function called ``name`` in the file of that name, or one of yours, as ``module:function``.

    Example:
        >>> find("ssvi").__name__, find("gossamer.methods.ssvi:ssvi") is find("ssvi")
        ('ssvi', True)
    """
    if ":" in name:
        return _checked(name, imported("method", name))
    if name not in names():
        raise ValueError(unknown("method", name, names()))
    function: Callable[..., Method] = getattr(importlib.import_module(f"gossamer.methods.{name}"), name)
    return function


def build(name: str, task: Task, steps: int, **options: Any) -> Method:
    """The method called ``name`` for a task and a length of training, with options of its own.

    Example:
        >>> from gossamer.data import digits
        >>> build("ssvi", digits.load(), steps=100, density=0.1).lr(10) > 0
        True
    """
    function, lr = find(name), options.get("lr")
    if lr is not None and not lr > 0:
        raise ValueError(f"lr, the learning rate of {name}, must be positive; got {lr}")
    method = function(task, steps, **options)
    if not isinstance(method, Method):
        raise TypeError(f"method {name!r} must return a gossamer.types.Method; it returned {type(method).__name__}")
    return method


def as_recorded(name: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a method as a run of any version recorded them, under their present names.

    Example:
        >>> as_recorded("ssvi", {"density": 0.1, "members": 3}), as_recorded("ssvi", {"cycles": 1, "members": 3})
        ({'density': 0.1, 'cycles': 3}, {'cycles': 1, 'members': 3})
        >>> as_recorded("ssvi", {"density": 0.1, "compare": "snr"})
        {'density': 0.1}
    """
    hints = get_type_hints(find(name), include_extras=True)
    found = {
        option: value
        for option, value in options.items()
        if option in hints or option not in GONE or GONE[option] not in (value, ...)
    }
    for option, hint in hints.items():
        for former in get_args(hint):
            if isinstance(former, Formerly) and option not in found and former.name in found:
                found[option] = found.pop(former.name)
    return found


def options_of(name: str) -> dict[str, tuple[Any, Any]]:
    """The options of a method: type and default by name, from its signature."""
    function = find(name)
    hints, parameters = get_type_hints(function), inspect.signature(function).parameters
    return {
        option: (hints[option], item.default) for option, item in parameters.items() if option not in ("task", "steps")
    }


def _checked(name: str, function: Callable[..., Method]) -> Callable[..., Method]:
    """A method of the user's own, if its signature can be read as its configuration."""
    parameters = inspect.signature(function).parameters
    if list(parameters)[:2] != ["task", "steps"]:
        raise ValueError(f"method {name!r} must be a function of (task, steps, *, …) that returns a Method")
    for option in list(parameters.values())[2:]:
        if inspect.Parameter.empty in (option.annotation, option.default):
            raise ValueError(
                f"option {option.name} of method {name!r} needs a type and a default, as in density: float = 0.1"
            )
    return function
