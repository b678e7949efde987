"""Parquet files: the same types as in memory, and whatever a file asks for, it is read or refused in one line."""

import datetime
import importlib.util
import sys
import types
from decimal import Decimal

import numpy as np
import pytest

from gossamer import data
from gossamer.data.own import files, parquet_process
from gossamer.data.own.files import read_frame

pl = pytest.importorskip("polars")

# A column "a" of two texts, as polars 2.1 writes it, without the fields that may be left out.
TWO_TEXTS = (
    b"PAR1\x15\x04\x15\x14\x15\x14L\x15\x04\x15\x00\x00\x00\x01\x00\x00\x00x\x01\x00\x00\x00y\x15\x00\x15\x12\x15\x12,"
    b"\x15\x04\x15\x10\x15\x06\x15\x06\x00\x00\x02\x00\x00\x00\x04\x01\x01\x03\x02\x15\x0c\x195\x00\x06\x10\x19\x18\x01a"
    b"\x15\x00\x16\x04\x16b\x16b&6&\x08\x00\x19\x1c\x166\x154\x16\x00\x00\x00\x15\x02\x19,H\x04root\x15\x02\x00\x15\x0c%"
    b"\x02\x18\x01a%\x00L\x1c\x00\x00\x00\x16\x04\x19\x1c\x19\x1c&\x98\x01\x1c\x15\x0c\x195\x00\x06\x10\x19\x18\x01a\x15"
    b"\x00\x16\x04\x16b\x16b&6&\x08\x00\x16\x9a\x01\x15\x14\x00\x16b\x16\x04&\x08\x16b\x14\x00\x00\x00O\x00\x00\x00PAR1"
)
N_VALUES = 35  # where the page of the column says how many values it has, as a zigzag number: odd ones are negative


def refusal(path):
    with pytest.raises(ValueError, match=r"cannot read .* as Parquet: .*; write it again") as caught:
        read_frame(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def changed(place, value):
    return TWO_TEXTS[:place] + bytes([value]) + TWO_TEXTS[place + 1 :]


class TestHostileFiles:
    def test_the_file_that_is_changed_below_is_good(self, tmp_path):
        (tmp_path / "t.parquet").write_bytes(TWO_TEXTS)
        assert read_frame(tmp_path / "t.parquet")["a"].tolist() == ["x", "y"]

    @pytest.mark.parametrize("value", [5, 71])
    def test_one_for_which_polars_ends_its_process(self, value, tmp_path):
        """Asked for 2^61 bytes, Rust aborts: found by ``tests.endurance.mutations``."""
        (tmp_path / "t.parquet").write_bytes(changed(N_VALUES, value))
        refusal(tmp_path / "t.parquet")

    @pytest.mark.parametrize("blob", [b"", b"PAR1", TWO_TEXTS[:-9], changed(90, 255), bytes(200)])
    def test_damaged(self, blob, tmp_path):
        (tmp_path / "t.parquet").write_bytes(blob)
        refusal(tmp_path / "t.parquet")

    def test_billions_of_rows_in_a_small_file(self, tmp_path):
        nothing = pl.Series("a", [None]).new_from_index(0, 2_000_000_000)
        nothing.alias("a").to_frame().write_parquet(tmp_path / "t.parquet")
        assert (tmp_path / "t.parquet").stat().st_size < 2**22
        assert "it has 2,000,000,000 rows of 1 columns, more than 134,217,728 values" in refusal(tmp_path / "t.parquet")

    def test_columns_count_as_rows_do(self, monkeypatch, tmp_path):
        monkeypatch.setattr(files, "LARGEST", 2**27)
        ones = pl.repeat(1.0, 200_000, eager=True)
        pl.DataFrame({f"x{i}": ones for i in range(100)}).write_parquet(tmp_path / "t.parquet")
        assert "200,000 rows of 100 columns, more than 16,777,216 values" in refusal(tmp_path / "t.parquet")

    def test_a_text_that_unpacks_beyond_the_memory(self, monkeypatch, tmp_path):
        monkeypatch.setattr(files, "LARGEST", 2**27)
        pl.DataFrame({"a": ["x" * 12 * 10**7]}).write_parquet(tmp_path / "t.parquet")
        assert (tmp_path / "t.parquet").stat().st_size < 2**20
        refusal(tmp_path / "t.parquet")

    def test_texts_beyond_the_largest_table(self, monkeypatch, tmp_path):
        pl.DataFrame({"a": ["x" * 1000, "y" * 1000, "y" * 1000]}).write_parquet(tmp_path / "t.parquet")
        with (tmp_path / "t.parquet").open("rb") as file:
            monkeypatch.setattr(sys, "stdin", types.SimpleNamespace(buffer=file))
            assert parquet_process.read(3 * 8 + 2 * 1064).shape == (3, 1)
            with pytest.raises(ValueError, match="its different texts take more than 2,151 bytes"):
                parquet_process.read(3 * 8 + 2 * 1064 - 1)

    def test_lists_are_not_unpacked(self, monkeypatch, tmp_path):
        monkeypatch.setattr(files, "LARGEST", 2**27)
        long = pl.select(pl.repeat(0, 10**7).implode()).to_series()
        table = pl.DataFrame({"a": [1.0] * 9, "long": long.new_from_index(0, 9), "b": [2.0] * 9})
        table.write_parquet(tmp_path / "t.parquet")
        frame = read_frame(tmp_path / "t.parquet")
        assert (frame.columns, frame.shape) == (["a", "long", "b"], (9, 3))
        assert frame["long"].tolist() == [["List(Int32)"]] * 9


def test_types(tmp_path):
    day, moment, nothing = datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31, 12, 30, 1, 999_999), None
    columns = {
        "whole": ([1, nothing, -3], [1.0, nothing, -3.0]),
        "large": (pl.Series([2**64 - 1, nothing, 0], dtype=pl.UInt64), [2.0**64, nothing, 0.0]),
        "single": (pl.Series([0.1, nothing, 2], dtype=pl.Float32), [float(np.float32(0.1)), nothing, 2.0]),
        "double": ([0.1, float("nan"), float("inf")], [0.1, nothing, np.inf]),
        "decimal": ([Decimal("1.10"), nothing, Decimal("-3.33")], [1.1, nothing, -3.33]),
        "truth": ([True, nothing, False], [1.0, nothing, 0.0]),
        "text": (["é\n\0", nothing, ""], ["é\n\0", nothing, ""]),
        "category": (pl.Series(["x", nothing, "y"], dtype=pl.Categorical), ["x", nothing, "y"]),
        "nothing": ([nothing] * 3, [nothing] * 3),
        "day": ([day, nothing, day], [day, nothing, day]),
        "moment": ([moment, nothing, moment], [moment, nothing, moment]),
        "nanoseconds": (pl.Series([moment, nothing, moment], dtype=pl.Datetime("ns")), [moment, nothing, moment]),
        "span": ([moment - moment, nothing, -moment.resolution], [moment - moment, nothing, -moment.resolution]),
    }
    pl.DataFrame({name: given for name, (given, _) in columns.items()}).write_parquet(tmp_path / "t.parquet")
    frame = read_frame(tmp_path / "t.parquet")
    assert frame.columns == list(columns)
    for name, (_, expected) in columns.items():
        is_number = name in ("whole", "large", "single", "double", "decimal", "truth")
        assert frame[name].dtype == (np.float64 if is_number else object), name
        found = [nothing if value is nothing or value != value else value for value in frame[name].tolist()]
        assert (found, [*map(type, found)]) == (expected, [*map(type, expected)]), name


