"""What a task holds, in a few checksums: a run stores them, and goes on only with the same data."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor

from gossamer.types import Split, Task


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
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
