"""Data of the user's own: a table, arrays, or a folder of images; ``files`` knows which files hold them.

Each kind is a file here with ``load(root, path=…, …) -> Task`` and ``describe(record)``. What was learnt from the
training rows is the *record* of the task: plain values for JSON, from which the task can be made without its data.
``texts`` is for functions of the user's own, which know their tokenizer.
"""

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["KINDS", "describe", "module_of", "read", "shortened"]

KINDS = ("table", "arrays", "images")


def module_of(kind: str) -> ModuleType:
    """The file of a kind."""
    if kind not in KINDS:
        raise ValueError(f"unknown kind of data {kind!r}. Known: {', '.join(KINDS)}")
    return importlib.import_module(f"gossamer.data.own.{kind}")


def read(record: Mapping[str, Any], path: Path | str) -> tuple[Any, dict[str, list[str]]]:
    """New inputs as the task of ``record`` stores its own, ``(rows, …)``, and columns that name the rows, if any."""
    found: tuple[Any, dict[str, list[str]]] = module_of(record["kind"]).read(record, path)
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
    lines = {**module_of(record["kind"]).describe(record), "target": what, "examples": examples}
    return "\n".join([record["source"]["path"], *(f"  {name:<11} {text}" for name, text in lines.items())])


def shortened(names: Sequence[str], most: int = 12) -> str:
    """The first names of a long list."""
    return ", ".join(names[:most]) + (f", … ({len(names)} in all)" if len(names) > most else "")
