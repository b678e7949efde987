"""The attack on a sweep, in small."""

import pytest

from tests.endurance.sweep import attack, main


@pytest.mark.slow
def test_nothing_is_lost(tmp_path):
    outcome, kills = attack(tmp_path / "sweep", trials=8, kills=1, seed=1)
    assert (outcome.lost, outcome.duplicated, outcome.differing) == (0, 0, 0)
    assert outcome.finished + outcome.pruned + outcome.failed == outcome.asked == 8
    assert len(kills) == 2


def test_usage():
    with pytest.raises(SystemExit):
        main(["--trails", "3"])
