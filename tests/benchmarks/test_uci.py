"""The script behind the UCI tables: its scores against closed forms, its rivals against a table they must all learn."""

import json
import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import uci


@pytest.fixture
def parts():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 3))
    y = 50 + 10 * x[:, 0] + 2 * rng.normal(size=300)
    return uci.TableRows(x[:200], y[:200]), uci.TableRows(x[200:], y[200:])


def test_scores_of_one_normal_distribution(parts, monkeypatch):
    """In the original units, whatever the standardisation."""
    train, new = parts
    centre, unit = train.y.mean(), train.y.std()

    def flat(x, y, x_new, seed):
        return uci.rivals.Mixture(np.full((1, len(x_new)), 0.5), np.full((1, len(x_new)), 2.0))

    monkeypatch.setitem(uci.MODELS, "flat", flat)
    scores = uci.run("flat", train, new, 0, {})
    law = stats.norm(centre + 0.5 * unit, 2 * unit)
    low, high = law.interval(0.9)
    assert scores["nll"] == pytest.approx(-law.logpdf(new.y).mean())
    assert scores["rmse"] == pytest.approx(math.sqrt(np.mean((new.y - law.mean()) ** 2)))
    assert scores["width"] == pytest.approx(high - low, rel=1e-6)
    assert scores["coverage"] == np.mean((low < new.y) & (new.y < high))


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ("SparseBayesRegressor", {"max_steps": 200}),
        ("BayesianRidge", {}),
        ("Gaussian process", {}),
        ("random forest, quantiles", {"leaf": 5}),
        ("deep ensemble, 5", {"steps": 200, "weight_decay": 1e-4}),
        ("MC dropout", {"steps": 200, "rate": 0.05}),
    ],
)
def test_every_model_learns_a_line(parts, model, options):
    train, new = parts
    scores = uci.run(model, train, new, 0, options)
    assert scores["rmse"] < 0.6 * new.y.std()  # 2 of 10.2 is noise
    assert 0.6 < scores["coverage"] <= 1


def test_a_run_goes_on_where_it_was(tmp_path):
    cells = uci.Cells(tmp_path)
    for split, rmse in enumerate((1.0, 3.0)):
        cells.add({"set": "yacht", "split": split, "model": "BayesianRidge", "rmse": rmse})
    with (tmp_path / "cells.jsonl").open("a") as file:
        file.write(json.dumps({"set": "yacht"})[:-1])  # cut short
    again = uci.Cells(tmp_path)
    assert again.done == {("yacht", 0, "BayesianRidge"), ("yacht", 1, "BayesianRidge")}
    assert "| BayesianRidge | 2.00 ± 1.00 |" in uci.table(again.rows)
    again.add({"set": "yacht", "split": 2, "model": "BayesianRidge", "rmse": 2.0})
    assert len(uci.Cells(tmp_path).rows) == 3
