"""Several methods, several seeds, one comparison."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

from gossamer.record import RecordError, Run
from gossamer.record.files import one_line
from gossamer.runs.settings import Settings, with_defaults
from gossamer.runs.stopping import Interrupted
from gossamer.runs.table import Comparison, Entry

__all__ = ["compare", "read_recipe"]

SEEDS = 3


def compare(
    entries: Mapping[str, Settings],
    seeds: int = SEEDS,
    out: Path | str = "runs/compare",
    *,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Train every entry with several seeds and put the results side by side.

    Runs are folders of ``out``, ``<label>-<seed>``; finished ones are not trained again and unfinished ones are
    continued, so a comparison can be stopped and started at will. A method that fails is a row that says so.

    Args:
        entries: Settings by label; their seeds are replaced by 0, 1, ….
        seeds: How many runs of each.
        out: Folder of the comparison, where the table is written as ``comparison.md``, ``.csv`` and ``.json``.
        quiet: No progress.
        say: Is told what is being trained.

    Example:
        >>> import tempfile
        >>> entries = {"small": Settings("sgd", "two_moons", epochs=1)}
        >>> compare(entries, seeds=2, out=tempfile.mkdtemp(), quiet=True).table()[0]["seeds"]
        2
    """
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1; got {seeds}")
    if any(settings.ranks > 1 for settings in entries.values()):
        raise ValueError("compare trains in one process: set ranks to 1, or train run by run and report on them")
    out, trained = Path(out), list[Path]()
    plan = {label: _runs(out, label, settings, seeds) for label, settings in entries.items()}
    rows = [_entry(label, runs, trained, quiet, say) for label, runs in plan.items()]
    comparison = Comparison(rows, trained)
    out.mkdir(parents=True, exist_ok=True)  # where every run failed before it had a folder
    comparison.write(out)
    return comparison


def read_recipe(path: Path) -> tuple[dict[str, Settings], int]:
    """Entries and number of seeds of a recipe: a TOML file with common settings and a table ``[methods.LABEL]`` each.

    A table's keys are settings, or options of its method, whose name is the label unless it says ``method = …``.
    """
    recipe = load_recipe(path)
    tables, seeds = recipe.pop("methods"), recipe.pop("seeds", SEEDS)
    recipe.pop("published")
    if not isinstance(seeds, int) or seeds < 1:
        raise RecordError(f"{path}: seeds must be a whole number from 1; got {seeds!r}")
    names = {item.name for item in fields(Settings)} - {"options", "seed"}
    entries = {}
    for label, table in tables.items():
        own = {key: value for key, value in table.items() if key in names}
        options = {key: value for key, value in table.items() if key not in names}
        try:
            entries[label] = Settings.from_config({"method": label, **recipe, **own, "options": options})
        except ValueError as error:
            raise RecordError(f"{path}, [methods.{label}]: {error}") from error
    return entries, seeds


def load_recipe(path: Path) -> dict[str, Any]:
    """The content of a recipe, with its tables ``methods`` and ``published``."""
    try:
        recipe = {"methods": {}, "published": {}} | tomllib.loads(path.read_text())
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise RecordError(f"{path} is broken: {one_line(error)}") from error
    for name in ("methods", "published"):
        tables = recipe[name]
        if not isinstance(tables, dict) or not all(isinstance(table, dict) for table in tables.values()):
            raise RecordError(f"{path}: {name} must be a table for each method, [{name}.NAME]")
    if not recipe["methods"]:
        raise RecordError(f"{path} compares nothing: give it a table [methods.NAME] for each method")
    return recipe


def _runs(out: Path, label: str, settings: Settings, seeds: int) -> dict[Path, Settings]:
    """Settings by folder; one that holds something else is refused now, and not after an hour of training."""
    name = label.replace("/", "-").replace(" ", "-")
    runs = {out / f"{name}-{seed}": replace(settings, seed=seed) for seed in range(seeds)}
    for folder, told in runs.items():
        _refuse_other_settings(folder, told)
    return runs


def _entry(
    label: str, runs: Mapping[Path, Settings], trained: list[Path], quiet: bool, say: Callable[[str], None]
) -> Entry:
    """The runs of one label; the folders of those that got to their end join ``trained``."""
    results: list[dict[str, Any]] = []
    failures: dict[str, list[str]] = {}  # what went wrong -> the seeds of which it is true
    for folder, settings in runs.items():
        say(f"{label}, seed {settings.seed}")
        try:
            result = _train_or_continue(settings, folder, quiet).result()
        except Interrupted:
            raise Interrupted(folder, "give the same command again: what is finished is kept") from None
        except Exception as error:  # the others go on; the row says what happened
            kind = "" if isinstance(error, RecordError | ValueError) else f"{type(error).__name__}: "
            failures.setdefault(f"{kind}{one_line(error)}", []).append(str(settings.seed))
            say(f"{label}, seed {settings.seed} failed: {kind}{one_line(error)}")
        else:
            assert result is not None  # what is trained to its end has one
            results.append(result)
            trained.append(folder)
    return Entry(label, results, "; ".join(f"seed {', '.join(seeds)}: {why}" for why, seeds in failures.items()))


def _train_or_continue(settings: Settings, folder: Path, quiet: bool) -> Run:
    from gossamer.runs.training import resume, train

    has_begun = (folder / "config.toml").exists()
    return resume(folder, quiet=quiet) if has_begun else train(settings, folder, quiet=quiet)


def _refuse_other_settings(folder: Path, settings: Settings) -> None:
    if not (folder / "config.toml").exists():
        return
    # A run of an earlier version was not asked for what was added since: there it did as the default does.
    earlier = {item.name: item.default for item in fields(Settings) if item.default is not MISSING}
    config = earlier | Run.open(folder).config
    options = with_defaults(settings.method, config.get("options", {}))
    told, asked = _flat(config | {"options": options}), _flat(settings.to_config())
    for key in asked | told:
        if told.get(key) != asked.get(key):
            found, wanted = told.get(key), asked.get(key)
            raise RecordError(
                f"{folder} holds a run with {key} {found}, not {wanted}: give another --out, or delete it"
            )


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, **config.get("options", {}), "options": None}
