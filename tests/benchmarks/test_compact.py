"""The script behind the table of compact networks: what it measures, and that it refuses networks that disagree."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks import compact as script

ROOT = Path(__file__).parents[2]


def half_dead():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 2)).eval()
    model[2].weight.data[:, :3] = 0.0
    return model


def test_a_row_has_both_sizes_and_times():
    row = script.measured("toy", 0.5, half_dead(), torch.randn(4, 8))
    assert (row["weights"], row["compact_weights"]) == (60, 30)
    assert row["pruned_ms"] > 0
    assert row["compact_ms"] > 0
    cells = script.line(row | {"pruned_ms": 6.0, "compact_ms": 2.0, "accuracy": 0.95, "accuracy_error": 0.002})
    assert cells == "| toy | 50% | 60 | 30 | 6.0 | 2.0 | 3.0x | 95.0 ± 0.2 % |"


def test_networks_that_disagree_are_not_timed(monkeypatch):
    monkeypatch.setattr(script.gossamer, "compact", lambda network: half_dead()[:1])
    with pytest.raises(AssertionError, match="shape"):
        script.measured("toy", 0.5, half_dead(), torch.randn(4, 8))


def test_the_table_of_the_guide_is_that_of_the_results():
    """Every row of it was measured, and written down with the rest."""
    results = json.loads((ROOT / "results" / "compact.json").read_text())
    guide = (ROOT / "docs" / "guides" / "pruning.md").read_text(encoding="utf-8")
    assert len(results["rows"]) == 12
    assert all(script.line(row) in guide for row in results["rows"])
