"""``gossamer sweep``: a search for good options, by as many processes as give the same command."""

import sys
from argparse import Namespace
from dataclasses import fields
from typing import Any

from gossamer import methods
from gossamer._text.formats import plain
from gossamer._text.names import file_name, needs
from gossamer.lab.cli import UsageError
from gossamer.lab.cli.parser import Parser, folder, with_underscores
from gossamer.lab.cli.train import flags_of, positions, read_config, take_value
from gossamer.lab.runs.settings import CHECKPOINT_SECONDS, Settings
from gossamer.metrics.registry import METRICS
from gossamer_sweep.record import SweepRecord
from gossamer_sweep.space import EXAMPLES, read_space
from gossamer_sweep.study import TRIALS, Pruner
from gossamer_sweep.study import sweep as run_sweep

EXAMPLE = "gossamer sweep ssvi --data digits --study first --search lr=log:1e-4..1e-1"
OF_STUDY = ("study", "trials", "metric", "pruner", "out")


def sweep(given: list[str]) -> int:
    """Take trials from a study and train them; print the best, and the command that repeats it."""
    given = with_underscores(given)
    file, given = take_value(given, "--config")
    content = read_config(folder(file)) if file is not None else {}
    names = positions(given)
    if not names and "method" not in content:
        return _without_method(given)
    method = str(content.pop("method", "")) if not names else given.pop(names[0])
    content.pop("method", None)
    needs("optuna", extra="sweep")
    try:
        listed = content.pop("search", {})
        parser = _parser(method)
        known = [*(item.name for item in fields(Settings)), *methods.options_of(method), *OF_STUDY]
        options = parser.parse([*flags_of(file or "", content, known, parser.parse), *given])
        if not options.study:
            raise UsageError(f"a sweep needs the name of its study, which all its processes share: {EXAMPLE}")
        space = read_space(method, listed if listed and not options.search else options.search or [])
        settings = _settings(method, options, list(space))
        told = {name: getattr(options, name) for name in ("trials", "metric", "pruner", "checkpoint_seconds", "quiet")}
        out = folder(options.out) if options.out else None
        found = run_sweep(settings, space, options.study, out, say=_say(options.quiet), **told)
    except ValueError as error:
        raise UsageError(str(error)) from error
    code = _finish(found)
    from gossamer_sweep.page import write_sweep

    print(f"report: {write_sweep(out or folder(f'runs/{file_name(options.study)}'))}")
    return code


def add_sweep_flags(parser: Parser, method: str) -> Parser:
    """Flags of the study, the options of a method, and the settings of any run."""
    add_study_flags(parser)
    title = f"options of {method}, for all trials; those that are searched may be left out"
    parser.add_signature(methods.find(method), title, skip={"task", "steps"}, optional=True)
    skip = {"method", "data", "ranks", "options"}
    parser.add_signature(Settings, "settings of every run", skip=skip, optional=True)
    return parser


def add_study_flags(parser: Parser) -> Parser:
    """What can be said about a sweep of any method."""
    parser.add_flag("data", str | None, "Name of the data set, or your own, as for train.")
    parser.add_flag("study", str | None, "Name of the study: processes that give the same one share its trials.")
    parser.add_argument("--search", action="append", help=f"What to search, as often as needed: {EXAMPLES}.")
    parser.add_flag("trials", int, "Trials in all, not per process.", TRIALS)
    parser.add_flag("metric", str, "Metric of the held-out examples to search by.", "nll")
    parser.add_flag("pruner", Pruner, "How trials that look bad are stopped early.", "median")
    parser.add_flag("out", str | None, "Folder of the sweep; runs/<study> if not given.")
    parser.add_flag("config", str | None, "A TOML file with any of these, and a table [search].")
    parser.add_flag("checkpoint_seconds", float, "Seconds between checkpoints.", CHECKPOINT_SECONDS)
    parser.add_flag("trust", str | None, "Code of yours, module:function with commas, that a file may name.")
    parser.add_flag("quiet", None, "Show no progress.")
    return parser


def _parser(method: str) -> Parser:
    methods.find(method)
    return add_sweep_flags(Parser(f"gossamer sweep {method}", f"Search good options of {method}."), method)


def _without_method(given: list[str]) -> int:
    if "-h" in given or "--help" in given:
        title = f"Search good options of a method, by held-out examples. Methods: {', '.join(methods.names())}."
        add_study_flags(Parser("gossamer sweep METHOD", title)).print_help()
        print(f"\ngossamer sweep METHOD --help adds the options of a method. Example:\n  {EXAMPLE}")
        return 0
    raise UsageError(f"sweep needs a method: {EXAMPLE}")


def _settings(method: str, options: Namespace, searched: list[str]) -> Settings:
    """The settings that all trials share."""
    names = [item.name for item in fields(Settings) if item.name not in ("method", "ranks", "options")]
    given = {name: value for name, value in vars(options).items() if value is not None}
    if both := sorted(set(searched) & set(given)):
        raise UsageError(f"{both[0]} is both given and searched: leave out --{both[0]} or --search {both[0]}=…")
    if "data" not in given:
        raise UsageError(f"a sweep needs data: {EXAMPLE}")
    of_method = {name: given[name] for name in methods.options_of(method) if name in given}
    return Settings(method, **{name: given[name] for name in names if name in given}, options=of_method)


def _say(quiet: bool) -> Any:
    return (lambda text: None) if quiet else (lambda text: print(text, file=sys.stderr, flush=True))


def _finish(found: SweepRecord) -> int:
    """Print what the sweep found, and how to go on."""
    counts = {state: found.count(state) for state in ("finished", "pruned", "failed", "running")}
    said = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    print(f"{len(found.trials)} of {found.asked} trials: {said}")
    if counts["running"]:
        print("those that run have processes of their own; if one is killed, the same command continues it")
    best = found.best
    if best is None:
        print("no trial has finished")
        return 0 if counts["running"] else 1
    metric = METRICS[found.metric]
    values = "  ".join(f"{name}={value}" for name, value in best.values.items())
    print(f"best: {best.folder}, {metric.heading} {plain(metric.format(best.objective or 0.0))}  {values}")
    print(f"train it on all training data:\n  {found.command}")
    return 0
