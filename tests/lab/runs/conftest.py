"""Runs that are trained once for all tests, and what it means that two of them are the same."""

import json
from importlib.util import find_spec

import pytest
import torch

from gossamer import methods
from gossamer.lab import Settings, train
from gossamer.lab.record import Run
from gossamer.train import checkpoint

# Where the defaults do not suit a training of 45 steps; every other method is taken as it is.
OPTIONS = {
    "ssvi": {"density": 0.1, "update_period": 4},
    "rigl": {"density": 0.1, "update_period": 4},
    "set": {"density": 0.1, "update_period": 4},
    "sm": {"density": 0.1, "update_period": 4},
    "dsr": {"density": 0.1, "update_period": 4, "threshold": 0.1},
    "snip": {"density": 0.1},
    "magnitude": {"density": 0.1, "update_period": 4},
    "dpf": {"density": 0.1, "update_period": 4},
    "em_mcmc": {"density": 0.3},
    "aeb": {"density": 0.3, "samples": 2},
    "ensemble": {"members": 2},
    "mbnn": {"leapfrog": 3},
    "multiswag": {"members": 2},
}
EPOCHS = 3  # of 15 steps each
NOT_REPEATABLE = {"seconds", "examples_per_second"}


def pytest_generate_tests(metafunc):
    """``each_method`` goes through all methods, and so through a new one."""
    if "each_method" in metafunc.fixturenames:
        names = [name for name in methods.names() if name != "laplace" or find_spec("laplace")]
        metafunc.parametrize("each_method", names)


@pytest.fixture(scope="session")
def settings():
    """What a run of a method is told here."""

    def make(method, **changes):
        told = {
            "epochs": EPOCHS,
            "n_val": 239,
            "n_draws": 3,
            "device": "cpu",
            "options": OPTIONS.get(method, {}),
            "model": "mlp",
        } | changes
        return Settings(method, "digits", **told)

    return make


@pytest.fixture(scope="session")
def whole(tmp_path_factory, settings):
    """The folder of a run that nothing interrupted, trained when it is first asked for."""
    root, done = tmp_path_factory.mktemp("whole"), {}

    def find(method):
        if method not in done:
            done[method] = train(settings(method), root / method, quiet=True).folder
        return done[method]

    return find


@pytest.fixture(scope="session")
def assert_same_runs():
    """Final tensors, records and results are equal to the bit; only times may differ."""

    def compare(one, other):
        first, second = (checkpoint.load(folder / "checkpoint") for folder in (one, other))
        assert first["training"]["step"] == second["training"]["step"]
        assert_same(first["training"], second["training"])
        for name in ("sums", "count", "steps", "active", "formed"):
            assert_same(first["tally"][name], second["tally"][name])
        for file in ("metrics.jsonl", "subspace.jsonl"):
            assert_same(*(lines(folder / file) for folder in (one, other)))
        results = [Run.open(folder).result() for folder in (one, other)]
        costs = [result.pop("cost") for result in results]
        assert_same(*results)
        assert costs[0]["active_parameters"] == costs[1]["active_parameters"]

    return compare


def assert_same(a, b, where=""):
    assert type(a) is type(b), where
    if isinstance(a, torch.Tensor):
        assert torch.equal(a, b), where
    elif isinstance(a, dict):
        assert list(a) == list(b), where
        for key in a:
            assert_same(a[key], b[key], f"{where}/{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), where
        for place, (one, other) in enumerate(zip(a, b, strict=True)):
            assert_same(one, other, f"{where}/{place}")
    else:
        assert a == b, where


def lines(path):
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in NOT_REPEATABLE} for row in rows]
