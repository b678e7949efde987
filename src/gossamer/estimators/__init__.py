"""Sparse Bayesian networks for tables, behind scikit-learn's interface.

A table becomes a :class:`gossamer.types.Task`, on which any method of :mod:`gossamer.methods` trains. Draws from the
posterior are kept: they predict, they tell which inputs matter, and they are all that a saved file holds. The guide is
``docs/guides/tables.md``.
"""

from gossamer._text.names import needs

needs("sklearn", "scipy", extra="sklearn")

from gossamer.estimators.classifier import SparseBayesClassifier  # noqa: E402
from gossamer.estimators.displays import ImportanceDisplay, IntervalDisplay  # noqa: E402
from gossamer.estimators.regressor import SparseBayesRegressor  # noqa: E402

__all__ = ["ImportanceDisplay", "IntervalDisplay", "SparseBayesClassifier", "SparseBayesRegressor"]
