"""Options of a method on a table: those given, then those chosen for tables."""

import pytest

from gossamer.estimators.plan import PREDICT_NUMBERS, SELECT, has_one_rate, method_options
from gossamer.likelihoods import Gaussian


@pytest.mark.parametrize(
    ("method", "density", "options", "expected"),
    [
        ("rigl", 0.5, {"lr": 0.01}, {"density": 0.5, "lr": 0.01}),
        ("ssvi", None, None, {"std": "gradient", "kl_weight": 1.0, "density": 0.1}),
        ("ssvi", None, {"std": "curvature"}, {"std": "curvature", "temperature": 1.0, "density": 0.1}),
        ("ssvi", None, {"optimizer": "adam"}, {"optimizer": "adam", "temperature": 1.0, "density": 0.1}),
        ("em_mcmc", None, {"cycles": 3}, {"density": 0.1, "cycles": 3}),
        ("em_mcmc", None, {"preset": "example1"}, {"preset": "example1"}),
    ],
)
def test_options(method, density, options, expected):
    given = {"density": density, "lr": None}
    assert method_options(method, given, options, SELECT, 1000, 300) == expected


def test_the_density_is_a_tenth_or_a_quarter_as_many_weights_as_rows():
    assert SELECT.density(5_000, n_data=300) == 0.1
    assert SELECT.density(100_000, n_data=8_000) == 0.02


def test_what_predicts_has_three_times_as_many_and_half_the_kl():
    for n_weights, n_data in ((5_000, 300), (100_000, 8_000)):
        assert PREDICT_NUMBERS.density(n_weights, n_data) == pytest.approx(3 * SELECT.density(n_weights, n_data))
    assert method_options("ssvi", {}, None, PREDICT_NUMBERS, 1000, 300)["kl_weight"] == 0.5


def test_arguments_are_options_of_methods_that_know_them():
    given = {"lr": 0.01, "kl_weight": 0.2, "density": None}
    options = method_options("ssvi", given, None, SELECT, 1000, 300)
    assert (options["lr"], options["kl_weight"]) == (0.01, 0.2)
    with pytest.raises(ValueError, match=r"method 'sgd' takes no kl_weight: leave kl_weight=None\. Its options: "):
        method_options("sgd", given, None, SELECT, 1000, 300)
    with pytest.raises(ValueError, match="lr is given twice, as a parameter and among the options"):
        method_options("ssvi", given, {"lr": 0.1}, SELECT, 1000, 300)


@pytest.mark.parametrize(
    ("method", "options", "expected"),
    [
        ("rigl", None, True),
        ("ssvi", None, False),
        ("ssvi", {"optimizer": "sgd"}, True),
        ("sgd", {"optimizer": "adam"}, False),
        ("ensemble", {"member": "vd"}, False),
    ],
)
def test_the_method_says_whether_it_has_one_rate(method, options, expected):
    assert has_one_rate(method, options, Gaussian()) == expected


def test_steps_grow_with_the_rows():
    assert PREDICT_NUMBERS.steps(500, 64) == 2000
    assert (PREDICT_NUMBERS.batch_size(500), PREDICT_NUMBERS.batch_size(45_000)) == (64, 256)
    assert PREDICT_NUMBERS.steps(9000, 256) == round(100 * 9000 / 256)
    assert PREDICT_NUMBERS.steps(45_000, 256) == 10_000
    assert PREDICT_NUMBERS.steps(1e6, 256) == 20 * 1e6 / 256
    assert SELECT.steps(45_000, 64) == 500
