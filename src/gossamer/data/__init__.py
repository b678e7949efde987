"""Data sets, one file each: ``load()`` returns a Task. The folder is the registry.

Data of your own need no place in it. They are named by their path: a table (``.csv``, ``.parquet``…) with its
``target``, arrays (``.npz``), or a folder of images with a sub-folder per class. ``module:function`` names a function
of ``root`` in any module.

Sets that are read from files look in ``root``, else in the folder named by the environment variable ``GOSSAMER_DATA``,
else in ``data/`` of the working directory. Nothing is ever downloaded.
"""

import functools
import hashlib
import importlib
import inspect
import os
import pkgutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gossamer._text.names import imported, unknown
from gossamer.data import own
from gossamer.data._corruptions import CORRUPTIONS, SEVERITIES, corrupt, read_corrupted
from gossamer.data._files import DataNotFoundError
from gossamer.data._images import CropFlip, Normalize, grey
from gossamer.data.own import describe as describe_data
from gossamer.types import Split, Task

__all__ = [
    "CORRUPTIONS",
    "SEVERITIES",
    "CropFlip",
    "DataNotFoundError",
    "Normalize",
    "changed",
    "corrupt",
    "describe_data",
    "find",
    "fingerprint",
    "grey",
    "load",
    "may_choose",
    "names",
    "options_of",
    "own_kind",
    "read_corrupted",
]


def names() -> list[str]:
    """Names of all data sets.

    Example:
        >>> {"cifar10", "digits", "uci/energy"} <= set(names())
        True
    """
    from gossamer.data import images, uci

    files = {module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg} - {"images", "uci"}
    return sorted([*(name for name in files if not name.startswith("_")), *images.SETS]) + [
        f"uci/{name}" for name in uci.FOLDERS
    ]


def find(name: str) -> Callable[..., Task]:
    """The loader of the set called ``name``, or of yours: a path, or ``module:function``.

    It is a function of ``root`` and the options of the set.

    Example:
        >>> find("digits").__module__
        'gossamer.data.digits'
    """
    from gossamer.data import images, uci

    kind = own_kind(name)
    if kind is not None:
        return functools.partial(own.module_of(kind).load, path=Path(name).expanduser().absolute())
    if ":" in name:
        return imported("data set", name)
    if name in images.SETS:
        return functools.partial(images.load, name=name)
    folder, _, member = name.partition("/")
    if folder == "uci" and member:
        return functools.partial(uci.load, name=member)
    if name not in names():
        from gossamer.data.own.files import TRAINED_ON

        yours = f"Your own: the path of a {', '.join(TRAINED_ON)} file or of a folder of images, or module:function"
        raise ValueError(f"{unknown('data set', name, names())}. {yours}")
    function: Callable[..., Task] = importlib.import_module(f"gossamer.data.{name}").load
    return function


def options_of(name: str) -> set[str]:
    """Names of the options that the loader of a set takes, beside ``root``.

    Example:
        >>> sorted(options_of("table.csv"))
        ['drop', 'n_val', 'target', 'task']
    """
    return set(list(inspect.signature(find(name)).parameters)[1:]) - {"name", "path"}


def own_kind(name: str) -> str | None:
    """``"table"``, ``"arrays"`` or ``"images"`` for a path to data of your own; ``None`` for any other name.

    Example:
        >>> own_kind("houses.csv"), own_kind("digits")
        ('table', None)
    """
    from gossamer.data.own.files import FILES

    if not name or name in names() or name.startswith("uci/"):
        return None
    path = Path(name).expanduser()
    is_folder = os.path.isdir(path) or path.is_absolute()  # noqa: PTH112 (Path.is_dir raises if the name is too long)
    file = FILES.get(path.suffix.lower())
    return (file.holds if file else None) or ("images" if is_folder else None)


def may_choose(name: str) -> bool:
    """Whether what is left open is chosen by the data once they are read: rows of numbers in columns, or own images.

    Example:
        >>> may_choose("houses.csv"), may_choose("uci/yacht"), may_choose("digits")
        (True, True, False)
    """
    return own_kind(name) is not None or name.startswith("uci/")


def load(name: str, root: str | Path | None = None, **options: Any) -> Task:
    """The data set called ``name``, read from ``root`` if it has files, with options of its own.

    Example:
        >>> load("digits").input_shape
        (1, 8, 8)
    """
    return find(name)(root, **options)


def fingerprint(task: Task) -> dict[str, str]:
    """One line for each part of a task: SHA-256 of its inputs and targets, and what its outputs mean.

    It covers what was loaded, not the files: another split, target column, order of rows or unit is another
    fingerprint, and the same data in another folder or file format is the same one.

    Example:
        >>> from gossamer.data import digits
        >>> list(fingerprint(digits.load()))
        ['train', 'val', 'test', 'outputs']
    """
    outputs = f"{task.n_outputs}, target mean {task.target_mean:.9g}, std {task.target_std:.9g}"
    classes = f", classes {', '.join(task.class_names)}" if task.class_names else ""
    parts = {"train": task.train, "val": task.val, "test": task.test}
    return {name: _digest(part) for name, part in parts.items()} | {"outputs": outputs + classes}


def changed(stored: Mapping[str, str], found: Mapping[str, str]) -> list[str]:
    """Names of the parts of two fingerprints that differ.

    Example:
        >>> changed({"train": "9f…", "test": "01…"}, {"train": "9f…", "test": "77…"})
        ['test']
    """
    return [name for name in {**stored, **found} if stored.get(name) != found.get(name)]


def _digest(part: Split) -> str:
    digest = hashlib.sha256()
    for tensor in part:
        digest.update(f"{tensor.dtype} {tuple(tensor.shape)};".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
