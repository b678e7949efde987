"""Cells say what the samples say."""

from benchmarks.measurements import DENSE, MASKED, PLAIN, Footprint, Measurements, Timing, UpdateCost
from benchmarks.tables import Table, all_tables

LINEAR = Timing(
    "linear 4x4",
    "linear",
    "forward",
    32,
    {
        DENSE: [12.0, 12.0, 12.0],
        MASKED: [15.0, 15.0, 15.0],
        PLAIN: [6.0, 6.0, 6.0],
        "sparse 0.1": [4.0, 3.0, 2.0],
        "sparse 0.05": [2.0, 2.0, 2.0],
        "torch CSR 0.05": [8.0, 6.0, 6.0],
    },
)
CONV = Timing("conv 2@4x4", "conv 3x3", "forward", 32, {DENSE: [500.0], "sparse 0.05": [100.0]})


def test_a_row_of_layers():
    table = all_tables(Measurements("cpu", 3, {}, layers=[LINEAR, CONV]))["layers-forward"]
    assert table.head == ["layer", "batch", "dense LRT", "masked", "deterministic", "10 %", "5 %"]
    assert table.rows == [
        ["linear 4x4", "32", "12.0 ms", "0.80x", "2.0x", "4.0x [3.5–5.0] (2.0x)", "6.0x [6.0–6.0] (3.0x)"],
        ["conv 2@4x4", "32", "500 ms", "–", "–", "–", "5.0x [5.0–5.0]"],
    ]


def test_rivals_have_a_table_of_their_own_without_the_rows_that_they_are_not_in():
    table = all_tables(Measurements("cpu", 3, {}, layers=[LINEAR, CONV]))["rivals"]
    assert table.head == ["layer", "work", "batch", "ours 5 %", "torch CSR 5 %"]
    assert table.rows == [["linear 4x4", "forward", "32", "6.0x [6.0–6.0]", "2.0x [1.8–2.0]"]]


def test_memory_in_megabytes_and_shares():
    dense = Footprint("ResNet-18", DENSE, 268_000_000, 0, 178_800_000, 89_400_000, [10**9])
    own = Footprint(
        "ResNet-18", "sparse 0.05", 13_400_000, 9_100_000, 11_340_000, 6_800_000, [4 * 10**8, 5 * 10**8, 6 * 10**8]
    )
    table = all_tables(Measurements("cpu", 3, {}, memory=[dense, own]))["memory"]
    assert table.rows[0] == ["ResNet-18", "dense LRT", "268.0", "0.0", "178.8", "89.4", "1000.0"]
    assert table.rows[1] == [
        "ResNet-18", "sparse 5 %", "13.4 (5.0 %)", "9.1", "11.3 (6.3 %)", "6.8 (7.6 %)", "500.0 (50.0 %)",
    ]  # fmt: skip


def test_updates():
    row = UpdateCost("MLP", 128, 0.05, 100, [8.0, 8.0, 8.0], [40.0, 56.0, 48.0])
    table = all_tables(Measurements("cpu", 3, {}, updates=[row]))["updates"]
    assert table.rows == [["MLP", "128", "5 %", "8.00 ms", "48.0 ms", "6.0 % [5.5–6.5]"]]


def test_bars_that_were_measured():
    row = Timing("linear 1024x1024", "linear", "forward", 128, {DENSE: [50.0], "sparse 0.05": [10.0]})
    table = all_tables(Measurements("cpu", 3, {}, layers=[row]))["bars"]
    assert table.rows == [["linear 1024x1024, batch 128, 5%: forward over dense LRT", "at least 5.5x", "5.0x", "FAIL"]]
    assert table.note.startswith("0 of 1 bars are met, 18 were not measured")


def test_sections_without_rows_have_no_table():
    assert all_tables(Measurements("cpu", 3, {})) == {}


def test_text_is_aligned_and_markdown_is_a_table():
    table = Table("Title", "Note.", ["name", "value"], [["a|b", "1"], ["c", "100"]])
    assert table.to_text() == "Title\nNote.\n\nname  value\na|b       1\nc       100"
    assert table.to_markdown() == "| name | value |\n| --- | ---: |\n| a\\|b | 1 |\n| c | 100 |\n"
