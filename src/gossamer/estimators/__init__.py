"""scikit-learn estimators."""

from gossamer.estimators.classifier import SparseBayesClassifier
from gossamer.estimators.regressor import SparseBayesRegressor

__all__ = ["SparseBayesClassifier", "SparseBayesRegressor"]
