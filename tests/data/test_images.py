"""Image sets read from tiny files in each of their published forms."""

import pickle

import numpy as np
import pytest
import torch

from gossamer import data
from gossamer.data import DataNotFoundError
from gossamer.likelihoods import Categorical


def pairs(x, y):
    """The examples as a sorted list, whatever their order."""
    return sorted((int(label), bytes(image.contiguous().numpy())) for image, label in zip(x, y, strict=True))


def published(content, part):
    x = torch.from_numpy(content[f"x_{part}"]).permute(0, 3, 1, 2)
    return pairs(x, torch.from_numpy(content[f"y_{part}"]))


def test_every_form_gives_all_images_with_their_labels(write, tmp_path, form):
    name, form, where = form
    content = write(name, form, **where)
    task = data.load(name, tmp_path)
    assert task.name == ("svhn (reconstructed)" if (name, form) == ("svhn", "npz") else name)
    assert (task.n_data, len(task.val[1]), len(task.test[1])) == (45, 5, 20)
    assert published(content, "train") == pairs(*(torch.cat(part) for part in zip(task.train, task.val, strict=True)))
    assert published(content, "test") == pairs(*task.test)
    for x, y in (task.train, task.val, task.test):
        assert x.dtype == torch.uint8
        assert x.is_contiguous()
        assert y.dtype == torch.int64
        x.add_(1)  # it is ours to write to
    assert task.likelihood == Categorical()
    assert task.n_outputs == len(task.class_names)
    assert task.transform(task.train[0]).shape == (45, *task.input_shape)


def test_splits_do_not_overlap_and_are_the_same_each_time_and_in_each_form(write, tmp_path, image_set):
    name, forms = image_set
    tasks = []
    for form in forms:
        write(name, form, under=form)
        tasks.append(data.load(name, tmp_path / form))
    rows = [bytes(image.numpy()) for x, _ in tasks[0][:3] for image in x]
    assert len(set(rows)) == len(rows)  # random images are all different
    for task in tasks[1:]:
        for split, first in zip(task[:3], tasks[0][:3], strict=True):
            assert split[0].equal(first[0])
            assert split[1].equal(first[1])


@pytest.mark.parametrize("name", ["cifar10", "mnist", "svhn"])
def test_the_published_order_of_the_test_images_is_kept(write, tmp_path, name):
    content = write(name, "npz")
    assert data.load(name, tmp_path).test[1].tolist() == content["y_test"].tolist()


def test_cifar100_is_the_same_from_a_copy_in_another_order(write, tmp_path):
    content = write("cifar100", "npz", under="a")
    by_class = {part: np.argsort(content[f"y_{part}"], kind="stable") for part in ("train", "test")}
    write("cifar100", "npz", under="b", data={key: a[by_class[key[2:]]] for key, a in content.items()})
    one, other = (data.load("cifar100", tmp_path / folder) for folder in "ab")
    assert one.val[0].equal(other.val[0])
    assert one.test[1].equal(other.test[1])
    labels = one.test[1].tolist()
    assert labels != sorted(labels)


@pytest.mark.parametrize(("n_val", "expected"), [(None, 5), (0, 0), (1, 1), (49, 49)])
def test_n_val_images_are_held_out(write, tmp_path, n_val, expected):
    content = write("mnist", "idx")
    task = data.load("mnist", tmp_path, n_val=n_val)
    assert (task.n_data, len(task.val[1]), len(task.test[1])) == (50 - expected, expected, 20)
    assert task.val[0].shape == (expected, 1, 28, 28)
    assert published(content, "train") == pairs(*(torch.cat(part) for part in zip(task.train, task.val, strict=True)))


@pytest.mark.parametrize("n_val", [-1, 50])
def test_n_val_must_leave_something(write, tmp_path, n_val):
    write("mnist", "idx")
    with pytest.raises(ValueError, match=f"^n_val must be from 0 to 49, to leave some of 50 examples; got {n_val}$"):
        data.load("mnist", tmp_path, n_val=n_val)


def test_a_task_can_be_pickled(write, tmp_path):
    write("cifar10", "npz")
    task = data.load("cifar10", tmp_path)
    again = pickle.loads(pickle.dumps(task))
    torch.manual_seed(0)
    one = task.transform(task.augment(task.train[0]))
    torch.manual_seed(0)
    assert again.transform(again.augment(again.train[0])).equal(one)


def test_keras_images_without_a_channel_are_read(write, tmp_path):
    content = write("mnist", "npz")
    np.savez(tmp_path / "mnist.npz", **{key: a.squeeze(-1) if a.ndim == 4 else a for key, a in content.items()})
    assert data.load("mnist", tmp_path).input_shape == (1, 28, 28)


def test_the_folder_comes_from_the_argument_else_the_environment_else_the_working_directory(
    write, tmp_path, monkeypatch
):
    write("mnist", "npz", under="data")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    assert data.load("mnist").n_data == 45
    monkeypatch.setenv("GOSSAMER_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(DataNotFoundError, match="elsewhere"):
        data.load("mnist")
    assert data.load("mnist", str(tmp_path / "data")).n_data == 45
    monkeypatch.setenv("GOSSAMER_DATA", "")
    assert data.load("mnist").n_data == 45


# What is missing.


def test_one_missing_file_is_named(write, tmp_path):
    write("mnist", "idx", under="mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte").unlink()
    with pytest.raises(DataNotFoundError, match=rf"; {tmp_path}/mnist lacks t10k-labels-idx1-ubyte\. Published at"):
        data.load("mnist", tmp_path)


def test_svhn_without_training_images(write, tmp_path):
    content = write("svhn", "npz")
    np.savez(tmp_path / "svhn.npz", x_test=content["x_test"], y_test=content["y_test"])
    with pytest.raises(DataNotFoundError, match=r"svhn.npz: holds no x_train and no y_train, .* only_test=True$"):
        data.load("svhn", tmp_path)
    task = data.load("svhn", tmp_path, only_test=True)
    assert (task.n_data, len(task.val[1]), len(task.test[1])) == (0, 0, 20)
    assert task.input_shape == (3, 32, 32)
