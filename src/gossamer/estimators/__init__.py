"""Sparse Bayesian networks for tables, behind scikit-learn's interface.

A table becomes a :class:`gossamer.types.Task`, any method of :mod:`gossamer.methods` trains on it by the library's own
loop, and draws from its posterior are kept: they predict, they say which inputs matter, and they are all that a file
holds. The guide is ``docs/guides/tables.md``.
"""

from gossamer.estimators.classifier import SparseBayesClassifier
from gossamer.estimators.regressor import SparseBayesRegressor

__all__ = ["SparseBayesClassifier", "SparseBayesRegressor"]
