"""What all tests share."""

import warnings

import hypothesis
import pytest
import torch

# The networks here are tiny and pytest-xdist fills the cores: a second thread would only wait for its turn.
torch.set_num_threads(1)

# The same examples every time: a run that fails can be run again. To look for new ones: --hypothesis-profile=search.
hypothesis.settings.register_profile("fixed", derandomize=True, deadline=None)
hypothesis.settings.register_profile("search", deadline=None)
hypothesis.settings.load_profile("fixed")


@pytest.fixture(autouse=True)
def _warnings_of_the_compiler(request):
    """Only tests of a GPU compile: there torch, Triton and what they import warn of things that are not ours.

    A warning that is an error here would end the compilation, and with it the capture that is tested.
    """
    if request.node.get_closest_marker("gpu") is None:
        yield
        return
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", module=r"(torch|triton|sympy|networkx|numpy)(\.|$)")
        # From C++, filed under whichever line of Python was running.
        warnings.filterwarnings("ignore", message=r"(?s).*(Triggered internally at|tensor cores for float32)")
        yield


@pytest.fixture
def gossamer(capsys):
    """Runs the command in this process; returns the exit code, standard output and standard error."""
    from gossamer.cli import main

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def tiny_bench(monkeypatch):
    """The plan of ``gossamer bench cpu --quick``, for the time of a test: rows of every section, in a second."""
    from gossamer.bench import cpu, layers, networks
    from gossamer.bench.effort import Effort
    from gossamer.bench.updates import UpdateCase
    from gossamer.models import mlp

    linear = layers.LayerCase("linear 48x32", "linear", lambda: torch.nn.Linear(48, 32), (48,))
    conv = layers.LayerCase(
        "conv 8@6x6", "conv 3x3", lambda: torch.nn.Conv2d(8, 8, 3, padding=1, bias=False), (8, 6, 6)
    )
    network = networks.NetworkCase("MLP 48-32-10", "training step", lambda: mlp(48, (32,)), (48,), 8, networks.training)
    plan = cpu.Plan(
        effort=Effort(densities=(0.1, 0.05), rival_densities=(0.1,), rounds=2),
        layers=tuple((case, 32, work) for case in (linear, conv) for work in (layers.FORWARD, layers.TRAINING)),
        networks=(network,),
        updates=(UpdateCase("MLP 48-32-10", lambda: mlp(48, (32,)), (48,), 8, density=0.1),),
    )
    monkeypatch.setattr(cpu, "QUICK", plan)
    return plan
