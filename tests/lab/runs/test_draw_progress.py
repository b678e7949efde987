"""Evaluations say which draw they are at."""

from gossamer.lab import evaluate_run, train
from gossamer.lab.runs import progress


def test_an_evaluation_that_takes_long_says_where_it_is(whole, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.0)
    evaluate_run(whole("vi"), n_draws=3, quiet=False)
    lines = capsys.readouterr().err.splitlines()
    assert lines == sorted(lines)
    assert set(lines) <= {f"evaluating vi: draw {number} of 3" for number in (1, 2, 3)}  # several may be one pass
    assert lines[-1] == "evaluating vi: draw 3 of 3"
    evaluate_run(whole("vi"), n_draws=3)
    assert capsys.readouterr().err == ""


def test_the_end_of_a_training_says_that_it_evaluates(settings, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.0)
    train(settings("vi", epochs=1), tmp_path / "run")
    assert "evaluating vi digits seed 0: draw 3 of 3" in capsys.readouterr().err
