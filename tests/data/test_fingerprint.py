"""A fingerprint is another one as soon as anything is that a training or its numbers depend on."""

import pytest
import torch

from gossamer.data import changed, digits, fingerprint
from gossamer.likelihoods import Gaussian
from gossamer.types import Task


@pytest.fixture
def task():
    parts = [(torch.randn(n, 3, generator=torch.Generator().manual_seed(n)), torch.zeros(n, 1)) for n in (6, 2, 3)]
    return Task(*parts, Gaussian(), n_outputs=2)


def flipped(x):
    """One bit of one number is another."""
    x = x.clone()
    x.view(torch.int32)[1, 2] ^= 1
    return x


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        (lambda task: {}, []),
        (lambda task: {"name": "the same data by another name"}, []),
        (lambda task: {"train": (flipped(task.train[0]), task.train[1])}, ["train"]),
        (lambda task: {"train": (task.train[0].flip(0), task.train[1])}, ["train"]),
        (lambda task: {"train": (task.train[0].mT.contiguous().view(6, 3), task.train[1])}, ["train"]),
        (lambda task: {"val": (task.val[0], task.val[1] + 1)}, ["val"]),
        (lambda task: {"test": (task.test[0].double(), task.test[1])}, ["test"]),
        (lambda task: {"test": (task.test[0].view(3, 1, 3), task.test[1])}, ["test"]),
        (lambda task: {"val": task.test, "test": task.val}, ["val", "test"]),
        (lambda task: {"target_std": 2.0}, ["outputs"]),
        (lambda task: {"class_names": ("a", "b")}, ["outputs"]),
    ],
)
def test_what_differs_is_named(task, change, parts):
    assert changed(fingerprint(task), fingerprint(task._replace(**change(task)))) == parts


def test_strides_and_empty_parts_do_not_matter(task):
    transposed = task._replace(train=(task.train[0].mT.contiguous().mT, task.train[1]))
    assert fingerprint(transposed) == fingerprint(task)
    empty = task._replace(val=(torch.zeros(0, 3), torch.zeros(0, 1)))
    assert changed(fingerprint(task), fingerprint(empty)) == ["val"]


def test_a_set_that_is_loaded_twice_is_the_same():
    assert fingerprint(digits.load()) == fingerprint(digits.load())
