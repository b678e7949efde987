"""Peak memory: what was taken after the beginning, at its highest, and not what came before."""

import subprocess
import sys

import pytest
import torch

from gossamer.lab.runs.memory import RESET, PeakMemory

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


def test_the_first_training_of_a_process_is_not_charged_for_code_that_it_loads():
    """A run of ``compare`` has the figure that it has in a process of its own."""
    program = (
        "import torch; from gossamer.lab.runs.memory import PeakMemory\n"
        "memory = PeakMemory(torch.device('cpu'))\n"
        "layer = torch.nn.Linear(2, 2); optimizer = torch.optim.Adam(layer.parameters())\n"
        "layer(torch.ones(1, 2)).sum().backward(); optimizer.step(); print(memory.growth())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert int(done.stdout) < 20 * MB  # of 70 with the modules that torch imports
