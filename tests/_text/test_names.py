"""One lookup of names, with the nearest known one in its errors."""

import math

import pytest

from gossamer._text.names import lookup, refuse_foreign_code, suggestion, trusting


def test_lookup_names_what_is_known() -> None:
    known = {"sine": math.sin, "cosine": math.cos}
    assert lookup("function", "sine", known) is math.sin
    assert lookup("function", math.tan, known) is math.tan
    with pytest.raises(ValueError, match=r"unknown function 'cosin'; did you mean 'cosine'\? Known: sine, cosine"):
        lookup("function", "cosin", known)
    with pytest.raises(ValueError, match=r"unknown function None\. Known: sine, cosine"):
        lookup("function", None, known)  # type: ignore[arg-type]


@pytest.mark.parametrize(("word", "near"), [("SSVI", "ssvi"), ("Heda", "head"), ("layer.hed", "Layer.head")])
def test_case_does_not_matter(word: str, near: str) -> None:
    assert suggestion(word, ["ssvi", "head", "Layer.head"]) == f"; did you mean {near!r}?"


def test_names_of_code_are_found_anywhere_in_a_file() -> None:
    content = {"data": "digits", "options": {"member_options": {"removal": "mine:score"}, "many": ["os:system"]}}
    with pytest.raises(ValueError, match=r"it names code that is not part of Gossamer: mine:score, os:system\."):
        refuse_foreign_code("it", content)
    with trusting("mine:score"), pytest.raises(ValueError, match=r"Gossamer: os:system\."):
        refuse_foreign_code("it", content)
    with trusting("mine:score"), trusting("os:system"):
        refuse_foreign_code("it", content)
    refuse_foreign_code("it", {"data_dir": "a:b", "target": "x:y", "drop": "p:q", "data": "/a/b:c.csv"})
