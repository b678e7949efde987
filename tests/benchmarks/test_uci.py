"""The script behind the UCI tables: its scores against closed forms, its rivals against a table they must all learn."""

import math

import numpy as np
import pytest
from scipy import stats

from benchmarks import uci, uci_rivals, uci_tables
from benchmarks.uci_tables import BEFORE, GP, OURS


@pytest.fixture
def line():
    """Rows to train on and new ones, with the noise std 0.2."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = x[:, 0] + 0.2 * rng.normal(size=400)
    return x[:200], y[:200], x[200:], y[200:]


def test_scores_of_one_normal_distribution(line):
    """In the original unit, whatever the standardisation."""
    *_, y = line
    law = stats.norm(5.0, 20.0)
    found = uci.scores(
        uci_rivals.Mixture(np.full((1, len(y)), 0.5), np.full((1, len(y)), 2.0)), y, unit=10.0, rare=0.01
    )
    low, high = law.interval(0.9)
    assert found["nll"] == pytest.approx(-law.logpdf(10 * y).mean(), rel=1e-5)  # six digits are kept
    assert found["rmse"] == pytest.approx(math.sqrt(np.mean((10 * y - 5) ** 2)), rel=1e-5)
    assert found["coverage"] == np.mean((low < 10 * y) & (10 * y < high))
    z = (10 * y - 5) / 20  # Gneiting and Raftery (2007), equation 21
    crps = 20 * (z * (2 * stats.norm.cdf(z) - 1) + 2 * stats.norm.pdf(z) - 1 / math.sqrt(math.pi))
    assert found["crps"] == pytest.approx(crps.mean(), rel=1e-5)


def test_density_of_a_mixture():
    found = uci_rivals.Mixture(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]])).log_density(np.array([1.0]))
    density = (stats.norm.pdf(1, 0, 1) + stats.norm.pdf(1, 3, 2)) / 2
    assert np.exp(found) == pytest.approx(density)
    rarely = uci_rivals.Mixture(np.array([[0.0], [3.0]]), np.array([[1.0], [2.0]]), rare=0.1)
    assert np.exp(rarely.log_density(np.array([1.0]))) == pytest.approx(0.9 * density + 0.1 * stats.norm.pdf(1))


@pytest.mark.parametrize("method", [method for method in uci.METHODS if method != OURS])
def test_every_rival_learns_a_line_and_its_noise(line, method, monkeypatch):
    monkeypatch.setattr(uci_rivals, "SHORTEST", 500)
    x, y, x_new, y_new = line
    found = uci.METHODS[method](x, y, x_new, 0)
    for mixture in found.values() if isinstance(found, dict) else [found]:
        reached = uci.scores(mixture, y_new, unit=1.0, rare=0.01)
        assert reached["rmse"] < 0.5 * y_new.std()  # 0.2 of 1 is noise; trees with 200 rows reach 0.25
        # 200 rows: a standard error of 0.021 at a coverage of 0.9, and trees and ensembles are not exact
        assert 0.75 < reached["coverage"] < 0.99


def test_the_estimator_is_scored_as_it_scores_itself(line):
    x, y, x_new, y_new = line
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    mixture = uci.sparse_bayes(x, y, x_new, 0, max_steps=100)
    model = uci.SparseBayesRegressor(random_state=0, max_steps=100).fit(x, y)
    assert mixture.log_density(y_new) == pytest.approx(model.predict_log_density(x_new, y_new))


def test_noise_that_varies_is_found():
    """Noise std 0.1 on one side and 1 on the other, 500 residuals each: stds with a standard error of 3 %."""
    rng = np.random.default_rng(0)
    x, x_new = rng.uniform(-1, 1, size=(1000, 2)), np.array([[-0.5, 0.0], [0.5, 0.0]])
    residuals = np.where(x[:, 0] < 0, 0.1, 1.0) * rng.normal(size=1000)
    constant, varying = uci_rivals.noise_stds(x, residuals, x_new, 0)
    assert constant == pytest.approx(math.sqrt(np.mean(residuals**2)))
    # a forest averages over at least 20 residuals: a standard error of 16 %, of which 3 are allowed
    assert varying == pytest.approx([0.1, 1.0], rel=0.5)


def test_a_run_goes_on_where_it_was(tmp_path):
    cells = uci.Cells(tmp_path / "uci.json")
    for split in range(2):
        cells.add([{"set": "yacht", "split": split, "method": "BayesianRidge", "nll": 1.0 + 2 * split}])
    again = uci.Cells(tmp_path / "uci.json")
    assert again.done == {("yacht", 0, "BayesianRidge"), ("yacht", 1, "BayesianRidge")}
    assert uci_tables.uci_tables({"cells": again.rows})["uci-nll"].rows[0][2] == "**2.00 ± 1.00**"
    again.add([{"set": "yacht", "split": 2, "method": "BayesianRidge", "nll": 2.0}])
    assert len(uci.Cells(tmp_path / "uci.json").rows) == 3


def measured(nll: dict[str, float], coverage: float = 0.9) -> list[dict]:
    """The same scores on all sets, relative to the published deep ensembles."""
    published = dict(zip(uci_tables.SETS, uci_tables.PUBLISHED[uci_tables.ENSEMBLES]["nll"], strict=True))
    return [
        {"set": name, "split": 0, "method": method, "nll": published[name] + more, "coverage": coverage}
        for name in uci_tables.SETS
        for method, more in nll.items()
    ]


def test_the_bars():
    assert [bar.met for bar in uci_tables.bars(measured({OURS: -0.2, BEFORE: -0.1, "forest": 0.1}))] == [True] * 4
    assert [bar.met for bar in uci_tables.bars(measured({OURS: 0.1, BEFORE: 0.0}, coverage=0.8))] == [False] * 4
    assert [bar.met for bar in uci_tables.bars(measured({OURS: -0.2, BEFORE: -0.1, "forest": -0.3}))][-1] is False


def test_a_method_that_did_not_run_everywhere_does_not_take_the_first_place():
    cells = measured({OURS: -0.2, BEFORE: -0.1, GP: -0.5})
    cells = [cell for cell in cells if cell["method"] != GP or cell["set"] == "yacht"]
    assert all(bar.met for bar in uci_tables.bars(cells))
    assert uci_tables.mean_ranks(uci_tables.scores(cells, "nll"))[GP] == 1


def test_methods_are_compared_on_the_splits_of_the_regressor():
    cells = measured({OURS: 0.0, "forest": 0.1})
    more = [cell | {"split": 1, "nll": 100.0} for cell in cells if cell["method"] == "forest"]
    assert uci_tables.comparable(cells + more) == cells
    assert uci_tables.comparable(more) == more  # nothing to compare with yet