@pytest.mark.parametrize(
    "value", [datetime.date(2024, 1, 31), datetime.datetime(2024, 1, 31), datetime.time(12), datetime.timedelta(1)]
)
def test_dates_are_refused_by_name_and_can_be_dropped(value, tmp_path):
    table = {"sold": [value] * 40, "age": range(40), "price": [i + 0.5 for i in range(40)]}
    pl.DataFrame(table).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"t\.parquet: column 'sold' holds dates"):
        data.load(str(tmp_path / "t.parquet"), target="price")
    assert data.load(str(tmp_path / "t.parquet"), target="price", drop="sold").input_shape == (1,)


def test_columns_of_no_use_are_refused_by_name(tmp_path):
    table = {"tags": [[1, 2]] * 40, "code": [b"a"] * 40, "price": [i + 0.5 for i in range(40)]}
    pl.DataFrame(table).write_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"column 'tags' must hold numbers, but holds \['List\(Int64\)'\]"):
        data.load(str(tmp_path / "t.parquet"), target="price")
    with pytest.raises(ValueError, match=r"column 'code' must hold numbers, but holds \['Binary'\]"):
        data.load(str(tmp_path / "t.parquet"), target="price", drop="tags")


def test_no_rows_and_no_columns(tmp_path):
    pl.DataFrame({"a": [], "b": []}, {"a": pl.Float64, "b": pl.String}).write_parquet(tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet").shape == (0, 2)
    pl.DataFrame().write_parquet(tmp_path / "t.parquet")
    assert read_frame(tmp_path / "t.parquet").shape == (0, 0)


def test_a_path_of_odd_characters(tmp_path):
    path = tmp_path / "-a *[b]?{c} 'é\udcff%20.parquet"  # also a byte that is no UTF-8
    path.write_bytes(TWO_TEXTS)
    assert read_frame(path)["a"].tolist() == ["x", "y"]


def test_files_beside_it_are_not_imported(monkeypatch, tmp_path):
    (tmp_path / "t.parquet").write_bytes(TWO_TEXTS)
    for name in ("polars", "numpy", "json", "resource"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")
    assert read_frame("t.parquet")["a"].tolist() == ["x", "y"]


def test_polars_is_missing(monkeypatch, tmp_path):
    (tmp_path / "t.parquet").write_bytes(TWO_TEXTS)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs polars: pip install 'gossamer\[parquet\]'"):
        read_frame(tmp_path / "t.parquet")
