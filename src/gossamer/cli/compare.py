"""``gossamer compare`` and ``gossamer reproduce``."""

from __future__ import annotations

import re
import sys
from argparse import Namespace
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gossamer.cli import UsageError
from gossamer.cli.parser import Parser, folder
from gossamer.names import file_name
from gossamer.runs.comparison import SEEDS, read_recipe
from gossamer.runs.comparison import compare as compare_runs
from gossamer.runs.published import PublishedFigures, beside_published, read_published
from gossamer.runs.settings import Settings, options_of
from gossamer.runs.trials import Trials

DATA = "digits"
NOT_SETTINGS = {"what", "density", "seeds", "out", "json", "time_steps", "trust", "quiet"}


def compare(given: list[str]) -> int:
    """Train several methods with several seeds; print one table, write it and a report."""
    parser = Parser("gossamer compare", "Several methods, several seeds, one table and one report.")
    try:
        options = add_compare_flags(parser).parse(given)
    except UsageError as error:
        extra = re.match(r"unrecognized arguments: (\w[\w:]*)", str(error))
        raise UsageError(f"{extra[1]}: put commas between methods, as in sgd,{extra[1]}") if extra else error from None
    return _compare(options, {})


def reproduce(given: list[str]) -> int:
    """Train what a recipe says, as ``compare`` does, and print the published figures beside the measured ones."""
    title = "Train what a recipe says; measured figures beside the published ones."
    options = add_compare_flags(Parser("gossamer reproduce", title)).parse(given)
    recipe = folder(options.what)
    if recipe.suffix != ".toml":
        raise UsageError(
            f"reproduce takes a recipe, a TOML file, not {recipe.name!r}; for the named tables and figures run "
            f"python -m reproductions {recipe.name} in a checkout of the repository"
        )
    published = read_published(recipe)
    if not published:
        raise UsageError(f"{recipe} quotes no published figures: give it a table [published.NAME], or use compare")
    return _compare(options, published)


def _compare(options: Namespace, published: Mapping[str, PublishedFigures]) -> int:
    try:
        entries, seeds, name = _plan(options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    out = folder(options.out or f"runs/{file_name(name)}")
    kept = _checked(options.json)  # now, not after an hour of training
    say = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    comparison = compare_runs(entries, seeds, out, quiet=options.quiet, say=say)
    print(comparison.to_text())
    if published:
        print(f"\n{beside_published(comparison, published).to_text()}")
    if options.time_steps:
        from gossamer.runs.step_times import report_steps

        print()
        report_steps(comparison.folders, print)
    if comparison.folders:
        from gossamer.report import write_comparison

        print(f"\nreport: {write_comparison(comparison.folders, out / 'report.html')}")
    print(f"tables: {out / 'comparison'}.md, .csv, .json")
    if kept is not None:
        Trials.of(comparison).write(kept)
        print(f"kept: {kept}")
    return 1 if comparison.has_failures else 0


def add_compare_flags(flags: Parser) -> Parser:
    """Flags of ``compare`` and ``reproduce``."""
    flags.add_argument("what", help="Methods with commas between them, or a recipe (a TOML file).")
    flags.add_flag("data", str | None, f"Name of the data set; {DATA} if not given.")
    flags.add_flag("density", float | None, "Share of active weights, for the methods that have one.")
    flags.add_flag("seeds", int | None, f"Runs of each method; {SEEDS}, or as the recipe says, if not given.")
    flags.add_flag("out", str | None, "Folder of the comparison; runs/compare-<data> or runs/<recipe> if not given.")
    flags.add_flag("json", str | None, "Write metrics and cost of every run to this file, too: small enough to keep.")
    flags.add_flag("time_steps", None, "Time training steps with native kernels and with dense products.")
    flags.add_flag("trust", str | None, "Code of yours, module:function with commas, that a recipe may name.")
    flags.add_flag("quiet", None, "Show no progress.")
    skip = {"method", "data", "seed", "ranks", "options"}
    flags.add_signature(Settings, "settings of every run; they win over those of a recipe", skip, optional=True)
    return flags


def _plan(options: Namespace) -> tuple[dict[str, Settings], int, str]:
    """Settings by label, the number of seeds and the name of the comparison."""
    given = {key: value for key, value in vars(options).items() if key not in NOT_SETTINGS and value is not None}
    recipe = folder(options.what)
    if recipe.suffix == ".toml":
        entries, seeds = read_recipe(recipe)
        entries = {label: replace(settings, **given) for label, settings in entries.items()}
        name = recipe.stem
    else:
        names = [method.strip() for method in options.what.split(",") if method.strip()]
        if not names:
            raise ValueError("compare needs a method: gossamer compare METHOD,METHOD…")
        given = {"data": DATA, **given}
        twice = sorted({method for method in names if names.count(method) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice: a recipe (a TOML file) can train it with two settings")
        entries, seeds = {method: Settings(method, **given) for method in names}, SEEDS
        name = f"compare-{entries[names[0]].data_name}"
    if options.density is not None:
        entries = {label: _with_density(settings, options.density) for label, settings in entries.items()}
    return entries, seeds if options.seeds is None else options.seeds, name


def _checked(path: str | None) -> Path | None:
    """A file that can be written, where one is asked for."""
    if path is None:
        return None
    kept = folder(path)
    if not kept.parent.is_dir():
        raise UsageError(f"--json {kept}: the folder {kept.parent} does not exist")
    if kept.is_dir():
        raise UsageError(f"--json {kept} is a folder, give a file in it")
    return kept


def _with_density(settings: Settings, density: float) -> Settings:
    has_one = "density" in options_of(settings.method)
    return replace(settings, options=settings.options | {"density": density}) if has_one else settings
