"""The command, and plans and results small enough for a test."""

import pytest
import torch

from benchmarks import cpu, layers, networks
from benchmarks.measurements import Effort
from benchmarks.networks import UpdateCase
from gossamer.models import mlp


@pytest.fixture
def command(in_process):
    """Runs ``python -m benchmarks`` in this process; returns the exit code, standard output and standard error."""
    from benchmarks.__main__ import main

    return in_process(main)


@pytest.fixture
def refused(command):
    """Runs a command that must fail; returns the last line of standard error."""

    def run(code, *arguments):
        found, out, err = command(*arguments)
        assert (found, out) == (code, ""), err
        assert "Traceback" not in err
        return err.splitlines()[-1]

    return run


@pytest.fixture
def tiny_bench(monkeypatch):
    """The plan of ``python -m benchmarks cpu --quick``, for the time of a test: rows of every section, in a second."""
    linear = layers.LayerCase("linear 48x32", "linear", lambda: torch.nn.Linear(48, 32), (48,))
    conv = layers.LayerCase(
        "conv 8@6x6", "conv 3x3", lambda: torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), (8, 6, 6)
    )
    network = networks.NetworkCase("MLP 48-32-10", "training step", lambda: mlp(48, (32,)), (48,), 8, networks.training)
    plan = cpu.CpuPlan(
        effort=Effort(densities=(0.1, 0.05), rival_densities=(0.1,), rounds=2),
        layers=tuple((case, 32, work) for case in (linear, conv) for work in (layers.FORWARD, layers.TRAINING)),
        networks=(network,),
        updates=(UpdateCase("MLP 48-32-10", lambda: mlp(48, (32,)), (48,), 8, density=0.1),),
    )
    monkeypatch.setattr(cpu, "QUICK", plan)
    return plan
