"""A checkpoint comes back as it was, or says in one line why it cannot; an earlier one survives whatever happens."""

import contextlib
import errno
import json
import os
import random
import subprocess
from pathlib import Path

import pytest
import torch

from gossamer.lab.record import RecordError
from gossamer.train import checkpoint

STATE = {
    "step": 3,
    "model": {"weight": torch.arange(6.0).reshape(2, 3), "position": torch.tensor([1, 5], dtype=torch.int32)},
    "optimizer": {"state": {0: {"momentum": torch.ones(2), "step": torch.tensor(7.0)}, 1: {}}, "betas": (0.9, 0.999)},
    "kinds": [
        torch.tensor(3.5),
        torch.empty(0, 4),
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([True, False]),
        torch.tensor([2**62], dtype=torch.int64),
        torch.tensor([0, 255], dtype=torch.uint8),
        torch.tensor([torch.nan, torch.inf, -0.0]),
    ],
    "plain": {
        "none": None,
        "true": True,
        "text": 'π "quoted" \n',
        "tiny": 5e-324,
        "infinite": float("inf"),
        "big": 2**70,
    },
    "nothing": [(), [], {}],
}


def assert_same(a, b):
    assert type(a) is type(b)
    if isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.view(torch.uint8).equal(b.view(torch.uint8)) if a.dim() else a.equal(b)  # bits: also those of NaN
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert len(a) == len(b)
        for one, other in zip(a, b, strict=True):
            assert_same(one, other)
    else:
        assert a == b


