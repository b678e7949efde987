"""Peak memory: what was taken after the beginning, at its highest, and not what came before."""

import pytest
import torch

from gossamer.runs.memory import RESET, PeakMemory

MB = 1_000_000
pytestmark = pytest.mark.skipif(not RESET.exists(), reason="this system does not reset the peak of a process")


def test_the_highest_moment_counts_though_it_is_over():
    memory = PeakMemory(torch.device("cpu"))
    large = torch.ones(20 * MB)
    del large
    assert 75 * MB <= memory.growth() < 90 * MB  # the kernel counts pages in batches


def test_what_was_held_or_freed_before_does_not_count():
    kept, freed = torch.ones(10 * MB), torch.ones(30 * MB)
    del freed
    memory = PeakMemory(torch.device("cpu"))
    assert memory.growth() < 5 * MB
    assert kept.sum() == 10 * MB
