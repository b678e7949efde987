"""``import gossamer`` costs little more than ``import torch``, and brings no optional package with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
OPTIONAL = ("sklearn", "lightning_fabric", "matplotlib", "optuna", "scipy", "rich")
LAZY = (
    "gossamer.train",
    "gossamer.evaluate",
    "gossamer.estimators",
    "gossamer.lab.cli",
    "gossamer.lab.report",
)


def run(code: str) -> str:
    path = os.pathsep.join([str(SOURCE), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def seconds_to_import(module: str) -> float:
    # Processor time: what else the machine does does not count.
    return float(run(f"import time; start = time.process_time(); import {module}; print(time.process_time() - start)"))


@pytest.mark.slow
def test_import_costs_little_more_than_torch():
    torch_seconds, gossamer_seconds = [], []
    for _ in range(5):  # interleaved, so that a slow spell hits both
        torch_seconds.append(seconds_to_import("torch"))
        gossamer_seconds.append(seconds_to_import("gossamer"))
    assert min(gossamer_seconds) < 1.3 * min(torch_seconds)


def test_import_brings_nothing_optional():
    loaded = set(run("import sys, gossamer; print(*sys.modules, sep='\\n')").split())
    assert not loaded & {*OPTIONAL, *LAZY}
