"""What is stored is what was measured, and nothing else is taken for it."""

import json

import pytest

from benchmarks.measurements import DENSE, PLAIN, Footprint, Measurements, Timing, UpdateCost
from gossamer.lab.record import RecordError

RESULTS = Measurements(
    "cpu",
    3,
    {"cpu": "a CPU", "threads": 1},
    layers=[Timing("linear 4x4", "linear", "forward", 8, {DENSE: [2.0, 4.0, 3.0], "sparse 0.05": [1.0, 1.0, 1.0]})],
    networks=[Timing("MLP", "network", "training step", 8, {DENSE: [9.0] * 3, PLAIN: [3.0] * 3})],
    memory=[Footprint("MLP", DENSE, 100, 0, 80, 40, [1000, 1200, 1100])],
    updates=[UpdateCost("MLP", 8, 0.05, 100, [5.0, 5.0, 4.0], [10.0, 15.0, 4.0])],
    notes=["SparseProp: not installed"],
)


def test_round_trip(tmp_path):
    RESULTS.write(tmp_path / "bench.json")
    assert Measurements.read(tmp_path / "bench.json") == RESULTS


def test_a_row_is_a_line():
    text = RESULTS.to_json()
    assert json.loads(text)["format"] == 1
    assert sum('"subject"' in line for line in text.splitlines()) == 4
    assert max(line.count('"subject"') for line in text.splitlines()) == 1


def test_ratios_and_shares():
    row = RESULTS.layers[0]
    assert (row.median(DENSE), row.speedup("sparse 0.05").median) == (3.0, 3.0)
    assert RESULTS.memory[0].peak == 1100
    assert RESULTS.updates[0].share == (0.015, 0.02, 0.025)


def broken(**changes):
    return json.dumps(json.loads(RESULTS.to_json()) | changes)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[1, 2]", "is broken: it must be a table; got list"),
        ("{", "is broken"),
        ("{}", "its format is None, this version of gossamer reads 1"),
        (broken(format=99), "its format is 99"),
        (broken(layers=[{"subject": "x"}]), "layers is broken: 0/batch is missing"),
        (broken(memory=[7]), "memory is broken: 0 must be a table; got 7"),
        (broken(surprise=1), "unexpected keyword argument 'surprise'"),
        ('{"format": 1}', "missing 3 required positional arguments: 'device', 'rounds', and 'environment'"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, text, why):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(RecordError) as error:
        Measurements.read(path)
    assert why in str(error.value)
    assert str(path) in str(error.value)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="does not exist: python -m benchmarks cpu --json"):
        Measurements.read(tmp_path / "no.json")
