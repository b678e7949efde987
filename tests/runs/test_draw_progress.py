"""Evaluations say which draw they are at, and runs say what they used where the settings left the choice open."""

import pytest

from gossamer.names import refuse_foreign_code, trusting
from gossamer.runs import Settings, draw_progress, evaluate_run, resume, train


def test_an_evaluation_that_takes_long_says_where_it_is(whole, capsys, monkeypatch):
    monkeypatch.setattr(draw_progress, "SECONDS_OF_SILENCE", 0.0)
    evaluate_run(whole("vi"), n_draws=3, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [f"evaluating vi: draw {number} of 3" for number in (1, 2, 3)]
    evaluate_run(whole("vi"), n_draws=3)
    assert capsys.readouterr().err == ""


def test_the_end_of_a_training_says_that_it_evaluates(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(draw_progress, "SECONDS_OF_SILENCE", 0.0)
    train(settings("vi", epochs=1), tmp_path / "run")
    assert "evaluating vi digits seed 0: draw 3 of 3" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("ssvi", {}, {"lr": 0.02, "optimizer": "Adam", "allocation": "erk", "std": "curvature", "noise": "local"}),
        ("ssvi", {"std": "gradient"}, {"lr": 0.02, "kl_weight": 0.02, "optimizer": "Adam"}),
        ("ssvi", {"lr": 0.05, "optimizer": "sgd"}, {"lr": 0.05, "optimizer": "SGD"}),
        ("sgd", {}, {"lr": 0.1, "optimizer": "SGD"}),
    ],
)
def test_a_run_says_what_it_used(method, options, expected, tmp_path):
    told = Settings(method, "digits", epochs=1, n_draws=1, device="cpu", options=options)
    found = train(told, tmp_path / "run", quiet=True).environment["effective"]
    assert found | expected == found
    assert found | {"model": "mlp", "device": "cpu", "precision": "32", "steps": 15} == found
    assert ("kl_weight" in found) == ("kl_weight" in expected)


def test_names_of_code_are_found_anywhere_in_a_file():
    content = {"data": "digits", "options": {"member_options": {"removal": "mine:score"}, "many": ["os:system"]}}
    with pytest.raises(ValueError, match=r"it names code that is not part of Gossamer: mine:score, os:system\."):
        refuse_foreign_code("it", content)
    with trusting("mine:score"), pytest.raises(ValueError, match=r"Gossamer: os:system\."):
        refuse_foreign_code("it", content)
    with trusting("mine:score"), trusting("os:system"):
        refuse_foreign_code("it", content)
    refuse_foreign_code("it", {"data_dir": "a:b", "target": "x:y", "drop": "p:q", "data": "/a/b:c.csv"})


def test_from_python_a_run_with_own_code_is_resumed_by_naming_it(own_modules, monkeypatch):
    (own_modules / "mine.py").write_text("from gossamer.data.digits import load\n")
    monkeypatch.syspath_prepend(own_modules)
    run = train(Settings("sgd", "mine:load", epochs=1, n_draws=1, device="cpu"), own_modules / "run", quiet=True)
    metrics = run.result()["metrics"]
    (run.folder / "result.json").unlink()
    with pytest.raises(Exception, match="If you trust it, name it again: --trust mine:load"):
        resume(run.folder, quiet=True)
    with trusting("mine:load"):
        assert resume(run.folder, quiet=True).result()["metrics"] == metrics
