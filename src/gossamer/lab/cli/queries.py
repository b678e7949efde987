"""Commands that train nothing: ``show``, ``runs``, ``report``, ``export``, ``list`` and ``completion``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Literal

from gossamer import data, methods, models
from gossamer._text.names import suggestion
from gossamer._text.tables import columns
from gossamer.lab.cli import COMMANDS, UsageError
from gossamer.lab.cli.parser import Parser, folder
from gossamer.lab.cli.predict import TITLE, add_predict_flags
from gossamer.lab.record import RecordError, Run
from gossamer.sparsity import criteria

LISTS = ("methods", "data", "models", "criteria", "recipes")
NO_RECIPES = (
    "there is no folder recipes here. A recipe is a TOML file of your own, which gossamer compare FILE trains (the "
    "guide to the command line has an example); those of the papers are in the folder recipes of the repository"
)
FILE_FLAGS = ("run", "runs", "folder", "input", "resume", "config", "out", "json", "data_dir", "corruptions")
SHELLS = ("bash", "zsh", "fish")
TITLES = {  # commands that read runs
    "predict": TITLE,
    "export": "The trained network of a run in a file for other runtimes; it reads inputs as the data set stores them.",
    "runs": "The runs in a folder and in its comparisons, the oldest first.",
    "show": "A run in a few lines: its settings, how far it is, what it reached.",
    "report": "One HTML file about one run or several, or about a sweep.",
}


def runs(given: list[str]) -> int:
    """Print a table of the runs in a folder."""
    options = _parse("runs", given)
    from gossamer.lab.runs.inventory import find_runs, runs_table

    found = find_runs(folder(options.folder))
    if found:
        print(runs_table(found).to_text())
    else:
        print(f"there are no runs in {options.folder}: gossamer train makes one", file=sys.stderr)
    return 0


def export(given: list[str]) -> int:
    """Write the network of a run for other runtimes and print the path of the file."""
    options = _parse("export", given)
    run = folder(options.run)
    Run.open(run)
    from gossamer.deploy.programs import SUFFIX
    from gossamer.lab.runs.result import load_run

    file = folder(options.out) if options.out else run / f"{options.what}{SUFFIX[options.format]}"
    trained = load_run(run, device="cpu")
    print(trained.export(file, format=options.format, what=options.what, n_draws=options.n_draws))
    return 0


def show(given: list[str]) -> int:
    """Print a run in a few lines."""
    options = _parse("show", given)
    from gossamer.lab.runs.reading import show as show_run

    print(show_run(folder(options.run)))
    return 0


def report(given: list[str]) -> int:
    """Write one HTML file about runs and print its path."""
    options = _parse("report", given)
    from gossamer.lab.record.sweep import SWEEP
    from gossamer.lab.report import write_report, write_sweep
    from gossamer.lab.runs.inventory import find_runs

    given_folders = [folder(run) for run in options.runs]
    out = folder(options.out) if options.out else None
    if len(given_folders) == 1 and (given_folders[0] / SWEEP).exists():
        print(write_sweep(given_folders[0], out))
        return 0
    found = [run.folder for one in given_folders for run in find_runs(one)]
    if not found:
        raise RecordError(
            f"{given_folders[0]} is neither a run nor the folder of a comparison or a sweep: give one of these"
        )
    print(write_report(found, out or given_folders[0] / "report.html"))
    return 0


def _parse(command: str, given: list[str]) -> Any:
    return _add_flags(Parser(f"gossamer {command}", TITLES[command]), command).parse(given)


def _add_flags(parser: Parser, command: str) -> Parser:
    """The flags of a command that reads runs."""
    if command == "report":
        parser.add_argument("runs", nargs="+", help="Run folders, or the folder of a comparison or a sweep.")
        parser.add_flag("out", str | None, "The HTML file; report.html in the first folder if not given.")
        return parser
    if command == "runs":
        parser.add_argument("folder", nargs="?", default="runs", help="The folder of the runs; runs if not given.")
        return parser
    if command == "predict":
        return add_predict_flags(parser)
    parser.add_argument("run", help="The run folder.")
    if command == "export":
        whats = "mean, the network at its means; noise, a draw at each call; draws, several networks in one."
        parser.add_flag("format", Literal["onnx", "torch-export"], "Format of the file.", "onnx")
        parser.add_flag("what", Literal["mean", "noise", "draws"], f"What to export: {whats}", "mean")
        parser.add_flag("n_draws", int | None, "Networks of draws; as in the settings of the run if not given.")
        parser.add_flag("out", str | None, "The file; in the run folder if not given.")
        parser.add_flag("trust", str | None, "Code of yours, module:function with commas, that the run may import.")
    return parser


def list_names(given: list[str]) -> int:
    """Print the names of a kind, each with a line about it."""
    if given in (["-h"], ["--help"]):
        print(f"usage: gossamer list {'|'.join(LISTS)}")
        return 0
    if len(given) != 1 or given[0] not in LISTS:
        raise UsageError(f"list takes one of {', '.join(LISTS)}{suggestion(' '.join(given), LISTS) or '.'}")
    rows = _described(given[0])
    if rows:
        print(columns(rows))
    else:
        print(NO_RECIPES, file=sys.stderr)
    return 0


def completion(given: list[str]) -> int:
    """Print a script that completes commands, names and flags in a shell."""
    if given in (["-h"], ["--help"]):
        print(f'usage: gossamer completion {"|".join(SHELLS)}\n\nIn ~/.bashrc: eval "$(gossamer completion bash)"')
        return 0
    if len(given) != 1 or given[0] not in SHELLS:
        raise UsageError(f"completion takes one of {', '.join(SHELLS)}")
    import shtab

    print(shtab.complete(_whole_parser(), given[0]))
    return 0


def _whole_parser() -> Any:
    """All commands and methods as one parser, which only completion needs."""
    import shtab

    from gossamer.lab.cli import compare, evaluate, sweep, train

    root = Parser("gossamer")
    root.add_argument("--version", action="store_true")
    commands = root.add_subparsers(prog="gossamer")
    parsers = {name: commands.add_parser(name, help=name) for name in COMMANDS}
    parsers["list"].add_argument("kind", choices=LISTS)
    parsers["completion"].add_argument("shell", choices=SHELLS)
    compare.add_compare_flags(parsers["compare"])
    evaluate.add_evaluate_flags(parsers["evaluate"])
    for name in TITLES:
        _add_flags(parsers[name], name)
    after_train = train.add_common_flags(parsers["train"]).add_subparsers(prog="gossamer train")
    parsers |= {
        f"train {name}": train.add_method_flags(after_train.add_parser(name, help=name), name)
        for name in methods.names()
    }
    after_sweep = sweep.add_study_flags(parsers["sweep"]).add_subparsers(prog="gossamer sweep")
    parsers |= {
        f"sweep {name}": sweep.add_sweep_flags(after_sweep.add_parser(name, help=name), name)
        for name in methods.names()
    }
    known = {"data": data.names(), "model": models.names(), "what": methods.names()}
    for action in (action for parser in parsers.values() for action in parser._actions):
        if action.dest in known:
            action.choices = known[action.dest]
        elif action.dest in FILE_FLAGS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    return root


def _described(kind: str) -> dict[str, str]:
    """The names of a kind, each with a line about it."""
    if kind == "methods":
        return {name: _first_line(sys.modules[methods.find(name).__module__]) for name in methods.names()}
    if kind == "data":
        loaders = {name: data.find(name) for name in data.names()}
        return {
            name: _first_line(sys.modules[getattr(load, "func", load).__module__]) for name, load in loaders.items()
        }
    if kind == "models":
        return {name: _first_line(getattr(models, name)) for name in models.names()}
    if kind == "criteria":
        tables = {"removal": criteria.REMOVAL, "addition": criteria.ADDITION}
        return {name: f"{use}: {_about(item)}" for use, table in tables.items() for name, item in table.items()}
    return {str(path): path.read_text().splitlines()[0].lstrip("# ") for path in sorted(Path("recipes").glob("*.toml"))}


def _about(criterion: Any) -> str:
    return criterion.describe() if isinstance(criterion, criteria.GradientCriterion) else _first_line(criterion)


def _first_line(thing: Any) -> str:
    return ((thing.__doc__ or "").strip().splitlines() or [""])[0]
