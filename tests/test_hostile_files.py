"""Files that somebody has changed, at random or on purpose, are read or refused in one line; nothing else happens."""

import gzip
import io
import json
import os
import pickle
import subprocess
import sys
import tracemalloc
import zipfile
import zlib
from pathlib import Path

import numpy as np
import pytest

from gossamer.data import _files, read_corrupted
from gossamer.data._files import read_blob, read_cifar_pickle, read_mat, read_npy
from gossamer.data.own.arrays import read_arrays
from gossamer.estimators import SparseBayesClassifier
from gossamer.estimators.draws import Draws
from gossamer.lab.record import RecordError, Run

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("n", "seed"), [pytest.param(20_000, 0, id="20k"), pytest.param(1_000_000, 1, id="million", marks=pytest.mark.slow)]
)
def test_files_changed_at_random(n, seed, tmp_path):
    """In a process of its own, which forks: a crash of native code is a count, not the end of the tests."""
    out = tmp_path / "mutations.json"
    command = [sys.executable, "-m", "tests.endurance.mutations", f"--n={n}", f"--seed={seed}", f"--json={out}"]
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert out.exists(), done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert {row["kind"]: row["reasons"] for row in rows if row["other"]} == {}
    assert sum(row["tried"] for row in rows) == pytest.approx(n, abs=len(rows))
    assert all(row["loaded"] + row["refused"] + row["other"] == row["tried"] for row in rows)
    assert done.returncode == 0


def npy(descr, shape, data=b"12345678"):
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": shape})
    return header.getvalue() + data


@pytest.fixture
def frugal():
    """Fails if more than 20 MB were allocated by Python or numpy."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.usefixtures("frugal")
class TestBombs:
    """Files that ask for more memory than they have bytes."""

    def test_an_array_that_promises_more_than_it_has(self):
        blob = npy("<U300000000", (9,))
        with pytest.raises(ValueError, match=r"promises 10,800,000,000 bytes of .* the file has 8"):
            read_npy(io.BytesIO(blob), len(blob))

    def test_published_pictures_are_mapped_only_as_far_as_the_file_goes(self, tmp_path):
        (tmp_path / "fog.npy").write_bytes(npy("|u1", (10**6, 32, 32, 3)))
        with pytest.raises(ValueError, match=r"fog\.npy is not a \.npy array: .*promises 3,072,000,000 bytes"):
            read_corrupted(tmp_path, "fog", 1)

    def test_a_member_of_an_npz_that_unpacks_without_end(self, monkeypatch, tmp_path):
        monkeypatch.setattr(_files, "LARGEST", 2**21)
        with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("x.npy", npy("|u1", (10**7,), bytes(10**7)))
        with pytest.raises(ValueError, match=r"a\.npz .* unpacks to more than 2,097,152 bytes"):
            read_arrays(tmp_path / "a.npz")

    def test_a_packed_file_that_unpacks_without_end(self, monkeypatch, tmp_path):
        monkeypatch.setattr(_files, "LARGEST", 2**21)
        (tmp_path / "a.gz").write_bytes(gzip.compress(bytes(10**7)))
        with pytest.raises(ValueError, match=r"a\.gz: .*unpacks to more than 2,097,152 bytes"):
            read_blob(tmp_path / "a.gz")

    def test_a_plain_file_takes_its_own_size(self, tmp_path):
        (tmp_path / "a").write_bytes(b"123")
        assert read_blob(tmp_path / "a") == b"123"

    def test_a_pickle_with_room_for_objects_that_it_does_not_have(self):
        with pytest.raises(ValueError, match="no CIFAR batch: it numbers more objects than it has bytes"):
            read_cifar_pickle(b"\x80\x02Nr\xff\xff\xff\x0f.", "train")

    def test_a_matlab_file(self, monkeypatch):
        monkeypatch.setattr(_files, "LARGEST", 1000)
        packed = zlib.compress(bytes(100_000))
        blob = bytes(126) + b"IM" + (15).to_bytes(4, "little") + len(packed).to_bytes(4, "little") + packed
        with pytest.raises(ValueError, match="unpacks to more than 1,000 bytes"):
            read_mat(blob, "train")


@pytest.fixture
def changed_estimator(tmp_path):
    """Saves a fitted classifier, of whose fitted state a function has changed something."""
    from gossamer.files import container

    def save(change):
        rng = np.random.default_rng(0)
        x = rng.normal(size=(30, 2))
        model = SparseBayesClassifier(hidden=(4,), max_steps=2, n_draws=2, members=1, random_state=0)
        model.fit(x, np.where(x[:, 0] > 0, "a", "b")).save(tmp_path / "model")
        tree = container.from_bytes((tmp_path / "model").read_bytes())
        change(tree["fitted"])
        (tmp_path / "model").write_bytes(container.to_bytes(tree))
        return tmp_path / "model"

    return save


def test_labels_of_an_estimator_cannot_ask_for_memory(changed_estimator):
    path = changed_estimator(lambda fitted: fitted["learnt"]["classes_"].update(__array__="<U300000000"))
    with pytest.raises(ValueError, match=r"model: an array of type '<U300000000' does not hold such items"):
        SparseBayesClassifier.load(path)


def test_columns_of_an_estimator_cannot_ask_for_memory(changed_estimator):
    path = changed_estimator(lambda fitted: fitted["learnt"].update(n_features_in_=3 * 10**12))
    with pytest.raises(ValueError, match=r"model: learnt/feature_importances_ does not fit the other entries"):
        SparseBayesClassifier.load(path)


def test_layers_of_an_estimator_are_those_that_it_has_weights_for(changed_estimator, monkeypatch):
    path = changed_estimator(lambda fitted: fitted["draws"]["architecture"].update(hidden=(4,) * 10**6))
    monkeypatch.setattr(Draws, "shapes", None)  # they are counted before any is made, which takes minutes
    with pytest.raises(ValueError, match=r"model: draws does not fit the other entries"):
        SparseBayesClassifier.load(path)


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


def test_every_flipped_bit_of_an_evaluation_is_found(tmp_path):
    run = Run.create(tmp_path / "run", {"method": "ssvi"})
    run.add_evaluation("conformal", {"0.9": {"n_val": 10, "coverage": 0.91}})
    before, path = run.evaluation(), run.folder / "evaluation.json"
    content = path.read_bytes()
    refused = 0
    for place in range(8 * len(content)):
        changed = bytearray(content)
        changed[place // 8] ^= 1 << place % 8
        path.write_bytes(changed)
        try:
            found = run.evaluation()
        except RecordError as error:
            refused += "evaluation.json" in str(error)
        else:  # of a blank, or of the word checksum: the numbers are right
            assert found["conformal"] == before["conformal"]
    assert refused > 7 * len(content)
    path.write_bytes(content)
    run.add_evaluation("conformal", {"0.8": {"n_val": 10}})
    assert set(run.evaluation()["conformal"]) == {"0.9", "0.8"}
