"""Inputs from outside a task, in the form in which it stores its own: of another data set, of a file, or made up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer import data
from gossamer._text.names import unknown
from gossamer.data import grey
from gossamer.data.own.files import FILES
from gossamer.lab.record import RecordError
from gossamer.lab.runs.inputs import read_inputs
from gossamer.types import Task

SEED = 0  # made-up inputs are the same for every run, so that runs can be compared


class Outside(NamedTuple):
    """Inputs from outside, and what was done to them so that the network can read them."""

    name: str
    x: Tensor
    note: str = ""


def outside(name: str, task: Task, data_dir: str | None = None) -> Outside:
    """The test inputs of a data set, the inputs of a file, or made-up ones, for a network that was trained on ``task``.

    Images are resized, and turned into grey or colour, where the network needs it, and the note tells so.

    Args:
        name: A data set, ``uniform`` or ``permuted`` (see :data:`MADE_UP`), or a file that ``predict`` reads.
        task: The task of the network.
        data_dir: Folder of the files of data sets.

    Example:
        >>> from gossamer.data import digits
        >>> outside("uniform", digits.load()).x.shape
        torch.Size([599, 1, 8, 8])
    """
    if name in MADE_UP:
        return Outside(name, MADE_UP[name](task, torch.Generator().manual_seed(SEED)))
    if is_file(name):
        return Outside(Path(name).stem, read_inputs(Path(name), task))
    if ":" not in name and name not in data.names():
        raise RecordError(unknown("data set or file", name, [*MADE_UP, *data.names()]))
    x, note = as_stored(data.load(name, data_dir).test[0], task, name)
    return Outside(name, x, note)


def is_file(name: str) -> bool:
    """Whether a name is that of a file or folder, not of a data set."""
    return name not in MADE_UP and (Path(name).suffix in FILES or data.own_kind(name) is not None)


def as_stored(x: Tensor, task: Task, name: str = "the other set") -> tuple[Tensor, str]:
    """Inputs of another task as this one stores them, and a note on what was changed.

    Example:
        >>> from gossamer.data import digits
        >>> x, note = as_stored(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), digits.load())
        >>> x.shape, note
        (torch.Size([2, 1, 8, 8]), 'made grey, resized from 32×32 to 8×8')
    """
    own = task.test[0]
    if x.shape[1:] == own.shape[1:] and x.dtype == own.dtype:
        return x, ""
    if not (_are_images(x) and _are_images(own)):
        ours, theirs = tuple(own.shape[1:]), tuple(x.shape[1:])
        raise RecordError(f"{name} has examples of shape {theirs}, {task.name} has {ours}: choose another set")
    pixels, notes = _unit_range(x), list[str]()
    if x.shape[1] > own.shape[1]:
        pixels = grey(pixels)
        notes.append("made grey")
    elif x.shape[1] < own.shape[1]:
        pixels = pixels.expand(-1, own.shape[1], -1, -1)
        notes.append("grey in three channels")
    if x.shape[2:] != own.shape[2:]:
        pixels = F.interpolate(pixels, size=own.shape[2:], mode="bilinear", antialias=True)
        notes.append("resized from {}×{} to {}×{}".format(*x.shape[2:], *own.shape[2:]))
    return _in_bytes(pixels) if own.dtype == torch.uint8 else pixels.to(own.dtype), ", ".join(notes)


def _uniform(task: Task, generator: torch.Generator) -> Tensor:
    """Noise, uniform between the smallest and the largest value of each feature; of all pixels for images."""
    own, train = task.test[0], task.train[0].double()
    over = (0, 2, 3) if _are_images(own) else (0,)
    low, high = train.amin(over, keepdim=True), train.amax(over, keepdim=True)
    noise = low + (high - low) * torch.rand(own.shape, generator=generator, dtype=torch.float64)
    return (noise.round() if own.dtype == torch.uint8 else noise).to(own.dtype)


def _permuted(task: Task, generator: torch.Generator) -> Tensor:
    """The test inputs, each feature permuted among the examples: every pixel has its distribution, nothing fits."""
    own = task.test[0]
    order = torch.rand(own.shape, generator=generator).argsort(0)
    return own.gather(0, order)


MADE_UP: dict[str, Callable[[Task, torch.Generator], Tensor]] = {"uniform": _uniform, "permuted": _permuted}
"""Inputs that need no files: uniform noise in the range of the training data, and test data whose features are
permuted independently among the examples."""


def _are_images(x: Tensor) -> bool:
    return x.dim() == 4 and x.shape[1] in (1, 3)


def _unit_range(x: Tensor) -> Tensor:
    """Pixels from 0 to 1."""
    return x.float() / 255 if x.dtype == torch.uint8 else x.float()


def _in_bytes(pixels: Tensor) -> Tensor:
    return (pixels * 255).round().clamp(0, 255).to(torch.uint8)
