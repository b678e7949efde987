"""An update costs what its step, its move and the rebuilt indices cost beyond ordinary steps."""

import pytest
import torch

from benchmarks import networks
from benchmarks.networks import UpdateCase, measure_updates
from benchmarks.timing import Stopwatch
from gossamer.models import mlp


def test_the_step_of_a_move_and_the_one_after_it_are_the_update(monkeypatch):
    """A clock on which an ordinary step takes 10 ms, the fourth 50, and the one after it 25."""
    now, steps, real = [0.0], [0], networks.train_step

    def train_step(*arguments):
        steps[0] += 1
        seconds = {0: 0.050, 1: 0.025 if steps[0] > 1 else 0.010}.get(steps[0] % 4, 0.010)
        now[0] += seconds
        real(*arguments)

    monkeypatch.setattr(networks, "train_step", train_step)
    case = UpdateCase("MLP", lambda: mlp(12, (16,)), (12,), 4, density=0.2)
    cost = measure_updates(case, 3, Stopwatch("fake", lambda: now[0]))
    assert cost.ordinary_ms == pytest.approx([10.0] * 3)
    assert cost.extra_ms == pytest.approx([40.0 + 15.0] * 3)
    assert cost.share.median == pytest.approx(0.055)


def test_the_subspace_really_moves(monkeypatch):
    made = []
    monkeypatch.setattr(networks, "Subspace", lambda *a, **k: made.append(Subspace(*a, **k)) or made[-1])
    from gossamer.sparsity import Subspace

    torch.manual_seed(0)
    measure_updates(UpdateCase("MLP", lambda: mlp(12, (16,)), (12,), 4, density=0.2), 2)
    assert [entry["step"] for entry in made[0].record] == [4, 8]
    assert all(sum(entry["removed"].values()) > 0 for entry in made[0].record)
