"""scikit-learn's own checks, all of them, on estimators with a short training."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor

SHORT = {"hidden": (16,), "density": 0.5, "options": {"lr": 0.1, "update_period": 10}, "max_steps": 30, "n_draws": 3}


@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")
@parametrize_with_checks([SparseBayesClassifier(**SHORT), SparseBayesRegressor(**SHORT)])
def test_scikit_learn(estimator, check):
    check(estimator)
