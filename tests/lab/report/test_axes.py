"""Ticks, labels and markup with known values."""

import re

import pytest

from gossamer._text.formats import number
from gossamer.lab.report.charts import Mark, scatter, thin
from gossamer.lab.report.parts import LETTER, Axis, Scale, element, join, log_ticks, nice_ticks, shorten, tick_labels


def test_a_scale_maps_its_ends_and_what_is_between():
    assert Scale(0, 10, 100, 200)(2.5) == 125
    assert Scale(1, 100, 0, 50, log=True)(10) == 25


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (nice_ticks(0.3, 9.1), [0, 2, 4, 6, 8, 10]),
        (nice_ticks(0, 0.05), [0, 0.01, 0.02, 0.03, 0.04, 0.05]),
        (log_ticks(0.5, 30), [0.5, 1, 2, 5, 10, 20]),
        (log_ticks(1, 1e4), [1, 10, 100, 1000, 10000]),
        (log_ticks(400, 600), [400, 450, 500, 550, 600]),
    ],
)
def test_ticks_are_round_numbers(found, expected):
    assert found == expected


def test_a_span_too_small_for_a_step_is_a_single_value():
    assert nice_ticks(0.0, 5e-324)[0] <= 0.0


def test_labels_have_the_digits_that_distinguish_them():
    assert tick_labels([0.998, 0.9985, 0.999], number) == ["0.998", "0.9985", "0.999"]


def test_a_long_name_loses_its_middle():
    assert shorten("encoder.layers.11.attention", 20) == "encoder.la…attention"


def test_names_of_points_meet_neither_each_other_nor_points_nor_the_stair():
    at = [(0.6, 0.132), (0.96, 0.0691), (4.8, 0.0692), (7.6, 0.0769), (38.0, 0.0738)]
    marks = [
        Mark(x, y, name, "") for (x, y), name in zip(at, ("rigl", "ssvi", "five ssvi", "sgd", "ensemble"), strict=True)
    ]
    drawing = str(scatter(marks, Axis("cost", number, log=True), Axis("NLL", number), steps=at[:2]).drawing)
    names = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="label">([^<]+)</text>', drawing)
    boxes = [(float(x), float(y) - 11, float(x) + LETTER * len(name), float(y) + 2) for x, y, name in names]
    points = [
        (float(x) - 5, float(y) - 5, float(x) + 5, float(y) + 5)
        for x, y in re.findall(r'<circle cx="([\d.]+)" cy="([\d.]+)"', drawing)
    ]
    stair = re.search(r'd="M([\d.]+) ([\d.]+)H([\d.]+)V([\d.]+)H', drawing)
    left, high, right, low = map(float, stair.groups())
    things = [*boxes, *points, (left, high, right, high), (right, high, right, low)]
    assert (len(boxes), len(points)) == (5, 5)
    for place, one in enumerate(boxes):
        for other in (*things[:place], *things[place + 1 :]):
            assert one[2] < other[0] or other[2] < one[0] or one[3] < other[1] or other[3] < one[1]


def test_thinned_points_are_means_of_neighbours():
    assert thin([(0, 0.0), (1, 2.0), (2, 4.0), (3, 9.0)], most=3) == [(0, 0.0), (1.5, 3.0), (3, 9.0)]


def test_text_is_escaped_and_markup_is_not():
    assert join([element("b", "R&D"), " < ", None, "x"]) == "<b>R&amp;D</b> &lt; x"
    link = element("a", "more", href="?a&b", class_="x", data_n=2.50, hidden=False)
    assert link == '<a href="?a&amp;b" class="x" data-n="2.5">more</a>'
