"""A method that is not in the package goes through everything that the package's own do."""

import json
import sys

import pytest

from gossamer import methods
from gossamer.data import digits
from gossamer.lab.cli import main
from gossamer.models import mlp
from gossamer.train import fit

SOURCE = '''
"""Sparse evolutionary training (Mocanu et al. 2018)."""

from functools import partial

import torch

import gossamer
from gossamer.posterior import Last
from gossamer.schedules import cosine
from gossamer.types import Method, Task


def evolve(task: Task, steps: int, *, density: float = 0.1, lr: float = 0.1) -> Method:
    """Drop by magnitude, grow at random."""
    return Method(
        prepare=partial(gossamer.sparsify, density=density),
        optimizer=lambda model: torch.optim.SGD(gossamer.param_groups(model), lr=lr, momentum=0.9),
        lr=cosine(lr, steps),
        rules=lambda model, optimizer: [
            gossamer.Subspace(
                model, optimizer, total_steps=steps, removal="magnitude", addition="random", update_period=10
            )
        ],
        collector=Last,
    )


def untyped(task, steps, *, density=0.1):
    return evolve(task, steps, density=density)


def something(task: Task, steps: int) -> int:
    return 3


def unrelated(x: int) -> int:
    return x
'''
NAME = "outside_methods:evolve"


@pytest.fixture(autouse=True)
def module(tmp_path, monkeypatch):
    (tmp_path / "outside_methods.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)


def test_it_is_built_and_fitted_by_name():
    task = digits.load()
    posterior = fit(methods.build(NAME, task, 20, density=0.2), mlp(64), task, 20)
    assert len(list(posterior.draws(1))) == 1


def test_it_trains_resumes_compares_and_is_reported(tmp_path, capsys):
    flags = ["--epochs", "2", "--n_draws", "1", "--device", "cpu", "--quiet"]
    out = tmp_path / "run"
    assert main(["train", NAME, "digits", "--density", "0.2", *flags, "--out", str(out), "--stop_after", "0"]) != 0
    assert main(["train", "--resume", str(out), "--quiet"]) != 0  # a folder may be anybody's
    assert main(["train", "--resume", str(out), "--trust", NAME, "--quiet"]) == 0
    result = json.loads((out / "result.json").read_text())
    assert (result["method"], result["options"]["density"]) == (NAME, 0.2)
    assert main(["compare", f"{NAME},sgd", "--data", "digits", "--seeds", "1", *flags, "--out", "compared"]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["report", str(out), "--out", "report.html"]) == 0
    assert "outside_methods" in (tmp_path / "report.html").read_text()


def test_a_finished_run_is_read_where_its_method_is_missing(tmp_path, monkeypatch):
    """Showing and reporting a run, perhaps a stranger's, imports nothing that its configuration names."""
    out = str(tmp_path / "run")
    assert (
        main(["train", NAME, "digits", "--epochs", "1", "--n_draws", "1", "--device", "cpu", "--quiet", "--out", out])
        == 0
    )
    (tmp_path / "outside_methods.py").write_text("raise SystemExit('imported')")
    monkeypatch.delitem(sys.modules, "outside_methods")
    assert main(["show", out]) == 0
    assert main(["report", out, "--out", "report.html"]) == 0


def test_a_run_without_a_folder_of_its_own_has_a_name_for_every_file_system(tmp_path):
    assert main(["train", NAME, "digits", "--epochs", "1", "--n_draws", "1", "--device", "cpu", "--quiet"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert ":" not in folder.name


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("outside_methods:evolv", "has no function 'evolv'; did you mean 'evolve'"),
        (
            "no_such_module:evolve",
            "Python finds no module 'no_such_module': install it, or name its folder in PYTHONPATH",
        ),
        ("outside_methods:unrelated", r"must be a function of \(task, steps, "),
        ("outside_methods:untyped", "option density of method 'outside_methods:untyped' needs a type and a default"),
        ("evolve", "unknown method 'evolve'"),
    ],
)
def test_what_is_no_method_is_named(name, error):
    with pytest.raises(ValueError, match=error):
        methods.find(name)


def test_what_does_not_return_a_method_is_named():
    with pytest.raises(TypeError, match=r"must return a gossamer\.types\.Method; it returned int"):
        methods.build("outside_methods:something", digits.load(), 10)
