"""Inputs from outside a task take the form in which it stores its own."""

import numpy as np
import pytest
import torch

from gossamer.data import digits, two_moons
from gossamer.lab.record import RecordError
from gossamer.lab.runs.evaluation import as_stored, outside


def task_of_bytes(shape):
    split = torch.zeros(4, *shape, dtype=torch.uint8), torch.zeros(4, dtype=torch.long)
    return digits.load()._replace(train=split, val=split, test=split, name="bytes")


def test_the_same_shape_and_type_is_left_alone():
    x = digits.load().test[0]
    found, note = as_stored(x, digits.load())
    assert found is x
    assert note == ""


def test_bytes_become_floats_and_floats_bytes():
    grey = torch.tensor([0, 51, 255], dtype=torch.uint8).view(1, 1, 1, 3).expand(1, 1, 8, 3)
    task = task_of_bytes((1, 8, 3))
    x, note = as_stored(grey.float() / 255, task)
    assert x.dtype == torch.uint8
    assert torch.equal(x, grey)
    assert note == ""
    stored_as_floats = task._replace(test=(torch.zeros(1, 1, 8, 3), torch.zeros(1)))
    torch.testing.assert_close(as_stored(grey, stored_as_floats)[0], grey.float() / 255)


def test_colours_become_grey_by_luminance_and_grey_fills_the_channels():
    red = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    red[:, 0] = 200
    x, note = as_stored(red, task_of_bytes((1, 8, 8)))
    assert x.unique().tolist() == [60]  # 0.299 · 200
    assert note == "made grey"
    x, note = as_stored(x, task_of_bytes((3, 8, 8)))
    assert x.shape == (1, 3, 8, 8)
    assert x.unique().tolist() == [60]
    assert note == "grey in three channels"


def test_a_flat_image_is_flat_after_resizing():
    x, note = as_stored(torch.full((2, 1, 28, 28), 77, dtype=torch.uint8), task_of_bytes((1, 8, 8)))
    assert x.shape == (2, 1, 8, 8)
    assert x.unique().tolist() == [77]
    assert note == "resized from 28×28 to 8×8"


def test_uniform_noise_fills_the_range_of_the_training_data():
    task = two_moons.load()
    x = outside("uniform", task).x
    low, high = task.train[0].amin(0), task.train[0].amax(0)
    assert x.shape == task.test[0].shape
    assert bool(((x >= low) & (x <= high)).all())
    # The mean of n uniform numbers is within four standard errors of the middle.
    error = (high - low) / np.sqrt(12 * len(x))
    assert bool(((x.mean(0) - (low + high) / 2).abs() < 4 * error).all())
    assert torch.equal(x, outside("uniform", task).x)


def test_permuted_inputs_keep_the_distribution_of_every_feature():
    task = digits.load()
    x = outside("permuted", task).x
    assert torch.equal(x.sort(0).values, task.test[0].sort(0).values)
    assert not torch.equal(x, task.test[0])


def test_what_does_not_fit_is_refused(tmp_path):
    with pytest.raises(RecordError, match=r"two_moons has examples of shape \(2,\), digits has \(1, 8, 8\)"):
        outside("two_moons", digits.load())
    with pytest.raises(RecordError, match="unknown data set or file 'unifrom'; did you mean 'uniform'"):
        outside("unifrom", digits.load())
    np.save(tmp_path / "other.npy", np.zeros((3, 5)))
    with pytest.raises(RecordError, match="digits has"):
        outside(str(tmp_path / "other.npy"), digits.load())
