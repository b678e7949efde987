"""Numbers as people read them, where rounding meets a change of unit."""

import math

import pytest

from gossamer._text import formats
from gossamer._text.formats import column, count, duration, latency, number, percent, size


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


@pytest.mark.parametrize(
    ("form", "values", "expected"),
    [
        (formats.number, (0.21345, 12.0, 1234.5, -0.5, 0, 1.23e-5), "0.213 | 12 | 1,234 | -0.5 | 0 | 1.23e-5"),
        (formats.integer, (78125,), "78,125"),
        (formats.count, (7, 950, 12_345, 1_200_000, 5.554e8, 999_999), "7 | 950 | 12.3 k | 1.2 M | 555 M | 1 M"),
        (formats.size, (512, 34_500_000), "512 B | 34.5 MB"),
        (formats.macs, (5.554e8, 9.2e15), "555 MMAC | 9.2 PMAC"),
        (formats.times, (2.68,), "2.7×"),
        (formats.duration, (0.42, 45.2, 130, 4980, 100_000), "0.42 s | 45 s | 2 min 10 s | 1 h 23 min | 1 d 4 h"),
    ],
)
def test_numbers_with_their_units(form, values, expected):
    assert " | ".join(plain(form, *values)) == expected


def test_typographic_characters_are_made_plain():
    assert formats.number(-1.23e-5) == "−1.23\u202f×\u202f10⁻⁵"
    assert formats.plain(formats.number(-1.23e-5)) == "-1.23e-5"
    assert formats.with_error(0.21345, 0.0021, formats.number) == "0.213 ± 0.002"


def test_what_is_a_number():
    assert [formats.is_number(one) for one in (0.5, 3, math.nan, math.inf, None, True, "1")] == [True, True] + [
        False
    ] * 5


@pytest.mark.parametrize(
    ("means", "errors", "form", "expected"),
    [
        ([0.975, 0.5], [0.0, 0.0], percent, ("%", ["97.5±0.0", "50.0±0.0"])),
        ([0.975, None], [0.0003, None], percent, ("%", ["97.50±0.03", "-"])),
        ([0.0812, 1.25], [0.002, 0.03], number, ("", ["0.081±0.002", "1.250±0.030"])),
        ([-1.25, math.inf], [None, None], number, ("", ["-1.25", "inf"])),
        ([4224, 84_480], [None, None], count, ("k", ["4.2", "84.5"])),
        ([36e3, 12.2e6, 300e3], [None] * 3, size, ("kB", ["36", "12,200", "300"])),
        ([0.5, 42.0, 4000.0], [None] * 3, duration, ("s", ["0.50", "42.00", "4,000.00"])),
        ([0.0021, 0.4], [None, None], latency, ("ms", ["2.1", "400.0"])),
        ([0.0, 0.0], [None, None], size, ("B", ["0.0", "0.0"])),
        ([2.0], [0.5], lambda value: f"<{value:g}>", ("", ["<2> ± <0.5>"])),
    ],
)
def test_a_column_has_one_unit_and_as_many_decimals_in_every_cell(means, errors, form, expected):
    assert column(means, errors, form) == expected
