"""``gossamer reproduce``."""

from __future__ import annotations

from pathlib import Path

from gossamer.cli import compare
from gossamer.cli.errors import UsageError
from gossamer.cli.parser import Parser
from gossamer.runs.published import read_published

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Train what a recipe says, as ``compare`` does, and print the published figures beside the measured ones."""
    recipe = Path(parser().parse(given).what)
    if recipe.suffix != ".toml":
        raise UsageError(
            f"reproduce takes a recipe, a TOML file, not {recipe.name!r}; tables and figures that it knew by name are "
            f"measured in a checkout of the repository by python -m reproductions {recipe.name}"
        )
    published = read_published(recipe)
    if not published:
        raise UsageError(f"{recipe} quotes no published figures: give it a table [published.NAME], or use compare")
    return compare.run(given, published)


def parser() -> Parser:
    """Its flags: those of ``compare``."""
    return compare.parser("gossamer reproduce", "Train what a recipe says; measured figures beside the published ones.")
