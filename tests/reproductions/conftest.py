"""The command, and little data."""

import pytest

from gossamer import data
from gossamer.data import sun1
from reproductions import em_mcmc_table4


@pytest.fixture
def few_examples(monkeypatch):
    """200 training points instead of 10,000, and next to none held out."""
    monkeypatch.setattr(sun1, "N_VAL", 10)

    def load(name, **options):
        return data.load(name, n_train=200, n_test=50, **options)

    monkeypatch.setattr(em_mcmc_table4, "data", type("Few", (), {"load": staticmethod(load)}))


@pytest.fixture
def command(in_process):
    """Runs ``python -m reproductions`` in this process; returns the exit code, standard output and standard error."""
    from reproductions.__main__ import main

    return in_process(main)
