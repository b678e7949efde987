"""Numbers as people read them, where rounding meets a change of unit."""

import math

import pytest

from gossamer import formats


def plain(form, *values):
    return [formats.plain(form(value)) for value in values]


def test_rounding_reaches_the_next_unit():
    assert plain(formats.count, 999, 999.4, 999.6, 999_499, 999_500) == ["999", "999", "1 k", "999 k", "1 M"]
    assert plain(formats.duration, 59.4, 59.9, 3599.6, 86_399.9) == ["59 s", "60 s", "1 h", "1 d"]


def test_small_shares_keep_digits():
    assert plain(formats.percent, 0.0, 0.5, 0.0004, 0.00004, -0.25) == [
        "0.0 %",
        "50.0 %",
        "0.04 %",
        "0.004 %",
        "-25.0 %",
    ]


@pytest.mark.parametrize(
    ("mean", "error", "expected"),
    [
        (0.9391, 0.0013, "93.91 ± 0.13 %"),
        (0.9391, 0.021, "94 ± 2 %"),
        (0.9391, 0.0, "93.9 %"),
        (0.9391, None, "93.9 %"),
    ],
)
def test_an_error_decides_the_digits(mean, error, expected):
    assert formats.plain(formats.with_error(mean, error, formats.percent)) == expected


@pytest.mark.parametrize("form", [formats.number, formats.percent, formats.count, formats.size, formats.duration])
def test_what_is_not_finite_is_written(form):
    assert "nan" in form(math.nan)
    assert "inf" in form(math.inf)
