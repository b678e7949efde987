"""Files that somebody has changed, at random or on purpose, are refused in one line or read; nothing else happens."""

import io
import pickle
import random
import zlib

import numpy as np
import pytest

from gossamer.data._files import read_cifar_pickle, read_mat, read_npy, read_npz

FORMS = {"pickle": ("cifar10", read_cifar_pickle), "mat": ("svhn", read_mat), "npz": ("cifar10", read_npz)}
QUICK, THOROUGH = 200, 1_000_000


def mutated(generator, blob):
    """A few bytes are changed, cut out or repeated."""
    blob = bytearray(blob)
    for _ in range(generator.randint(1, 4)):
        at = generator.randrange(min(len(blob), generator.choice((200, len(blob)))))
        how = generator.randrange(4)
        if how == 0:
            blob[at] ^= 1 << generator.randrange(8)
        elif how == 1:
            blob[at] = generator.randrange(256)
        elif how == 2:
            del blob[at : at + generator.randint(1, 8)]
        else:
            blob[at:at] = blob[at : at + generator.randint(1, 8)]
    return bytes(blob)


def attack(form, blob_of, n, seed=0):
    name, read = FORMS[form]
    blob, generator = blob_of(name, form), random.Random(f"{form}{seed}")
    for _ in range(n):
        try:
            read(mutated(generator, blob), "train")
        except (ValueError, FileNotFoundError) as error:
            if "\n" in str(error):
                raise


@pytest.mark.parametrize("form", FORMS)
def test_files_changed_at_random(form, blob_of):
    attack(form, blob_of, QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_a_million_files_changed_at_random(form, blob_of):
    attack(form, blob_of, THOROUGH // len(FORMS), seed=1)


def test_an_array_that_promises_more_than_it_has_is_refused_before_it_is_made():
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<U300000000", "fortran_order": False, "shape": (9,)})
    blob = header.getvalue() + b"12345678"
    with pytest.raises(ValueError, match=r"promises 10,800,000,000 bytes of .* the file has 8"):
        read_npy(io.BytesIO(blob), len(blob))


def test_a_pickle_cannot_make_pointers_of_bytes():
    """Numpy's own dtype believes a state that says its items are objects."""

    class Dtype:
        def __reduce__(self):
            return np.dtype, ("u1", False, True), (3, "|", None, None, None, -1, -1, 63)

    class Array:
        def __reduce__(self):
            make, arguments, _ = np.zeros(0, np.uint8).__reduce__()
            return make, arguments, (1, (1, 3072), np.dtype("O"), False, [None] * 3072)

    for value in (Array(), np.array([None]), np.zeros(3, "f8")):
        with pytest.raises(ValueError, match="no CIFAR batch"):
            read_cifar_pickle(pickle.dumps({"data": value, "labels": [1]}, protocol=2), "train")
    with pytest.raises(ValueError, match="no CIFAR batch"):
        read_cifar_pickle(pickle.dumps({"data": Dtype(), "labels": [1]}, protocol=2), "train")


def test_a_matlab_bomb_is_not_unpacked(monkeypatch):
    monkeypatch.setattr("gossamer.data._files.LARGEST", 1000)
    packed = zlib.compress(bytes(100_000))
    blob = bytes(126) + b"IM" + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
    with pytest.raises(ValueError, match="unpacks to more than 1,000 bytes"):
        read_mat(blob, "train")
