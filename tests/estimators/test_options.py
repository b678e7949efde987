"""Options of a method on a table: those given, then those chosen for tables."""

import pytest

from gossamer.estimators.plan import default_density, method_options


@pytest.mark.parametrize(
    ("method", "density", "options", "of_numbers", "expected"),
    [
        ("rigl", 0.5, {"lr": 0.01}, False, {"density": 0.5, "lr": 0.01}),
        ("ssvi", None, None, False, {"std": "gradient", "kl_weight": 1.0, "density": 0.1}),
        ("ssvi", None, {"std": "curvature"}, False, {"std": "curvature", "temperature": 1.0, "density": 0.1}),
        ("ssvi", None, {"optimizer": "adam"}, False, {"optimizer": "adam", "temperature": 1.0, "density": 0.1}),
        ("em_mcmc", None, {"feedback": True}, True, {"lr": 0.003, "temperature": 1.0, "cold": 0.0, "feedback": True}),
    ],
)
def test_options(method, density, options, of_numbers, expected):
    assert method_options(method, density, options, n_weights=1000, n_data=300, of_numbers=of_numbers) == expected


def test_the_density_is_a_tenth_or_a_quarter_as_many_weights_as_rows():
    assert default_density(5_000, n_data=300) == 0.1
    assert default_density(100_000, n_data=8_000) == 0.02
