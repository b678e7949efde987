"""A tree of tensors and plain values comes back to the bit; anything else in a file is a ValueError."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from gossamer.files.container import _checksum, from_bytes, read, to_bytes, write

TREE = {
    "weights": torch.arange(6.0).reshape(2, 3),
    "position": torch.tensor([3, 200, 70_000], dtype=torch.int32),
    "wide": torch.tensor([0, 2**40], dtype=torch.int64),
    "unsorted": torch.tensor([3, 1], dtype=torch.int32),
    "repeated": torch.tensor([1, 1], dtype=torch.int64),
    "negative": torch.tensor([-1, 5], dtype=torch.int64),
    "options": {"betas": (0.9, 0.999), 3: [None, True, "text"]},
}


def same(left, right) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def header(data: bytes) -> dict:
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_a_tree_comes_back():
    assert same(from_bytes(to_bytes(TREE)), TREE)


def test_tensors_have_the_names_of_their_places():
    data = to_bytes({"network": {"0.weight": torch.ones(2)}, "kept": [torch.ones(1), {"a": torch.ones(3)}]})
    assert set(header(data)) - {"__metadata__"} == {"network/0.weight", "kept/0", "kept/1/a"}


def test_two_places_of_one_name():
    tree = {"a/b": torch.ones(1), "a": {"b": torch.zeros(1)}}
    assert same(from_bytes(to_bytes(tree)), tree)


@pytest.mark.parametrize(
    ("steps", "stored"),
    [
        ([0, 1, 254], ("U8", [0, 1, 254])),
        ([1, 1, 255], ("U8", [1, 1, 255, 0])),
        ([1, 600, 1, 1], ("U8", [1, 255, 255, 90, 1, 1])),
        ([300, 600, 255], ("U16", [300, 600, 255])),
        ([70_000, 3, 3, 3], ("U16", [65_535, 4_465, 3, 3, 3])),
        ([2**20, 2**21], ("I32", [2**20, 2**21])),
        ([2**31 - 1, 7, 7, 7], ("I32", [2**31 - 1, 0, 7, 7, 7])),
        ([2**62], ("I64", [2**62])),
        ([2**63 - 1], ("I64", [2**63 - 1, 0])),
    ],
)
def test_positions_are_differences_in_the_fewest_bytes(steps: list[int], stored: tuple[str, list[int]]):
    """The largest number of a width is a part of the difference that follows."""
    position = torch.tensor(steps).cumsum(0)
    data = to_bytes({"position": position})
    assert header(data)["position"]["dtype"] == stored[0]
    assert load(data)["position"].tolist() == stored[1]
    assert same(from_bytes(data)["position"], position)


def test_files_of_format_2_are_read():
    """Each difference in one integer, of whatever size."""
    text = json.dumps({"dict": [["a", {"int32": "a"}], ["b", {"int64": "b"}]]})
    tensors = {"a": torch.tensor([3, 255, 1], dtype=torch.uint8), "b": torch.tensor([0, 2**40])}
    data = save(tensors, metadata={"__tree__": text, "format": "2", "crc32": str(_checksum(2, text, tensors))})
    found = from_bytes(data)
    assert same(found, {"a": torch.tensor([3, 258, 259], dtype=torch.int32), "b": torch.tensor([0, 2**40])})


def test_files_of_version_0_2_are_read():
    """Without a checksum, positions as they are."""
    tree = json.dumps({"dict": [["position", {"tensor": "0"}]]})
    data = save({"0": torch.tensor([1, 5])}, metadata={"__tree__": tree, "format": "1"})
    assert from_bytes(data)["position"].tolist() == [1, 5]


@pytest.mark.parametrize("data", [b"", b"no file of ours", to_bytes(TREE)[:-1]], ids=["empty", "text", "cut"])
def test_bytes_that_are_none_of_ours(data: bytes):
    with pytest.raises(ValueError, match="not what gossamer wrote"):
        from_bytes(data)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_bytes_that_were_changed(data):
    """An error, or the same content, as where a blank of the header became a line break."""
    whole = bytearray(to_bytes(TREE))
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(whole) - 1))
        change = data.draw(st.sampled_from(["flip", "remove", "insert", "cut", "repeat"]))
        if change == "flip":
            whole[place] ^= 1 << data.draw(st.integers(0, 7))
        elif change == "remove":
            del whole[place : place + data.draw(st.integers(1, 9))]
        elif change == "insert":
            whole[place:place] = data.draw(st.binary(min_size=1, max_size=9))
        elif change == "repeat":
            whole[place:place] = whole[place : place + 20]
        else:
            del whole[max(1, place) :]
    try:
        found = from_bytes(bytes(whole))
    except ValueError:
        return
    assert same(found, TREE)


def test_a_tree_that_is_too_deep():
    deep = '{"list": [' * 50_000 + "]}" * 50_000
    with pytest.raises(ValueError, match="not what gossamer wrote"):
        from_bytes(save({}, metadata={"__tree__": deep, "format": "1"}))


@settings(max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda inner: st.lists(inner)))
def test_any_plain_values(value):
    assert same(from_bytes(to_bytes({"value": value})), {"value": value})


def test_what_a_tree_cannot_hold():
    with pytest.raises(TypeError, match="not set"):
        to_bytes({"a": {1, 2}})
    with pytest.raises(TypeError, match="not float"):
        to_bytes({"a": {1.5: 2}})


def test_kinds_and_formats(tmp_path: Path):
    file = tmp_path / "file"
    write(file, "gossamer network", 2, {"n": 3})
    assert read(file, "gossamer network", 2).get("n", int) == 3
    with pytest.raises(ValueError, match=r"file has format 2 .*: upgrade gossamer"):
        read(file, "gossamer network", 1)
    with pytest.raises(ValueError, match=r"holds a gossamer network, .*: read it with gossamer\.load"):
        read(file, "gossamer estimator", 2)
    with pytest.raises(OSError, match="could not be written"):
        write(tmp_path / "no" / "folder", "gossamer network", 1, {})
