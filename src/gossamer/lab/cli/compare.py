"""``gossamer compare``."""

from __future__ import annotations

import re
import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from gossamer import methods
from gossamer._text.names import file_name, unknown
from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, folder, names_of, with_underscores
from gossamer.lab.record import write_atomically
from gossamer.lab.runs.comparison import SEEDS, Comparison, csv_of, read_recipe, runs_of, train_run
from gossamer.lab.runs.comparison import compare as compare_runs
from gossamer.lab.runs.settings import Settings

DATA = "digits"
NOT_SETTINGS = {"methods", "data", "density", "seeds", "out"}
NOT_SETTINGS |= {"ood", "ood_score", "latex", "print_jobs", "only", "trust", "quiet"}


def compare(given: list[str]) -> int:
    """Train several methods with several seeds; print one table, write it and a report."""
    parser = Parser("gossamer compare", "Several methods, several seeds, one table and one report.")
    try:
        options = add_compare_flags(parser).parse(given)
    except UsageError as error:
        extra = re.match(r"unrecognized arguments: (\w[\w:]*)", str(error))
        raise UsageError(f"{extra[1]}: put commas between methods, as in sgd,{extra[1]}") if extra else error from None
    try:
        plans = _plans(options)
    except ValueError as error:
        raise UsageError(str(error)) from error
    ood = names_of(options.ood)
    for plan in plans:
        _refuse_unknown(plan, ood)
    if options.print_jobs:
        return _print_jobs(plans, given)
    if options.only is not None:
        return _train_only(plans, options.only, options.quiet)
    # A LaTeX table can be redirected into a file, so standard output has nothing else.
    tell = (lambda text="": print(text, file=sys.stderr, flush=True)) if options.latex else print
    say = (lambda text: None) if options.quiet else (lambda text: print(text, file=sys.stderr, flush=True))
    found = dict[str, Comparison]()
    for plan in plans:
        if found:
            tell("\n")
        if len(plans) > 1:
            tell(f"{plan.data}\n")
        way = {"ood": ood, "ood_score": options.ood_score, "quiet": options.quiet, "say": say}
        comparison = compare_runs(plan.entries, plan.seeds, plan.out, **way)
        found[plan.data] = comparison
        print(comparison.to_latex(plan.data) if options.latex else comparison.to_text())
        _finish(plan, comparison, tell)
    if len(plans) > 1:
        out = _base(plans)
        write_atomically(out / "comparison.csv", csv_of(found))
        write_atomically(out / "comparison.tex", "\n".join(one.to_latex(data) for data, one in found.items()))
        tell(f"\nall data sets: {out / 'comparison'}.csv, .tex")
    return 1 if any(comparison.has_failures for comparison in found.values()) else 0


def _print_jobs(plans: Sequence[DataPlan], given: Sequence[str]) -> int:
    """Print a command for each run that is not finished: jobs that can run anywhere."""
    command = ["gossamer", "compare", *(word for word in with_underscores(given) if word != "--print_jobs")]
    names = [name for name, (folder, _) in _runs(plans).items() if not (folder / "result.json").exists()]
    for name in names:
        print(shlex.join([*command, "--only", name]))
    if not names:
        print("all runs are finished: the same command without --print_jobs collects them", file=sys.stderr)
    return 0


def _train_only(plans: Sequence[DataPlan], name: str, quiet: bool) -> int:
    runs = _runs(plans)
    if name not in runs:
        raise UsageError(unknown("run of this comparison", name, runs))
    folder, settings = runs[name]
    train_run(settings, folder, quiet=quiet)
    print(f"run: {folder}")
    return 0


def _runs(plans: Sequence[DataPlan]) -> dict[str, tuple[Path, Settings]]:
    """All runs by name: their folders as seen from that of the comparison."""
    found = [one for plan in plans for one in runs_of(plan.entries, plan.seeds, plan.out).values()]
    return {
        folder.relative_to(_base(plans)).as_posix(): (folder, one) for some in found for folder, one in some.items()
    }


def _base(plans: Sequence[DataPlan]) -> Path:
    """The folder of the comparison, in which each of several data sets has one."""
    return plans[0].out if len(plans) == 1 else plans[0].out.parent


