"""Commands that must fail, and a run to ask about."""

import pytest

from gossamer.lab.cli import main

QUICK = ["--epochs", "2", "--n-draws", "3", "--device", "cpu", "--quiet"]


@pytest.fixture
def refused(gossamer):
    """Runs a command that must fail: one line on standard error, nothing on standard output; returns that line."""

    def run(code, *arguments):
        found, out, err = gossamer(*arguments)
        assert found == code, err
        assert out == ""
        assert err.startswith("gossamer: ")
        assert err.endswith("\n")
        assert err.count("\n") == 1
        assert "Traceback" not in err
        return err.removeprefix("gossamer: ").rstrip("\n")

    return run


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """The folder of a finished run, with a space in its path."""
    folder = tmp_path_factory.mktemp("finished") / "my run"
    assert main(["train", "ssvi", "digits", "--density", "0.1", "--n-val", "239", *QUICK, "--out", str(folder)]) == 0
    return folder
