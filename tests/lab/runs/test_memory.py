"""Peak memory: what was taken after the beginning, at its highest, and not what came before."""

import subprocess
import sys

PROGRAM = """
import torch
from gossamer.lab.runs.accounting import PeakMemory
kept = torch.ones(10_000_000)
memory = PeakMemory(torch.device("cpu"))
print(memory.growth() or 0)
large = torch.ones(50_000_000)
del large
print(memory.growth())
again = PeakMemory(torch.device("cpu"))
small = torch.ones(10_000_000)
print(again.growth())
"""


def test_the_highest_moment_counts_and_not_what_was_held_before():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    before, growth, again = done.stdout.split()
    assert int(before) < 5e6
    assert 190e6 <= int(growth) < 240e6  # 200 MB
    assert again == "None"  # this process was larger before, and so nothing is known
