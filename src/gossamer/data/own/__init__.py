"""Data of the user's own: a table, arrays, or a folder of images; ``files`` knows which files hold them.

Each kind is a file here with ``load(path, …) -> Task`` and ``describe(record)``. What was learnt from the
training rows is the *record* of the task: plain values for JSON, from which the task can be made without its data.
``texts`` is for functions of the user's own, which know their tokenizer.
"""

import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from gossamer.types import Task

__all__ = ["KINDS", "describe", "find", "kind_of", "options_of", "read", "shortened"]

KINDS = ("table", "arrays", "images")


def kind_of(name: str) -> str | None:
    """Which kind of own data a name is, by its ending, or ``"images"`` for a folder; ``None`` for any other name.

    Example:
        >>> kind_of("houses.csv"), kind_of("digits")
        ('table', None)
    """
    from gossamer.data.own.files import FILES

    path = Path(name).expanduser()
    if not name:
        return None
    is_folder = os.path.isdir(path) or path.is_absolute()  # noqa: PTH112 (Path.is_dir raises if the name is too long)
    file = FILES.get(path.suffix.lower())
    return (file.holds if file else None) or ("images" if is_folder else None)


def find(name: str, kind: str) -> Callable[..., Task]:
    """The loader of own data, a function of ``root``, which it does not need, and the options of its kind."""
    return functools.partial(_load, module=_module(kind), path=Path(name).expanduser().absolute())


def _load(root: str | Path | None = None, *, module: ModuleType, path: Path, **options: Any) -> Task:
    task: Task = module.load(path, **options)
    return task


def options_of(kind: str) -> set[str]:
    """Names of the options that a kind takes."""
    return set(inspect.signature(_module(kind).load).parameters) - {"path"}


def read(record: Mapping[str, Any], path: Path | str) -> tuple[Any, dict[str, list[str]]]:
    """New inputs as the task of ``record`` stores its own, ``(rows, …)``, and columns that name the rows, if any."""
    found: tuple[Any, dict[str, list[str]]] = _module(record["kind"]).read(record, path)
    return found


def describe(record: Mapping[str, Any]) -> str:
    """Own data in a few lines: what the columns were taken for, the target, the split."""
    sizes, target = record["sizes"], record["target"]
    classes = target.get("classes")
    if classes is None:
        what = f"{target['name']}, a number (mean {target['mean']:.4g}, std {target['std']:.4g})"
    else:
        what = f"{target['name']}, {len(classes)} classes: {shortened(classes)}"
    examples = f"{sizes['train']:,} for training, {sizes['val']:,} held out, {sizes['test']:,} for testing"
    lines = {**_module(record["kind"]).describe(record), "target": what, "examples": examples}
    return "\n".join([record["source"]["path"], *(f"  {name:<11} {text}" for name, text in lines.items())])


def shortened(names: Sequence[str], most: int = 12) -> str:
    """The first names of a long list."""
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")


def _module(kind: str) -> ModuleType:
    if kind not in KINDS:
        raise ValueError(f"unknown kind of data {kind!r}. Known: {', '.join(KINDS)}")
    return importlib.import_module(f"gossamer.data.own.{kind}")
