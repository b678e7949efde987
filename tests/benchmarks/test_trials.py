"""The table of a kept comparison."""

import pytest

from benchmarks.kept import trials_table
from gossamer.runs import Trial, Trials


def trial(label: str, seed: int, **metrics: float) -> Trial:
    return Trial(label, seed, {}, metrics, {"active_parameters": 4224})


def test_mean_and_standard_error():
    rows = trials_table(
        Trials([trial("a", seed, accuracy=x, nll=0.1) for seed, x in enumerate((0.9, 0.93, 0.96))], {})
    ).rows
    assert rows == [["a", "3", "4,224", "93.0 ± 1.7 %", "0.1", "–", "–"]]  # 3 / √3


@pytest.mark.parametrize(("information", "cell"), [(0.0, "0"), (0.0123, "0.0123")])
def test_one_network_cannot_disagree_with_itself(information, cell):
    assert trials_table(Trials([trial("a", 0, mutual_information=information)], {})).rows[0][-1] == cell


def test_a_method_that_failed_is_not_hidden():
    table = trials_table(Trials([trial("a", 0, accuracy=0.9)], {}, {"b": "out of memory"}))
    assert table.rows[1] == ["b", "0", "–", "–", "–", "–", "–"]
