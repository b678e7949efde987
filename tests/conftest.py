"""What all tests share."""

import gc
import signal
import sys
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


def pytest_collection_finish():
    """What is imported and collected by now stays to the end: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _signals_have_their_effect():
    """Tests that send signals also work where they are ignored: a shell starts its background jobs without SIGINT."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    ignored = [number for number in usual if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, usual[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


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
    from gossamer.lab.cli import main

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.fixture
def own_modules(tmp_path, monkeypatch):
    """A folder for modules of a user's own; afterwards they and what they registered are forgotten."""
    from gossamer.layers.swap import RULES
    from gossamer.metrics import METRICS

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    tables = [(table, dict(table)) for table in (METRICS, RULES)]
    yield tmp_path
    for table, before in tables:
        table.clear()
        table.update(before)
    for name in [path.stem for path in tmp_path.glob("*.py")]:
        sys.modules.pop(name, None)


@pytest.fixture
def in_process(capsys):
    """Makes of a ``main`` a function that returns the exit code, standard output and standard error."""

    def of(main):
        def run(*arguments):
            try:
                code = main([str(argument) for argument in arguments])
            except SystemExit as stop:
                code = stop.code
            captured = capsys.readouterr()
            return code, captured.out, captured.err

        return run

    return of