def one_line_error(folder) -> str:
    with pytest.raises(RecordError) as caught:
        checkpoint.load(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


@pytest.fixture
def folder(tmp_path):
    """A folder with the checkpoints of steps 10 and 20."""
    for step in (10, 20):
        checkpoint.save(tmp_path / "checkpoint", STATE | {"step": step}, step)
    return tmp_path / "checkpoint"


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 64 kB."""
    yield from mounted(tmp_path / "disk", "size=64k")


def mounted(folder: Path, options: str):
    folder.mkdir()
    try:
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", folder], capture_output=True, text=True, check=False
        )
    except FileNotFoundError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip(f"mounting is not permitted: {done.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", folder], check=True)


def test_everything_comes_back_to_the_bit(folder):
    assert_same(checkpoint.load(folder), STATE | {"step": 20})


def test_tensors_that_share_memory_come_back_apart(tmp_path):
    whole = torch.arange(10.0)
    view, transposed = whole[2:5], whole.reshape(2, 5).t()
    checkpoint.save(tmp_path, {"whole": whole, "view": view, "again": view, "transposed": transposed}, 1)
    state = checkpoint.load(tmp_path)
    assert_same(state["view"], view)
    assert torch.equal(state["transposed"], transposed)
    state["view"].zero_()
    assert torch.equal(state["whole"], whole)
    assert torch.equal(state["again"], view)


def test_what_is_saved_is_not_changed_by_what_follows(tmp_path):
    weight = torch.nn.Parameter(torch.ones(3))
    checkpoint.save(tmp_path, {"weight": weight}, 1)
    weight.data.zero_()
    assert torch.equal(checkpoint.load(tmp_path)["weight"], torch.ones(3))


def test_subclasses_of_tuple_come_back_as_tuples(tmp_path):
    checkpoint.save(tmp_path, {"shape": torch.Size([2, 3])}, 1)
    assert checkpoint.load(tmp_path) == {"shape": (2, 3)}


@pytest.mark.parametrize("thing", [object(), {(1, 2): 3}, {1.5: 2}, {"set": {1}}])
def test_what_cannot_come_back_is_refused(tmp_path, thing):
    with pytest.raises(TypeError, match="a file"):
        checkpoint.save(tmp_path, {"thing": thing}, 1)
    assert not checkpoint.exists(tmp_path)


def test_two_are_kept(folder):
    checkpoint.save(folder, STATE | {"step": 30}, 30)
    assert sorted(path.name for path in folder.iterdir()) == [
        "latest.json",
        "step-20.safetensors",
        "step-30.safetensors",
    ]
    assert checkpoint.load(folder)["step"] == 30


def test_a_step_can_be_saved_again(folder):
    checkpoint.save(folder, {"step": "again"}, 20)
    assert checkpoint.load(folder) == {"step": "again"}
    (folder / "step-20.safetensors").unlink()
    assert checkpoint.load(folder)["step"] == 10


def test_what_a_kill_left_behind_is_removed(folder):
    leftover = folder / ".step-30.safetensors.0123abcd.tmp"
    leftover.write_bytes(b"half")
    (folder / "step-25.safetensors").write_bytes(b"written, but not yet in the index")
    assert checkpoint.load(folder)["step"] == 20
    checkpoint.save(folder, STATE, 30)
    assert not leftover.exists()
    assert not (folder / "step-25.safetensors").exists()


def test_a_missing_folder_and_an_empty_one(tmp_path):
    assert not checkpoint.exists(tmp_path / "none")
    assert "no checkpoint" in one_line_error(tmp_path / "none")
    assert "no checkpoint" in one_line_error(tmp_path)


def test_a_missing_file(folder):
    (folder / "step-20.safetensors").unlink()
    assert checkpoint.load(folder)["step"] == 10
    (folder / "step-10.safetensors").unlink()
    assert "--resume trains the run again" in one_line_error(folder)


@pytest.mark.parametrize("keep", [0, 1, 7, 8, 100, -1])
def test_a_truncated_file_names_the_earlier_one_and_deleting_it_is_the_way_out(folder, keep):
    path = folder / "step-20.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    assert "step-20.safetensors is damaged" in one_line_error(folder)
    assert "delete it to continue from step-10.safetensors" in one_line_error(folder)
    path.unlink()
    assert_same(checkpoint.load(folder), STATE | {"step": 10})


def test_a_damaged_only_checkpoint(tmp_path):
    path = checkpoint.save(tmp_path, STATE, 1)
    path.write_bytes(path.read_bytes()[:-1])
    assert f"delete {tmp_path}, and --resume" in one_line_error(tmp_path)


def test_any_flipped_bit_of_a_checkpoint_is_noticed(folder):
    path = folder / "step-20.safetensors"
    data = path.read_bytes()
    generator = random.Random(0)
    places = [0, 7, 8, 9, len(data) - 1, *(generator.randrange(len(data)) for _ in range(100))]
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        assert "damaged" in one_line_error(folder)


def test_no_flipped_bit_of_the_index_brings_back_wrong_numbers(folder):
    """Each is an error of one line, or leads to one of the two checkpoints, whole."""
    path = folder / "latest.json"
    data = path.read_bytes()
    n_errors = 0
    generator = random.Random(0)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << generator.randrange(8)
        path.write_bytes(damaged)
        with contextlib.suppress(RecordError):
            state = checkpoint.load(folder)
            assert state["step"] in (10, 20)
            assert_same(state, STATE | {"step": state["step"]})
            continue
        one_line_error(folder)
        n_errors += 1
    assert n_errors > len(data) / 4


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"format": 1}',
        b'{"format": null, "checkpoints": []}',
        b'{"format": 1, "checkpoints": 3}',
        b'{"format": 1, "checkpoints": [{"file": "step-20.safetensors"}]}',
        b'{"format": 1, "checkpoints": [{"file": "../step-20.safetensors", "step": 20, "sha256": ""}]}',
    ],
)
def test_a_broken_index(folder, content):
    (folder / "latest.json").write_bytes(content)
    assert "latest.json is broken" in one_line_error(folder)
    with pytest.raises(RecordError, match="broken"):  # and nothing is thrown away for it
        checkpoint.save(folder, STATE, 30)
    assert (folder / "step-20.safetensors").exists()


def test_a_newer_format(folder):
    index = json.loads((folder / "latest.json").read_text())
    (folder / "latest.json").write_text(json.dumps(index | {"format": checkpoint.FORMAT + 1}))
    assert "upgrade gossamer" in one_line_error(folder)


def test_a_file_of_another_program(folder):
    import hashlib

    from safetensors.torch import save

    data = save({"weight": torch.ones(2)})
    (folder / "step-20.safetensors").write_bytes(data)
    index = json.loads((folder / "latest.json").read_text())
    index["checkpoints"][0]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "latest.json").write_text(json.dumps(index))
    assert "not a checkpoint of gossamer" in one_line_error(folder)


def fill_the_disk(patch, n_writes):
    """After ``n_writes`` more writes there is no room."""
    write, count = os.write, 0

    def full(handle, data):
        nonlocal count
        count += 1
        if count > n_writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(handle, data)

    patch.setattr(os, "write", full)


# A new step writes its file, then the index; a step saved again first takes the old file out of the index.
@pytest.mark.parametrize(
    ("step", "n_writes", "left"), [(30, 0, 20), (30, 1, 20), (20, 0, 20), (20, 1, 10), (20, 2, 10)]
)
def test_a_full_disk_damages_nothing(folder, monkeypatch, step, n_writes, left):
    with monkeypatch.context() as patch:
        fill_the_disk(patch, n_writes)
        with pytest.raises(RecordError, match="the disk is full; free some space and resume") as caught:
            checkpoint.save(folder, {"step": "new"}, step)
    assert "\n" not in str(caught.value)
    assert_same(checkpoint.load(folder), STATE | {"step": left})
    assert not list(folder.glob(".*"))
    checkpoint.save(folder, {"step": "new"}, step)
    assert checkpoint.load(folder) == {"step": "new"}


def test_a_disk_that_is_really_full(small_disk):
    folder = small_disk / "checkpoint"
    state = {"weight": torch.arange(5000.0)}  # 20 kB: two fit on it, the third does not
    checkpoint.save(folder, state, 1)
    checkpoint.save(folder, state, 2)
    with pytest.raises(RecordError, match="the disk is full"):
        checkpoint.save(folder, state, 3)
    assert_same(checkpoint.load(folder), state)
    assert sorted(path.name for path in folder.iterdir()) == [
        "latest.json",
        "step-1.safetensors",
        "step-2.safetensors",
    ]


def test_a_read_only_folder(folder):
    if os.geteuid() == 0:
        subprocess.run(["mount", "--bind", "-o", "ro", folder, folder], check=False, capture_output=True)
        if not os.statvfs(folder).f_flag & os.ST_RDONLY:
            subprocess.run(["umount", folder], check=False, capture_output=True)
            pytest.skip("rights do not bind the superuser, and mounting is not permitted")
    else:
        folder.chmod(0o500)
    try:
        with pytest.raises(RecordError, match=r"read-only|permission denied") as caught:
            checkpoint.save(folder, STATE, 30)
        assert_same(checkpoint.load(folder), STATE | {"step": 20})
    finally:
        if os.geteuid() == 0:
            subprocess.run(["umount", folder], check=True)
        else:
            folder.chmod(0o700)
    assert "\n" not in str(caught.value)


def test_a_folder_that_is_a_file(tmp_path):
    (tmp_path / "checkpoint").write_text("in the way")
    with pytest.raises(RecordError, match="is a file, not a folder"):
        checkpoint.save(tmp_path / "checkpoint", STATE, 1)
