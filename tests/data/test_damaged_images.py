"""Files of image sets that are truncated, changed, or of another shape than they should be."""

import os
import pickle

import numpy as np
import pytest

from gossamer import data


def files(tmp_path):
    return sorted(path for path in tmp_path.rglob("*") if path.is_file())


def test_a_flipped_bit_is_caught(write, tmp_path, form):
    name, form, where = form
    write(name, form, **where)
    for path in files(tmp_path):
        blob = path.read_bytes()
        at = 2 * len(blob) // 3
        path.write_bytes(blob[:at] + bytes([blob[at] ^ 4]) + blob[at + 1 :])
        with pytest.raises(ValueError, match=path.name) as caught:
            data.load(name, tmp_path)
        assert "\n" not in str(caught.value)
        path.write_bytes(blob)
    data.load(name, tmp_path)


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("keep", [0, 0.7])
def test_a_truncated_file_is_caught_even_without_its_checksum(write, tmp_path, form, verify, keep):
    name, form, where = form
    write(name, form, **where)
    path = files(tmp_path)[-1]
    blob = path.read_bytes()
    path.write_bytes(blob[: int(keep * len(blob))])
    with pytest.raises(ValueError, match=path.name) as caught:
        data.load(name, tmp_path, verify=verify)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "form", "kind"), [("mnist", "idx", "MD5"), ("mnist", "npz", "SHA-256"), ("cifar100", "npz", "SHA-256")]
)
def test_other_images_are_refused_unless_asked_for(write, tmp_path, name, form, kind):
    content = write(name, form, under="other")
    content = {key: a.copy() for key, a in content.items()}
    content["x_train"][3, 4, 5, 0] ^= 1
    write(name, form, data=content)  # and now its checksums are the expected ones
    message = f"damaged, or not the published set: the {kind} is [0-9a-f]+, expected [0-9a-f]+ .verify=False reads it"
    with pytest.raises(ValueError, match=message):
        data.load(name, tmp_path / "other")
    assert data.load(name, tmp_path / "other", verify=False).name == f"{name} (unverified)"


NPZ_CHANGES = [
    (
        {"x_train": np.zeros((49, 32, 32, 3), np.uint8)},
        "train part: found 49 images and 50 labels, expected 50 of each",
    ),
    ({"x_train": np.zeros((50, 28, 28, 3), np.uint8)}, r"found uint8 of shape \(50, 3, 28, 28\), expected uint8"),
    (
        {"x_test": np.zeros((20, 32, 32, 3), np.float32)},
        r"test part: found float32 of shape \(20, 3, 32, 32\), expected",
    ),
    ({"y_test": np.zeros((20, 1), np.uint8)}, r"test part: found uint8 of shape \(20, 1\), expected integers of shape"),
    ({"y_test": np.zeros(20)}, r"test part: found float64 of shape \(20,\), expected integers of shape \(20,\)"),
    ({"y_train": np.full(50, 10, np.uint8)}, "train part: found labels from 10 to 10, expected 0 to 9"),
    ({"y_train": np.full(50, -1)}, "train part: found labels from -1 to -1, expected 0 to 9"),
    ({"y_train": np.array(3)}, r"train part: found int64 of shape \(\), expected integers of shape \(50,\)"),
]


@pytest.mark.parametrize(("change", "message"), NPZ_CHANGES)
def test_wrong_arrays_are_told_by_what_was_found_and_expected(write, tmp_path, change, message):
    content = write("cifar10", "npz")
    np.savez(tmp_path / "cifar10.npz", **content | change)
    with pytest.raises(ValueError, match=message) as caught:
        data.load("cifar10", tmp_path)
    assert str(caught.value).startswith(f"{tmp_path}/cifar10.npz: ")
    assert "\n" not in str(caught.value)


def test_objects_in_an_npz_are_not_unpickled(write, tmp_path):
    content = write("cifar10", "npz")
    np.savez(tmp_path / "cifar10.npz", **content | {"x_train": np.array([{}], dtype=object)})
    with pytest.raises(ValueError, match=r"no readable \.npz file"):
        data.load("cifar10", tmp_path)


class Malicious:
    def __reduce__(self):
        return os.mkdir, ("pwned",)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (Malicious(), r"no CIFAR batch: the pickle asks for \w+\.mkdir, which is not run"),
        ({"data": np.zeros((10, 3072), np.uint8), "labels": Malicious()}, "which is not run"),
        ([1, 2], r"no CIFAR batch: expected data and labels or fine_labels, found \[\]"),
        (
            {"data": np.zeros((10, 3071), np.uint8), "labels": [0] * 10},
            r"data has shape \(10, 3071\), expected \(n, 3072",
        ),
        ({"data": np.zeros((10, 3072)), "labels": [0] * 10}, r"an array of 'f8', expected bytes"),
        ({"data": np.zeros((10, 3072), np.uint8), "labels": [0] * 9}, "found 50 images and 49 labels, expected 50"),
        ({"data": np.zeros((10, 3072), np.uint8), "labels": [10] * 10}, "found labels from 0 to 10, expected 0 to 9"),
    ],
)
def test_only_cifar_batches_are_unpickled(write, tmp_path, monkeypatch, content, message):
    monkeypatch.chdir(tmp_path)
    write("cifar10", "pickle")
    (tmp_path / "cifar-10-batches-py" / "data_batch_3").write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(ValueError, match=message):
        data.load("cifar10", tmp_path, verify=False)
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    ("blob", "message"),
    [
        (b"\x00\x00\x08\x02" + bytes(20), "no IDX file of bytes with 1 or 3 dimensions: it starts with 0x00000802"),
        (b"PK\x03\x04" + bytes(20), "it starts with 0x504b0304"),
        (
            bytes([0, 0, 8, 3, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4]) + bytes(23),
            r"found 39 bytes, expected 40 .*\[2, 3, 4\]",
        ),
    ],
)
def test_what_is_no_idx_file_is_told(write, tmp_path, blob, message):
    write("mnist", "idx")
    (tmp_path / "train-images-idx3-ubyte").write_bytes(blob)
    with pytest.raises(ValueError, match=f"train-images-idx3-ubyte: .*{message}"):
        data.load("mnist", tmp_path, verify=False)
