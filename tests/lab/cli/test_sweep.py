"""``gossamer sweep``: what it prints, what its file may say, and what it says of what is wrong."""

import shlex
import sys

import pytest

from gossamer.lab.record import Run
from gossamer.lab.runs.folders import settings_of
from gossamer_sweep.record import SweepRecord

COMMAND = ["sweep", "sgd", "--data", "two_moons", "--study", "moons", "--epochs", "1", "--n-draws", "1", "--quiet"]
SEARCH = ["--search", "lr=log:1e-3..1", "--search", "batch-size=32,64"]


def test_the_best_and_the_command_that_repeats_it(gossamer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    code, out, err = gossamer(*COMMAND, *SEARCH, "--trials", "2")
    assert (code, err) == (0, "")
    found = SweepRecord.read(tmp_path / "runs" / "moons")
    lines = out.splitlines()
    assert lines[0] == "2 of 2 trials: 2 finished"
    assert lines[1].startswith(f"best: {found.best.folder}, NLL ")
    assert lines[2] == "train it on all training data:"
    program, *repeat = shlex.split(lines[3])
    assert program == "gossamer"
    assert gossamer(*repeat, "--out", "on-all", "--quiet")[0] == 0
    first, on_all = (Run.open(folder) for folder in (tmp_path / "runs/moons" / found.best.folder, tmp_path / "on-all"))
    assert first.config | {"n_val": 0, "calibrate": True} == on_all.config
    assert [settings_of(run).load_task().n_data for run in (first, on_all)] == [800, 1000]
    as_the_trial = [*repeat[: repeat.index("--n_val")], *repeat[repeat.index("--n_val") + 2 :], "--calibrate", "false"]
    assert gossamer(*as_the_trial, "--out", "again", "--quiet")[0] == 0
    again = Run.open(tmp_path / "again")
    assert first.config == again.config
    assert first.result()["metrics"] == again.result()["metrics"]


def test_a_file(refused, gossamer, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    text = 'method = "sgd"\ndata = "two_moons"\nstudy = "moons"\ntrials = 1\nepochs = 1\nn_draws = 1\n'
    search = '[search]\nlr = "log:1e-3..1"\nbatch_size = [32, 64]\n'
    (tmp_path / "sweep.toml").write_text(text + search)
    code, out, _ = gossamer("sweep", "--config", "sweep.toml", "--quiet", "--pruner", "none")
    assert (code, out.splitlines()[0]) == (0, "1 of 1 trials: 1 finished")
    found = SweepRecord.read(tmp_path / "runs" / "moons")
    assert (found.space, found.pruner) == ({"lr": "log:0.001..1", "batch_size": "32,64"}, "none")
    (tmp_path / "sweep.toml").write_text(text + "densty = 0.1\n" + search)
    assert refused(2, "sweep", "--config", "sweep.toml").startswith("sweep.toml: unknown key 'densty'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "sweep needs a method: gossamer sweep ssvi --data digits"),
        (["ssvy"], "unknown method 'ssvy'; did you mean 'ssvi'?"),
        (["ssvi", *SEARCH], "a sweep needs the name of its study"),
        (["ssvi", "--study", "a", *SEARCH], "a sweep needs data"),
        (["ssvi", "--study", "a", "--data", "digits"], "a sweep needs something to search: --search lr="),
        (["ssvi", "--study", "a", "--data", "digits", *SEARCH, "--lr", "1"], "lr is both given and searched: leave"),
        (["ssvi", "--study", "a", "--pruner", "mean"], "--pruner must be 'none' or 'median' or 'hyperband'"),
    ],
)
def test_usage_errors(refused, monkeypatch, tmp_path, arguments, message):
    monkeypatch.chdir(tmp_path)
    assert refused(2, "sweep", *arguments).startswith(message)
    assert not list(tmp_path.iterdir())


def test_without_optuna_the_error_names_the_extra(refused, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert refused(1, *COMMAND, *SEARCH) == "this needs optuna: pip install 'gossamer[sweep]'"


def test_a_password_of_the_storage_is_not_recorded(monkeypatch):
    from gossamer.lab.record import environment

    monkeypatch.setattr(sys, "argv", ["gossamer", "--storage=postgresql://me:secret@host:5432/db", "http://x/y"])
    assert environment()["argv"] == ["gossamer", "--storage=postgresql://me:***@host:5432/db", "http://x/y"]
