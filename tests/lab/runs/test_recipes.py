"""The recipes of the repository can be read, and those over every method have every method."""

from pathlib import Path

import pytest

from gossamer import methods
from gossamer.lab import read_recipe

RECIPES = sorted((Path(__file__).parents[3] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_a_recipe_can_be_read(path):
    entries, seeds = read_recipe(path)
    assert entries
    assert seeds >= 1
    if path.stem.startswith("all-methods"):
        assert {settings.method for settings in entries.values()} == set(methods.names())
