"""Cells of the tables of a GPU say what the samples say; milliseconds are judged on one kind of GPU only."""

import json

import pytest

from benchmarks.bars import judge
from benchmarks.measurements import DRAWN, PLAIN, RELEASED, SSVI, VI, Measurements, TrainingCost
from benchmarks.pages import document, fill
from benchmarks.tables import all_tables

ENVIRONMENT = {
    "gpu": "NVIDIA H200", "gossamer": "1", "torch": "2.11", "cuda": "13.0", "triton": "3.6", "python": "3.12",
    "clock": "wall time", "time": "2026-01-31T12:00:00",
}  # fmt: skip


def row(way, ms, update=None, setup=30.0, size=10**8):
    return TrainingCost("ResNet-18", way, 128, ms, update or [], setup, size, 2 * size, 3 * size, 4 * size, 5 * size)


ROWS = [
    row(SSVI, [4.0, 4.2, 4.1], [2.0, 2.0, 3.0], size=5 * 10**6),
    row(PLAIN, [2.0, 2.1, 2.05]),
    row(VI, [4.0, 4.0, 4.0]),
    row(RELEASED, [24.0, 24.0, 24.6], [20.0, 20.0, 20.0], setup=1.5),
]
RESULTS = Measurements("gpu", 3, ENVIRONMENT, training=ROWS, notes=["a note"])


def test_steps():
    table = all_tables(RESULTS)["steps"]
    assert table.head[2:] == ["step", "epoch", "images/s", "over released style", "times deterministic", "set-up"]
    assert table.rows[0] == [
        SSVI, "128", "4.10 ms [4.05–4.15]", "1.61 s", "31,076", "6.0x [5.9–6.0]", "2.00x", "30.0 s",
    ]  # fmt: skip
    assert table.rows[2][5:7] == ["6.0x [6.0–6.1]", "1.95x [1.93–1.98]"]


def test_without_those_to_compare_with():
    table = all_tables(Measurements("gpu", 3, ENVIRONMENT, training=ROWS[:1]))["steps"]
    assert table.rows[0][5:7] == ["–", "–"]


def test_state():
    rows = all_tables(RESULTS)["state"].rows
    assert rows[0] == [SSVI, "5.0 (5.0 %)", "15.0 (5.0 %)", "10.0 (5.0 %)", "20.0 (5.0 %)", "25.0 (5.0 %)"]
    assert rows[2] == [VI, "100.0", "300.0", "200.0", "400.0", "500.0"]


def test_moves():
    rows = all_tables(RESULTS)["moves"].rows
    assert rows == [
        [SSVI, "4.10 ms", "2.00 ms [2.00–2.50]", "0.4 % [0.4–0.5]"],
        [RELEASED, "24.0 ms", "20.00 ms", "0.6 %"],
    ]


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, []),
        ({SSVI: [4.9, 4.9, 4.9]}, ["step on an H200", "step over released style", "step, times the deterministic one"]),
        ({SSVI: [4.0, 4.0, 4.0]}, ["step on an H200"]),
        ({DRAWN: [2.7, 2.7, 2.7]}, ["step on an H200"]),
        ({PLAIN: [1.7, 1.7, 1.7]}, ["step, times the deterministic one"]),
        ({RELEASED: [18.0, 18.0, 18.0]}, ["step over released style"]),
    ],
)
def test_bars(changed, missed):
    times = {r.way: r.ms for r in ROWS} | {SSVI: [3.8, 3.8, 3.8], DRAWN: [2.5, 2.5, 2.5]} | changed
    rows = [row(way, ms) for way, ms in times.items()]
    verdicts = judge(Measurements("gpu", 3, ENVIRONMENT, training=rows))
    assert [v.bar.what.split(": ")[1] for v in verdicts if not v.met] == missed


def test_set_up_has_a_bar():
    slow = [row(SSVI, [3.8], [1.0], setup=61.0)]
    assert [v.met for v in judge(Measurements("gpu", 1, ENVIRONMENT, training=slow))] == [True, None, None, None, False]


def test_milliseconds_of_another_gpu_are_not_judged():
    other = Measurements("gpu", 3, ENVIRONMENT | {"gpu": "NVIDIA L4"}, training=ROWS)
    assert [verdict.met for verdict in judge(other)] == [None, None, True, True, True]
    table = all_tables(other)["bars"]
    assert table.note.startswith("3 of 3 bars are met, 2 were not measured here")
    assert table.rows[1][1:] == ["at most 2.1x", "2.00x", "pass"]


def test_another_batch_is_not_judged():
    rows = [TrainingCost(**(r.__dict__ | {"batch": 512})) for r in ROWS]
    assert {verdict.met for verdict in judge(Measurements("gpu", 3, ENVIRONMENT, training=rows))} == {None}


def test_round_trip_and_pages(tmp_path):
    RESULTS.write(tmp_path / "bench.json")
    again = Measurements.read(tmp_path / "bench.json")
    assert again == RESULTS
    assert json.loads(RESULTS.to_json())["training"][0]["way"] == SSVI
    assert document(again).startswith("# benchmarks gpu\n\nNVIDIA H200; gossamer 1; torch 2.11, CUDA 13.0, Triton 3.6")
    page = fill("<!-- bench:gpu:steps -->\n<!-- /bench -->\n<!-- bench:cpu:networks -->\nold\n<!-- /bench -->", again)
    assert "| SSVI 5 % | 128 | 4.10 ms" in page
    assert "\nold\n" in page
