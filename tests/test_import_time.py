"""``import gossamer`` costs little more than ``import torch``, and brings no optional package with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gossamer.lab.record import Run

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


QUICK = (
    ["--help"],
    ["--version"],
    ["runs", "--help"],
    ["show", "--help"],
    ["evaluate", "--help"],
    ["predict", "--help"],
)


def test_a_list_does_not_wait_for_torch(tmp_path: Path):
    Run.create(tmp_path / "run", {"method": "sgd"}).write_result({"metrics": {"accuracy": 0.5}})
    kinds = ("methods", "data", "models", "criteria")
    commands = [*QUICK, ["runs", str(tmp_path)], *(["list", kind] for kind in kinds)]
    code = "from gossamer.lab.cli import main; import sys"
    code += f"; print([main(command) for command in {commands}], 'torch' in sys.modules)"
    assert run(code).splitlines()[-1] == f"{[0] * len(commands)} False"


def test_one_process_trains_without_fabric(tmp_path: Path):
    given = ["train", "sgd", "two_moons", "--epochs", "1", "--out", str(tmp_path / "run"), "--quiet"]
    code = f"from gossamer.lab.cli import main; import sys; main({given}); print(*sys.modules)"
    loaded = set(run(code).split())
    assert "gossamer.lab.runs.job" in loaded
    assert not loaded & {"lightning_fabric", "lightning_utilities", "torchmetrics", "optuna"}


@pytest.mark.slow
def test_import_costs_little_more_than_torch():
    torch_seconds, gossamer_seconds = [], []
    for _ in range(5):  # interleaved, so that a slow spell hits both
        torch_seconds.append(seconds_to_import("torch"))
        gossamer_seconds.append(seconds_to_import("gossamer.sparsity, gossamer.sparsity.convert, gossamer.optim"))
    assert min(gossamer_seconds) < 1.3 * min(torch_seconds)


def test_import_brings_nothing_optional():
    code = "import sys, gossamer; gossamer.bayesianize, gossamer.Subspace, gossamer.Curvature"
    loaded = set(run(f"{code}; print(*sys.modules)").split())
    assert not loaded & {*OPTIONAL, *LAZY}
