"""scikit-learn's own checks, all of them, on estimators with a short training."""

import os
import subprocess
import sys

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor

# Some 200 fits on tables of a few rows and columns, of which a tenth of the weights would be none.
SHORT = {"hidden": (16,), "density": 0.5, "lr": 0.1, "options": {"update_period": 10}, "max_steps": 30, "n_draws": 3}

DEFAULT = """
import warnings
from sklearn.utils.estimator_checks import check_estimator
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
warnings.simplefilter("ignore")
for kind in (SparseBayesClassifier, SparseBayesRegressor):
    check_estimator(kind())
    print("checked")
"""

ARRAY_API = f"""
from sklearn.utils.estimator_checks import estimator_checks_generator
from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
for kind in (SparseBayesClassifier, SparseBayesRegressor):
    for estimator, check in estimator_checks_generator(kind(**{SHORT})):
        if "array_api" in check.func.__name__:
            check(estimator)
            print("checked")
"""


@pytest.mark.filterwarnings("ignore:no column is selected:UserWarning")
@pytest.mark.filterwarnings("ignore:No features were selected:UserWarning")  # there are tables of pure noise among them
@parametrize_with_checks([SparseBayesClassifier(**SHORT), SparseBayesRegressor(**SHORT)])
def test_scikit_learn(estimator, check):
    check(estimator)


def test_the_check_that_scipy_must_be_told_of_before_it_is_imported():
    assert _run(ARRAY_API) == ["checked", "checked"]


@pytest.mark.slow
def test_default_arguments():
    assert _run(DEFAULT) == ["checked", "checked"]


def _run(script):
    environment = os.environ | {"SCIPY_ARRAY_API": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
