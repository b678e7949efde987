"""The selectors of the discovery study on a table that makes it easy for all of them."""

import numpy as np
import pytest

from benchmarks.discovery import SELECTORS, TABLES, SimulatedTable, measure, total_gain


@pytest.fixture(scope="module")
def easy():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 6))
    return SimulatedTable(x, 3 * x[:, 1] + 0.3 * rng.normal(size=400), (1,))


@pytest.mark.parametrize("name", SELECTORS)
@pytest.mark.parametrize("classes", [False, True], ids=["numbers", "classes"])
def test_a_selector_finds_the_column_that_decides(name, classes, easy):
    table = easy._replace(y=(easy.y > 0).astype(int), classes=True) if classes else easy
    assert 1 in SELECTORS[name](table, 0)


def test_gains_are_those_of_the_columns_that_are_split():
    class Tree:
        nodes = np.array(
            [(0, 2, 5.0), (0, 0, 1.0), (1, 0, -1.0), (0, 2, 0.5)],
            dtype=[("is_leaf", np.uint8), ("feature_idx", np.intp), ("gain", np.float64)],
        )

    class Model:
        _predictors = ((Tree,),)

    assert total_gain(Model, 4).tolist() == [1.0, 0.0, 5.5, 0.0]


def test_a_row_counts_true_and_false_columns(monkeypatch):
    monkeypatch.setitem(SELECTORS, "lasso", lambda table, seed: np.array([0, 1, 3]))
    row = measure("proxies", "lasso", 0)
    assert (row["relevant"], row["true"], row["false"], row["columns"]) == (2, 2, 1, 20)


def test_tables_are_what_the_page_says():
    proxies, chain = TABLES["proxies"](0), TABLES["autoregressive"](0)
    assert np.corrcoef(proxies.x.T)[0, 1] == pytest.approx(1 / np.sqrt(1.04), abs=0.01)
    assert np.corrcoef(chain.x.T)[4, 5] == pytest.approx(0.9, abs=4 * (1 - 0.81) / np.sqrt(500))
