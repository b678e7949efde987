from xml.etree import ElementTree

import pytest

from gossamer.lab.report.parallel import BOTTOM, TOP, Row, Upright, parallel


def drawn(axes, rows):
    chart = parallel(axes, rows)
    return ElementTree.fromstring(f'<svg style="{chart.style}">{chart.drawing}</svg>')


def test_lines_go_through_the_values():
    axes = [
        Upright("rate", lambda value: value, [(0.0, "none"), (1.0, "all")]),
        Upright("kind", {"a": 0.0, "b": 1.0}.get, [(0.0, "a"), (1.0, "b")], are_words=True),
        Upright("loss", lambda value: value / 2, [(0.5, "1")]),
    ]
    rows = [Row((0.25, "b", 0), "first", 0), Row((1.0, "a", 2), "second", 2, is_chosen=True)]
    groups = list(drawn(axes, rows).iter("g"))
    told = [(one.get("class"), one.findtext("title")) for one in groups]
    assert told == [("row c1", "first"), ("row chosen c3", "second")]
    for one, shares in zip(groups, ([0.25, 1, 1, 0], [1, 0, 0, 1]), strict=True):
        lines = list(one.iter("line"))
        assert [(line.get("x1"), line.get("x2")) for line in lines] == [("0%", "50%"), ("50%", "100%")]
        heights = [float(line.get(end)) for line in lines for end in ("y1", "y2")]
        assert [(BOTTOM - height) / (BOTTOM - TOP) for height in heights] == shares


def test_words_stand_on_the_lines_of_an_inner_axis_and_beside_an_outer_one():
    axes = [Upright(name, lambda value: 0.0, [(0.0, name)], are_words=True) for name in ("first", "inner", "last")]
    places = {one.text: one for one in drawn(axes, []).iter("text") if "tick" in one.get("class")}
    assert [float(places[name].get("y")) - BOTTOM for name in ("first", "inner", "last")] == [4, -6, 4]
    assert [float(places[name].get("dx")) for name in ("first", "inner", "last")] == [-8, -8, 8]  # no line runs there


def test_between_near_axes_words_are_shortened_and_numbers_are_not():
    names = ["a", "uncertainty_threshold", "c", "d", "e", "f", "g"]
    ticks = {"c": [(0.0, "magnitude")]}
    axes = [Upright(name, lambda value: 0.0, ticks.get(name, [(0.0, "0.00001")]), name == "c") for name in names]
    texts = list(drawn(axes, []).iter("text"))
    found = {kind: [one.text for one in texts if kind in one.get("class").split()] for kind in ("long", "short")}
    # Of 900 and 240 pixels a step is 150 and, at least, 48; names have two of the latter. A letter takes 7.
    assert found == {"long": ["magnitude", "uncertain…threshold"], "short": ["ma…e", "uncer…shold"]}
    assert [one.text for one in texts].count("0.00001") == 6


@pytest.mark.parametrize(("n_axes", "least"), [(5, 234), (9, 426)])
def test_axes_are_never_nearer_than_48_pixels(n_axes, least):
    axes = [Upright(str(k), lambda value: 0.0, [(0.0, "0")]) for k in range(n_axes)]
    assert f"min-width:{least}px;padding:0 21px 0 21px" in drawn(axes, []).get("style")


@pytest.mark.parametrize(("place", "sign"), [(0, 1), (2, -1)])
def test_a_long_name_at_an_end_moves_inwards(place, sign):
    names = ["a", "b", "c"]
    names[place] = "a_very_long_name"
    axes = [Upright(name, lambda value: 0.0, [(0.0, "0")]) for name in names]
    shifts = {one.text: float(one.get("dx")) for one in drawn(axes, []).iter("text") if "tick" not in one.get("class")}
    assert sign * shifts.pop("a_very_long_name") > 20
    assert set(shifts.values()) == {0}
