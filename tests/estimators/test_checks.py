"""scikit-learn's own checks, all of them, on estimators with a short training."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor

SHORT = {"max_steps": 40, "hidden": (16,), "n_draws": 3, "options": {"lr": 0.05, "update_period": 10}}


@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")
@parametrize_with_checks([SparseBayesClassifier(**SHORT), SparseBayesRegressor(**SHORT)])
def test_scikit_learn(estimator, check):
    check(estimator)
