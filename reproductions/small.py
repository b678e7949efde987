"""The data of small runs: real images of CIFAR and SVHN, fewer of them and of half their height and width."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer import data
from gossamer.data import CropFlip
from gossamer.types import Split, Task

__all__ = ["cifar10", "cifar100", "svhn"]

N_TRAIN, N_TEST = 5000, 1000
N_CLASSES = 20  # of CIFAR-100: with all of them a small network that trains for minutes is close to chance


@cache
def cifar10(root: str | None = None) -> Task:
    """5,000 training and 1,000 test images of CIFAR-10, 16 x 16 pixels."""
    return _small(data.load("cifar10", root, n_val=0))


@cache
def cifar100(root: str | None = None) -> Task:
    """The same of the first 20 classes of CIFAR-100."""
    task = data.load("cifar100", root, n_val=0)
    train, test = ((x[y < N_CLASSES], y[y < N_CLASSES]) for x, y in (task.train, task.test))
    fewer = task._replace(train=train, test=test, n_outputs=N_CLASSES, class_names=task.class_names[:N_CLASSES])
    return _small(fewer)


@cache
def svhn(root: str | None = None) -> Task:
    """1,000 test images of SVHN, 16 x 16 pixels, and no others: images from outside."""
    return _small(data.load("svhn", root, only_test=True))


def _small(task: Task) -> Task:
    fewer = task._replace(train=_some(task.train, N_TRAIN), test=_some(task.test, N_TEST), name=f"{task.name}, small")
    return fewer._replace(augment=CropFlip(padding=2))


def _some(split: Split, n: int) -> Split:
    x, y = split
    rows = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))[:n]
    return _halved(x[rows]), y[rows]


def _halved(x: Tensor) -> Tensor:
    return F.avg_pool2d(x.float(), 2).round().to(torch.uint8)
