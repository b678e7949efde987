"""``gossamer compare``."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from gossamer.cli.config import known_method
from gossamer.cli.errors import UsageError
from gossamer.cli.parser import Parser
from gossamer.experiments.comparing import SEEDS, compare, read_recipe
from gossamer.experiments.settings import Settings, options_of

__all__ = ["parser", "run"]


def run(given: list[str]) -> int:
    """Train several methods with several seeds; print one table, write it and a report."""
    options = parser().parse(given)
    recipe = Path(options.what)
    is_recipe = recipe.suffix == ".toml"
    entries, seeds = _changed(*read_recipe(recipe), options) if is_recipe else (_entries(options), SEEDS)
    out = Path(options.out or Path("runs") / (recipe.stem if is_recipe else f"compare-{options.data or DATA}")
               .replace("/", "-"))
    say = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    comparison = compare(entries, seeds if options.seeds is None else options.seeds, out, quiet=options.quiet, say=say)
    print(comparison.to_text())
    if comparison.folders:
        from gossamer.report import write_report

        print(f"\nreport: {write_report(comparison.folders, out / 'report.html')}")
    print(f"tables: {out / 'comparison'}.md, .csv, .json")
    return 1 if comparison.has_failures else 0
