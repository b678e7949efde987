"""Values of files are held against type hints, and an error names file, field, what was found and the fix."""

import dataclasses
import math
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from gossamer.files.schema import Count, Entries, Finite, Within, check, made, read


class Row(TypedDict):
    step: Count
    loss: NotRequired[Finite]


class Content(TypedDict):
    kind: Literal["rows"]
    rows: list[Row]
    share: NotRequired[Annotated[float, Within(0, 1)]]


@dataclasses.dataclass
class Inner:
    sizes: tuple[int, ...]


@dataclasses.dataclass
class Outer:
    inner: Inner
    more: list[Inner]
    name: str | None = None


RIGHT: dict[str, Any] = {"kind": "rows", "rows": [{"step": 3}, {"step": 0, "loss": -1}], "later": object()}


def test_what_fits_is_returned_as_it_is():
    assert check(RIGHT, Content, "a.json", "delete it") is RIGHT


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"kind": "row"}, "kind must be 'rows'; got 'row'"),
        ({"kind": None}, "kind must be 'rows'; got None"),
        ({"rows": {}}, "rows must be a list; got dict"),
        ({"rows": [{"step": 1}, 7]}, "rows/1 must be a table; got 7"),
        ({"rows": [{}]}, "rows/0/step is missing"),
        ({"rows": [{"step": True}]}, "rows/0/step must be a whole number from 0; got True"),
        ({"rows": [{"step": -1}]}, "rows/0/step must be a whole number from 0; got -1"),
        ({"rows": [{"step": 2**63}]}, "rows/0/step must be a whole number from 0; got 9223372036854775808"),
        ({"rows": [{"step": 1, "loss": math.nan}]}, "rows/0/loss must be a finite number; got nan"),
        ({"share": 1.5}, "share must be a number from 0 to 1; got 1.5"),
        ({"share": "x" * 10_000}, "share must be a number from 0 to 1; got 'xxx"),
    ],
)
def test_what_does_not_fit(change, problem):
    with pytest.raises(ValueError, match=r"^a\.json is broken: ") as caught:
        check(RIGHT | change, Content, "a.json", "delete it")
    assert str(caught.value).startswith(f"a.json is broken: {problem}")
    assert str(caught.value).endswith("; delete it")
    assert len(str(caught.value)) < 200


def test_a_tree_becomes_what_it_was():
    outer = Outer(Inner((1, 2)), [Inner(()), Inner((3,))])
    assert made(Outer, dataclasses.asdict(outer), "a file", "write it again") == outer
    with pytest.raises(ValueError, match=r"more/1/sizes/0 must be a whole number; got 'x'; write it again"):
        made(Outer, {"inner": {"sizes": ()}, "more": [{"sizes": ()}, {"sizes": ("x",)}]}, "a file", "write it again")
    with pytest.raises(ValueError, match="inner/colour is unknown; known are sizes"):
        made(Outer, {"inner": {"sizes": (), "colour": 1}, "more": []}, "a file", "write it again")


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("deep.json", "[" * 100_000, "recursion"),
        ("deep.toml", "a = " + "[" * 100_000, "recursion"),
        ("long.json", "9" * 5_000, "4300"),
        ("list.json", "[1]", "it must be a table; got list"),
        ("empty.json", "", "Expecting value"),
    ],
)
def test_texts_that_cannot_be_read(name, text, problem, tmp_path):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"{name} is broken: .*{problem}.*; delete it"):
        read(tmp_path / name, dict[str, Any], "delete it")


def test_a_file_that_is_too_large_is_not_read(tmp_path):
    (tmp_path / "a.json").write_text(" " * 1000)
    with pytest.raises(ValueError, match="has 1,000 bytes, a file of its kind at most 999; delete it"):
        read(tmp_path / "a.json", dict[str, Any], "delete it", most=999)


def test_entries_name_file_and_field():
    entries = Entries(Path("a.safetensors"), {"flag": True, "count": 2, "inner": {"names": ["x", 3]}, "rows": []})
    assert entries.get("count", float) == 2.0
    for call, words in [
        (lambda: entries.get("flag", int), "a.safetensors: flag must be a whole number; got True"),
        (lambda: entries.get("other", int), "a.safetensors: other is missing"),
        (lambda: entries.inside("inner").get("names", list[str]), "inner/names/1 must be a text; got 3"),
        (lambda: entries.each("rows"), "a.safetensors: rows is empty"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()
