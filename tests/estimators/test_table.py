"""Rows are merged by content, held out by target, and standardised; weights are counts."""

import numpy as np
import pytest
import torch
from scipy import sparse

from gossamer.estimators.table import Rows, Scaling, merged, task_of
from gossamer.likelihoods import Categorical, Gaussian, Weighted


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    x = rng.integers(0, 3, size=(40, 4)).astype(float) * (rng.random((40, 4)) < 0.5)
    return Rows(x, rng.integers(0, 2, size=(40, 1)).astype(float), rng.integers(0, 4, size=40).astype(float))


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix, sparse.csr_array])
def test_weights_are_counts(rows, make):
    repeats = rows.weight.astype(int)
    copies = Rows(make(rows.x.repeat(repeats, axis=0)), rows.y.repeat(repeats, axis=0), np.ones(repeats.sum()))
    first, second = merged(rows._replace(x=make(rows.x))), merged(copies)
    for one, other in zip(first, second, strict=True):
        one, other = (part.toarray() if sparse.issparse(part) else part for part in (one, other))
        np.testing.assert_array_equal(one, other)
    assert first.weight.sum() == rows.weight.sum()


def test_the_order_of_rows_and_their_storage_do_not_matter(rows):
    order = np.random.default_rng(1).permutation(40)
    expected, shuffled = merged(rows), merged(rows.take(order))
    np.testing.assert_array_equal(shuffled.x, expected.x)
    np.testing.assert_array_equal(merged(rows._replace(x=sparse.csr_matrix(rows.x))).x.toarray(), expected.x)
    np.testing.assert_array_equal(merged(rows._replace(x=rows.x.astype(np.float32))).x, expected.x)
    negative_zero = rows._replace(x=np.where(rows.x == 0, -0.0, rows.x), y=np.where(rows.y == 0, -0.0, rows.y))
    np.testing.assert_array_equal(merged(negative_zero).weight, expected.weight)


def test_the_matrix_of_the_user_is_not_touched():
    x = sparse.csr_matrix((np.array([1.0, 2.0, 0.0]), np.array([1, 1, 0]), np.array([0, 2, 3])), shape=(2, 3))
    before = x.data.copy()
    assert merged(Rows(x, np.zeros((2, 1)), np.ones(2))).x.toarray().max() == 3  # entries given twice add up
    np.testing.assert_array_equal(x.data, before)


@pytest.mark.parametrize("make", [np.asarray, sparse.csr_matrix])
def test_scaling_is_that_of_repeated_rows(rows, make):
    repeats = rows.weight.astype(int)
    x = np.column_stack([rows.x * 3 + 1e6 * (rows.x != 0), np.full(40, 7.0), np.zeros(40)])
    repeated = x.repeat(repeats, axis=0)
    keep = repeats > 0
    scaling = Scaling.of(make(x[keep]), rows.weight[keep])
    assert scaling.columns.tolist() == [0, 1, 2, 3]  # two are constant
    np.testing.assert_allclose(scaling.mean, repeated.mean(0)[:4], rtol=1e-12)
    np.testing.assert_allclose(scaling.std, repeated.std(0)[:4], rtol=1e-9)
    np.testing.assert_allclose(scaling.undo(scaling.apply(make(x))), x[:, :4], rtol=1e-9, atol=1e-9)


def test_constant_columns():
    x = np.array([[1.0, 5.0], [3.0, 5.0]])
    np.testing.assert_array_equal(Scaling.of(x, np.ones(2), drops_constant=False).apply(x + 1)[:, 1], [0, 0])
    nothing_varies = Scaling.of(x[:1], np.ones(1))
    np.testing.assert_array_equal(nothing_varies.apply(x), [[0], [0]])


def test_a_task_has_the_weighted_objective():
    rng = np.random.default_rng(0)
    x, y, weight = rng.normal(size=(20, 3)), rng.normal(size=(20, 1)), rng.integers(1, 5, 20).astype(float)
    task = task_of(Rows(x, y, weight), Scaling.of(x, weight), Gaussian(0.7), 1)
    assert isinstance(task.likelihood, Weighted)
    assert task.n_data == weight.sum()
    output = torch.randn(20, 1, generator=torch.Generator().manual_seed(0))
    repeats = weight.astype(int)
    of_copies = Gaussian(0.7).loss(
        output.repeat_interleave(torch.tensor(repeats), 0), torch.tensor(y.repeat(repeats, 0))
    )
    assert float(task.likelihood.loss(output, task.train[1])) == pytest.approx(float(of_copies), rel=1e-6)


def test_equal_weights_need_no_weighted_likelihood():
    rows = Rows(np.arange(6.0)[:, None], np.array([[0.0], [1.0]] * 3), np.full(6, 2.0))
    task = task_of(rows, Scaling.of(rows.x, rows.weight), Categorical(), 2)
    assert isinstance(task.likelihood, Categorical)
    assert task.train[1].tolist() == [0, 1] * 3
    assert task.n_data == 12


def test_a_sparse_task_reads_what_a_dense_one_does(rows):
    dense = task_of(rows, Scaling.of(rows.x, rows.weight + 1), Categorical(), 2)
    x = sparse.csr_matrix(rows.x)
    thin = task_of(rows._replace(x=x), Scaling.of(x, rows.weight + 1), Categorical(), 2)
    assert thin.input_shape == dense.input_shape
    torch.testing.assert_close(thin.transform(thin.train[0]), dense.transform(dense.train[0]))
