"""UCI sets read from tiny tables in the published layout."""

import hashlib
import pickle

import numpy as np
import pytest
import torch

from gossamer import data
from gossamer.data import DataNotFoundError, uci
from gossamer.likelihoods import Gaussian

N, COLUMNS = 60, 6  # columns 0 to 3 are features, 2 of them constant; 4 is the target; 5 is neither


@pytest.fixture
def folder(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.normal(5, 3, (N, COLUMNS))
    table[:, 2] = 0.1  # the mean of sixty of these is not 0.1 in floating point
    folder = tmp_path / "uci" / "naval-propulsion-plant" / "data"
    folder.mkdir(parents=True)
    np.savetxt(folder / "data.txt", table)
    read = np.loadtxt(folder / "data.txt")
    small = uci.SETS["naval"]._replace(shape=read.shape, sha256=hashlib.sha256(read.tobytes()).hexdigest())
    monkeypatch.setitem(uci.SETS, "naval", small)
    return folder


def rows_of_test(split):
    stream = np.random.RandomState(1)  # as the authors drew them
    return [stream.choice(range(N), N, replace=False) for _ in range(split + 1)][-1][54:]


def load(folder, name="uci/naval", **options):
    return data.load(name, folder.parents[2], **options)


def test_shapes_and_likelihood(folder):
    task = load(folder)
    assert task.name == "uci/naval"
    assert (task.n_data, len(task.val[1]), len(task.test[1])) == (49, 5, 6)
    assert task.input_shape == (4,)
    assert task.train[1].shape == (49, 1)
    assert task.transform(task.train[0]).dtype == task.train[1].dtype == torch.float32
    assert task.likelihood == Gaussian()
    assert task.n_outputs == 2
    assert pickle.loads(pickle.dumps(task)).test[0].equal(task.test[0])


@pytest.mark.parametrize("n_val", [None, 0, 20])
def test_inputs_and_targets_are_standardised_by_what_is_trained_on(folder, n_val):
    task = load(folder, n_val=n_val)
    x, y = task.transform(task.train[0]).double(), task.train[1].double()
    for column in (x[:, 0], x[:, 1], x[:, 3], y[:, 0]):
        assert abs(column.mean()) < 1e-6
        assert column.std(correction=0).item() == pytest.approx(1, abs=1e-6)
    for part in (task.train, task.val, task.test):
        assert (task.transform(part[0])[:, 2] == 0).all()  # constant, so neither infinite nor huge


def test_the_original_targets_are_found_again(folder):
    task = load(folder, split=3)
    table = np.loadtxt(folder / "data.txt")
    again = task.test[1].squeeze(1).double() * task.target_std + task.target_mean
    np.testing.assert_allclose(again.numpy(), table[rows_of_test(3), 4], rtol=1e-5, atol=1e-5)


def test_each_split_is_the_published_one_and_the_parts_do_not_overlap(folder):
    table = np.loadtxt(folder / "data.txt")
    for split in (0, 19):
        task = load(folder, split=split)
        y = [part[1].squeeze(1).double() * task.target_std + task.target_mean for part in task[:3]]
        rows = [np.abs(table[:, 4][None] - part.numpy()[:, None]).argmin(1) for part in y]
        assert sorted(np.concatenate(rows)) == list(range(N))
        assert rows[2].tolist() == rows_of_test(split).tolist()


def test_the_held_out_rows_are_always_the_same(folder):
    assert load(folder, split=1).val[0].equal(load(folder, split=1).val[0])


def test_the_published_name_serves_too(folder):
    assert load(folder, "uci/naval-propulsion-plant").name == "uci/naval"


@pytest.mark.parametrize(("name", "split", "last"), [("naval", 20, 19), ("naval", -1, 19), ("protein", 5, 4)])
def test_a_split_that_does_not_exist_is_refused(folder, name, split, last):
    with pytest.raises(ValueError, match=f"split of uci/{name} must be from 0 to {last}; got {split}"):
        load(folder, f"uci/{name}", split=split)


def test_missing_files_are_named(folder):
    with pytest.raises(DataNotFoundError, match=r"uci/yacht not found: looked for .*/data/data.txt. .*yaringal"):
        load(folder, "uci/yacht")


def rewrite(path, change):
    path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("data.txt", lambda text: text.replace("5", "6", 1), "damaged, or not the published set: the SHA-256 of its"),
        ("data.txt", lambda text: text[: len(text) // 2], "truncated or damaged|found shape"),
        ("data.txt", lambda text: "\n".join(text.split("\n")[:30]), r"found shape \(30, 6\), expected .* \(60, 6\)"),
        (
            "data.txt",
            lambda text: "nan" + text[text.index(" ") :],
            "found numbers that are not finite, expected finite",
        ),
        ("data.txt", lambda text: "", "truncated or damaged .it is empty"),
        ("data.txt", lambda text: "a" + text, "truncated or damaged"),
    ],
)
def test_damaged_files_are_told(folder, file, change, message):
    rewrite(folder / file, change)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_split_is_other_data(folder):
    before, after = (data.fingerprint(load(folder, split=split)) for split in (0, 1))
    assert data.changed(before, after) == ["train", "val", "test", "outputs"]


def test_another_table_is_read_when_asked_for(folder):
    rewrite(folder / "data.txt", lambda text: text.replace("5", "6", 1))
    assert load(folder, verify=False).name == "uci/naval (unverified)"
