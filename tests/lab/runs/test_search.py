"""What a sweep may search, and what it says of what it may not."""

import re

import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from gossamer.lab import Settings
from gossamer_sweep.space import read_space, with_values


def test_types_come_from_the_options():
    space = read_space(
        "ssvi",
        ["lr=log:1e-4..1e-1", "density=0.01..0.1", "members=1..5", "batch-size=log:16..256", "removal=snr,magnitude"],
    )
    assert list(space) == ["lr", "density", "members", "batch_size", "removal"]
    assert space["lr"].distribution == FloatDistribution(1e-4, 0.1, log=True)
    assert space["density"].distribution == FloatDistribution(0.01, 0.1)
    assert space["members"].distribution == IntDistribution(1, 5)
    assert space["batch_size"].distribution == IntDistribution(16, 256, log=True)
    assert space["removal"].values == {"snr": "snr", "magnitude": "magnitude"}
    assert space["removal"].distribution == CategoricalDistribution(["snr", "magnitude"])


def test_values_of_a_file_and_of_the_command_line_are_the_same():
    texts = ["density=0.01,0.1", "lr=none,0.1", "refresh_batchnorm=true,false", "epochs=3,5", "seed=0..9"]
    table = {"density": [0.01, 0.1], "refresh_batchnorm": [True, False], "epochs": [3, 5], "seed": "0..9"}
    space = read_space("ssvi", texts)
    assert {name: space[name] for name in table} == read_space("ssvi", table)
    assert space["lr"].values == {"null": None, "0.1": 0.1}
    assert space["lr"].value("null") is None
    assert str(space["seed"]) == "0..9"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr", "--search lr: write NAME=VALUES, as in lr=log:1e-4"),
        ("densty=0.1,0.2", "--search: unknown option of ssvi or setting 'densty'; did you mean 'density'?"),
        ("data=digits,two_moons", "--search data: this cannot be searched, all trials have the same data"),
        ("lr=log:0..1", "--search lr=log:0..1: a range of logarithms begins above 0"),
        ("lr=1..0.1", "--search lr=1..0.1: the first number must be below the second"),
        ("lr=log:small..1", "--search lr=log:small..1: a range is LOW..HIGH or log:LOW..HIGH, as in"),
        ("members=0.5..2", "--search members=0.5..2: members is a whole number, and so are the ends of its range"),
        ("removal=0..1", "--search removal=0..1: removal is no number, give its values with commas"),
        ("density=0.1", "--search density=0.1: one value leaves no choice, give it as --density"),
        ("density=0.1,0.1", "--search density=0.1,0.1: a value stands there twice"),
        ("members=1,x", "--search members must be a whole number; got 'x'"),
    ],
)
def test_an_error_names_the_fix(text, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        read_space("ssvi", [text])


def test_nothing_and_the_same_twice():
    with pytest.raises(ValueError, match="a sweep needs something to search: --search lr="):
        read_space("ssvi", [])
    with pytest.raises(ValueError, match="--search batch_size is given twice"):
        read_space("ssvi", ["batch-size=8,16", "batch_size=8..16"])


def test_settings_of_a_trial():
    settings = with_values(Settings("ssvi", "digits", options={"lr": 0.1}), {"epochs": 3, "density": 0.2})
    assert (settings.epochs, settings.options["density"], settings.options["lr"]) == (3, 0.2, 0.1)