def _finish(plan: DataPlan, comparison: Comparison, tell: Callable[..., None]) -> None:
    if comparison.folders:
        from gossamer.lab.report import write_comparison

        tell(f"\nreport: {write_comparison(comparison.folders, plan.out / 'report.html')}")
    tell(f"tables: {plan.out / 'comparison'}.md, .tex, .csv, .json")


def add_compare_flags(flags: Parser) -> Parser:
    """Flags of ``compare``."""
    flags.add_argument("methods", help="Methods with commas between them, or a recipe (a TOML file).")
    flags.add_flag("data", str | None, f"Data set, or several with commas: a table for each; {DATA} if not given.")
    flags.add_flag("density", float | None, "Share of active weights, for the methods that have one.")
    flags.add_flag("seeds", int | None, f"Runs of each method; {SEEDS}, or as the recipe says, if not given.")
    flags.add_flag("out", str | None, "Folder of the comparison; runs/compare-<data> or runs/<recipe> if not given.")
    flags.add_flag("ood", str | None, "Sets from outside, with commas, as for evaluate: a column of AUROC for each.")
    flags.add_flag("ood_score", str | None, "Score of that column; entropy, or std of numbers, if not given.")
    flags.add_flag("latex", None, "Print the table as LaTeX (booktabs) and nothing else on standard output.")
    flags.add_flag("print_jobs", None, "Train nothing; print a shell line per run, after which compare collects.")
    flags.add_flag("only", str | None, "Train this run alone, <label>-<seed>, and write no table.")
    flags.add_flag("trust", str | None, "Code of yours, module:function with commas, that a recipe may name.")
    flags.add_flag("quiet", None, "Show no progress.")
    skip = {"method", "data", "seed", "ranks", "options"}
    flags.add_signature(Settings, "settings of every run; they win over those of a recipe", skip, optional=True)
    return flags


class DataPlan(NamedTuple):
    """The comparison on one data set, and its folder."""

    data: str
    entries: dict[str, Settings]
    seeds: int
    out: Path


def _plans(options: Namespace) -> list[DataPlan]:
    recipe = folder(options.methods)
    found = [_entries(options, data) for data in names_of(options.data) or [""]]
    names = [next(iter(entries.values())).data_name for entries, _ in found]
    title = recipe.stem if recipe.suffix == ".toml" else f"compare-{'-'.join(names)}"
    base, plans = folder(options.out or f"runs/{file_name(title)}"), list[DataPlan]()
    for name, (entries, seeds) in zip(names, found, strict=True):
        own = file_name(name) if len(names) > 1 else ""
        plans.append(DataPlan(name, entries, seeds, base / own))
    return plans


def _entries(options: Namespace, data: str) -> tuple[dict[str, Settings], int]:
    """Settings by label, and the number of seeds, on one data set; an empty name leaves it to the recipe."""
    given = {key: value for key, value in vars(options).items() if key not in NOT_SETTINGS and value is not None}
    given |= {"data": data} if data else {}
    recipe = folder(options.methods)
    if recipe.suffix == ".toml":
        entries, seeds = read_recipe(recipe)
        entries = {label: replace(settings, **given) for label, settings in entries.items()}
    else:
        names = names_of(options.methods)
        if not names:
            raise ValueError("compare needs a method: gossamer compare METHOD,METHOD…")
        given = {"data": DATA, **given}
        twice = sorted({method for method in names if names.count(method) > 1})
        if twice:
            raise ValueError(f"{twice[0]} is named twice: a recipe (a TOML file) can train it with two settings")
        entries, seeds = {method: Settings(method, **given) for method in names}, SEEDS
    if options.density is not None:
        density = {"density": options.density}
        entries = {
            label: replace(settings, options=settings.options | density)
            if "density" in methods.options_of(settings.method)
            else settings
            for label, settings in entries.items()
        }
    return entries, seeds if options.seeds is None else options.seeds


def _refuse_unknown(plan: DataPlan, ood: Sequence[str]) -> None:
    """Look for the sets from outside now, not after an hour of training."""
    if ood:
        from gossamer.lab.runs.evaluation import outside

        settings = next(iter(plan.entries.values()))
        task = settings.load_task()
        for name in ood:
            outside(name, task, settings.data_dir)
