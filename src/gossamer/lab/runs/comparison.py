"""Several methods, several seeds, one table: for the terminal and as Markdown, LaTeX and CSV; every run as JSON."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

from gossamer._text.formats import column
from gossamer._text.names import file_name, own_code, trusting
from gossamer._text.terminal import Table, to_csv
from gossamer.files.atomic import checked, json_by_rows, one_line, read_file, unwritable
from gossamer.files.schema import Within
from gossamer.lab.record import RecordError, Run, write_atomically
from gossamer.lab.record.contents import CONFIG
from gossamer.lab.runs.folders import refuse_other_settings, stored_result
from gossamer.lab.runs.progress import Interrupted
from gossamer.lab.runs.settings import Settings
from gossamer.metrics.registry import METRICS, Metric, shown

SEEDS = 3
WAY_ON = "give the same command again: what is finished is kept"
ARROWS = {"higher": "↑", "lower": "↓"}
WIDTH = 100  # of the table in a terminal
KEPT_SETTINGS = ("method", "data", "model", "epochs", "batch_size", "n_train", "n_draws", "options")
KEPT_ENVIRONMENT = ("python", "versions", "cpu", "cpu_count", "gpu")
GIVE_WAY = ("peak_memory_bytes", "crps", "coverage90", "ece")  # where there is no room, the last of these first


@dataclass(frozen=True)
class Entry:
    """What became of a method: one result per seed, and what went wrong, if anything did."""

    label: str
    results: Sequence[Mapping[str, Any]]
    failure: str = ""


@dataclass(frozen=True)
class Comparison:
    """Methods side by side, and the folders of their runs. Columns and formats are those of the registry of metrics.

    Example:
        >>> results = [{"metrics": {"accuracy": 0.90}, "cost": {}}, {"metrics": {"accuracy": 0.94}, "cost": {}}]
        >>> print(Comparison([Entry("ssvi", results), Entry("vi", [], "out of memory")], []).to_text())
        method  seeds  accuracy
                            % ↑
        ssvi        2  92.0±2.0
        vi          0         -
        <BLANKLINE>
        mean±standard error over the seeds; costs are means
        vi failed: out of memory
    """

    entries: Sequence[Entry]
    folders: Sequence[Path]
    note: str = ""  # what else a reader of the table must know

    @property
    def has_failures(self) -> bool:
        """Whether anything went wrong."""
        return any(entry.failure for entry in self.entries)

    def table(self) -> list[dict[str, Any]]:
        """One row per entry: mean and standard error of every metric over the seeds; one seed has no standard error."""
        return [_row(entry) for entry in self.entries]

    def to_text(self, width: int = WIDTH) -> str:
        """For the terminal; columns that do not fit are left out, the least telling first."""
        columns = self._columns()
        table, left_out = self._as_table(columns), list[str]()
        while len(max(table.to_text().splitlines(), key=len)) > width:
            place = max(range(len(columns)), key=lambda i: (_rank(columns[i].metric), i), default=-1)
            if place < 0 or not _rank(columns[place].metric):
                break
            left_out.append(columns.pop(place).metric.heading)
            table = self._as_table(columns)
        return "\n".join([table.to_text(), "", *self._notes(left_out)])

    def to_table(self) -> Table:
        """All columns, and one for what went wrong."""
        return self._as_table(self._columns(), self.has_failures)

    def to_markdown(self) -> str:
        """As a Markdown table."""
        return self.to_table().to_markdown()

    def to_latex(self, title: str = "") -> str:
        """As a LaTeX table for the package booktabs, with the best value of each quality in bold."""
        rows, columns = self.table(), self._columns()
        first = len(self._as_table([]).head)
        bold = {(row, first + place) for place, column in enumerate(columns) for row in _best(column.metric, rows)}
        table = self._as_table(columns)
        note = self._said()
        note = f"{note[:1].upper()}{note[1:]}."
        return table._replace(title=f"{title}." if title else "", note=note).to_latex(bold)

    def to_csv(self) -> str:
        """As CSV, with the standard errors in columns of their own."""
        return _csv(self.table())

    def to_json(self) -> str:
        """What each method reached with each seed, as JSON with one line per run: small enough to keep.

        It holds no curves, no examples, and of the environment only what numbers depend on: no machine, folder or user.
        """
        labels = [entry.label for entry in self.entries for _ in entry.results]
        runs = [Run.open(folder) for folder in self.folders]
        failures = {entry.label: entry.failure for entry in self.entries if entry.failure}
        head = {"format": 1, "kind": "trials", "environment": _common_environment(runs), "failures": failures}
        return json_by_rows(head | {"trials": [_trial(label, run) for label, run in zip(labels, runs, strict=True)]})

    def write(self, folder: Path) -> None:
        """The table as ``comparison.md``, ``.tex`` and ``.csv`` in the folder, and every run as ``.json``."""
        texts = {"md": self.to_markdown(), "tex": self.to_latex(), "csv": self.to_csv(), "json": self.to_json()}
        for suffix, text in texts.items():
            write_atomically(folder / f"comparison.{suffix}", text)

    def _columns(self) -> list[Column]:
        """The metrics that a table shows, qualities before costs."""
        rows = self.table()
        measured = [name for entry in self.entries for name in _measured(entry)]
        metrics = [metric for metric in shown("terminal", measured) if any(metric.name in row for row in rows)]
        return [Column.of(metric, rows) for metric in metrics]

    def _as_table(self, columns: Sequence[Column], with_failures: bool = False) -> Table:
        counts = [str(len(entry.results)) for entry in self.entries]
        parts: list[tuple[str, Sequence[str]]] = [("method", [entry.label for entry in self.entries])]
        parts += [("seeds", counts)] if len(set(counts)) > 1 else []
        parts += [(column.head, column.cells) for column in columns]
        parts += [("failed", [entry.failure for entry in self.entries])] if with_failures else []
        return Table("", "", [head for head, _ in parts], list(zip(*(cells for _, cells in parts), strict=True)))

    def _notes(self, left_out: Sequence[str]) -> list[str]:
        """What the cells mean, what is not shown, and what went wrong."""
        missing = f"; without {', '.join(left_out)}, which the files have" if left_out else ""
        failed = [f"{entry.label} failed: {entry.failure}" for entry in self.entries if entry.failure]
        return [line for text in (self._said() + missing, *failed) for line in textwrap.wrap(text, WIDTH) or [""]]

    def _said(self) -> str:
        counts = {len(entry.results) for entry in self.entries}
        seeds = "the seeds" if len(counts) > 1 else f"{max(counts, default=0)} seeds"
        said = f"mean±standard error over {seeds}; costs are means" if max(counts, default=0) > 1 else "one seed"
        return f"{said}; {self.note}" if self.note else said


def _trial(label: str, run: Run) -> dict[str, Any]:
    result = stored_result(run)
    if result is None:
        raise RecordError(f"{run.folder} is not finished: gossamer train --resume {run.folder} continues it")
    settings = {"model": result["model"]} | run.config  # the settings may leave the choice of the network to the data
    return {
        "label": label,
        "seed": checked(run.config.get("seed"), int, f"{run.folder / CONFIG}: seed", "restore the file"),
        "settings": {key: settings.get(key) for key in KEPT_SETTINGS},
        **{group: _known(result[group]) for group in ("metrics", "cost")},
    }


def _known(values: Mapping[str, float | None]) -> dict[str, float]:
    """The numbers that JSON can hold."""
    return {key: value for key, value in values.items() if value is not None and math.isfinite(value)}


def _common_environment(runs: Sequence[Run]) -> dict[str, Any]:
    """The environment shared by all runs, dated by the latest; values that differ become a list."""
    if not runs:
        return {}
    common = {key: _agreed([run.environment.get(key) for run in runs]) for key in KEPT_ENVIRONMENT}
    days = [run.environment.get("time", "")[:10] for run in runs]
    return {"date": max(days)} | {key: value for key, value in common.items() if value is not None}


def _agreed(values: Sequence[Any]) -> Any:
    distinct = [value for i, value in enumerate(values) if value not in values[:i]]
    return distinct[0] if len(distinct) == 1 else distinct


def csv_of(comparisons: Mapping[str, Comparison]) -> str:
    """Comparisons on several data sets as one CSV, whose first column is the data set."""
    return _csv([{"data": data} | row for data, comparison in comparisons.items() for row in comparison.table()])


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return to_csv([names, *([row.get(name) for name in names] for row in rows)])


class Column(NamedTuple):
    """A metric with its head, its name and below that its unit, and its cells."""

    metric: Metric
    head: str
    cells: Sequence[str]

    @classmethod
    def of(cls, metric: Metric, rows: Sequence[Mapping[str, Any]]) -> Column:
        """The column of a metric in the rows of a table; a cost has no standard error there."""
        means, errors = [row.get(metric.name) for row in rows], [row.get(f"{metric.name}_se") for row in rows]
        is_cost = metric.compute is None and metric.name in METRICS
        unit, cells = column(means, [None] * len(means) if is_cost else errors, metric.format)
        below = [unit, "" if is_cost else ARROWS.get(str(metric.better), "")]
        return cls(metric, "\n".join(filter(None, [metric.heading, " ".join(filter(None, below))])), cells)


def _best(metric: Metric, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """The rows with the best mean of a quality; none of a cost, or where all are equal."""
    distance = {i: metric.distance(row[metric.name]) for i, row in enumerate(rows) if metric.name in row}
    if (metric.name in METRICS and metric.compute is None) or metric.better is None or len(set(distance.values())) < 2:
        return []
    return [i for i, value in distance.items() if value == min(distance.values())]


def _rank(metric: Metric) -> int:
    """How soon a column gives way to others where there is not enough room; 0 never does."""
    return GIVE_WAY.index(metric.name) + 1 if metric.name in GIVE_WAY else 0


def _row(entry: Entry) -> dict[str, Any]:
    row: dict[str, Any] = {"method": entry.label, "seeds": len(entry.results)}
    more = ("cost", "shift")
    measured = [*_measured(entry), *(name for one in entry.results for group in more for name in one.get(group, {}))]
    for name in dict.fromkeys([*METRICS, *measured]):
        found = mean_and_error(entry.results, name)
        if found is not None:
            row[name], row[f"{name}_se"] = found
    return row | ({"failed": entry.failure} if entry.failure else {})


def mean_and_error(results: Sequence[Mapping[str, Any]], name: str) -> tuple[float, float | None] | None:
    """Mean and standard error of a metric or cost over the seeds, where it was measured; one seed has no error."""
    found = [result.get(group, {}).get(name) for result in results for group in ("metrics", "cost", "shift")]
    values = [value for value in found if value is not None]
    if not values:
        return None
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else None


def _measured(entry: Entry) -> list[str]:
    return [name for result in entry.results for name in result["metrics"]]


def compare(
    entries: Mapping[str, Settings],
    seeds: int = SEEDS,
    out: Path | str = "runs/compare",
    *,
    ood: Sequence[str] = (),
    ood_score: str | None = None,
    quiet: bool = False,
    say: Callable[[str], None] = lambda text: None,
) -> Comparison:
    """Train every entry with several seeds and put the results side by side.

    Runs are folders of ``out``, ``<label>-<seed>``. Finished ones are not trained again and unfinished ones are
    continued, so a comparison can be stopped and started at will. A method that fails is a row that says why.

    Args:
        entries: Settings by label; their seeds are replaced by 0, 1, ….
        seeds: How many runs of each.
        out: Folder of the comparison, where ``comparison.md``, ``.tex``, ``.csv`` and ``.json`` are written.
        ood: Sets from outside, see :func:`gossamer.lab.runs.evaluation.outside`: a column has the AUROC of each.
        ood_score: The score of that column; ``None`` is ``"entropy"`` for classes and ``"std"`` for numbers.
        quiet: Show no progress.
        say: Called with what is being trained, as text.

    Example:
        >>> import tempfile
        >>> entries = {"small": Settings("sgd", "two_moons", epochs=1)}
        >>> compare(entries, seeds=2, out=tempfile.mkdtemp(), quiet=True).table()[0]["seeds"]
        2
    """
    out, plan = Path(out), runs_of(entries, seeds, Path(out))
    # Whatever can be known now is an error now, not after an hour of training.
    for runs in plan.values():
        for folder, settings in runs.items():
            refuse_other_settings(folder, settings)
    _make_folder(out)
    for label, runs in plan.items():
        _check_first(label, runs)
    with trusting(*own_code([settings.to_config() for settings in entries.values()])):  # the caller's own choice
        comparison = _collect(plan, quiet, say)
        if ood:
            comparison = _with_ood(comparison, ood, ood_score)
    comparison.write(out)
    return comparison


def runs_of(entries: Mapping[str, Settings], seeds: int, out: Path) -> dict[str, dict[Path, Settings]]:
    """The runs of a comparison, by label and folder."""
    if seeds < 1:
        raise ValueError(f"seeds must be at least 1; got {seeds}")
    if any(settings.ranks > 1 for settings in entries.values()):
        raise ValueError("compare trains in one process: set ranks to 1, or train run by run and report on them")
    return {
        label: {out / f"{file_name(label)}-{seed}": replace(settings, seed=seed) for seed in range(seeds)}
        for label, settings in entries.items()
    }


def train_run(settings: Settings, folder: Path, *, quiet: bool = False) -> None:
    """Train one of :func:`runs_of`, or continue it: any number of jobs share the work, and ``compare`` collects it."""
    refuse_other_settings(folder, settings)
    _make_folder(folder.parent)
    with trusting(*own_code(settings.to_config())):
        failure = _train_here(folder, settings, quiet)
    if failure:
        raise RecordError(f"{folder.name}: {failure}")


def _train_here(folder: Path, settings: Settings, quiet: bool) -> str:
    from gossamer.lab.runs.job import resume, train

    try:
        has_begun = (folder / "config.toml").exists()
        stored_result(resume(folder, quiet=quiet) if has_begun else train(settings, folder, quiet=quiet))
    except Interrupted:
        raise Interrupted(folder, WAY_ON) from None
    except Exception as error:  # other runs go on; the table says what happened
        kind = "" if isinstance(error, RecordError | ValueError) else f"{type(error).__name__}: "
        return f"{kind}{one_line(error)}"
    return ""


def _collect(plan: Mapping[str, Mapping[Path, Settings]], quiet: bool, say: Callable[[str], None]) -> Comparison:
    rows, trained = [], list[Path]()
    for label, runs in plan.items():
        failures = dict[str, list[str]]()  # what went wrong -> the seeds it happened to
        results = []
        for folder, settings in runs.items():
            say(f"{label}, seed {settings.seed}")
            failure = _train_here(folder, settings, quiet)
            if failure:
                failures.setdefault(failure, []).append(str(settings.seed))
                say(f"{label}, seed {settings.seed} failed: {failure}")
                continue
            results.append(Run.open(folder).result() or {})
            trained.append(folder)
        why = "; ".join(f"seed {', '.join(seeds)}: {why}" for why, seeds in failures.items())
        rows.append(Entry(label, results, why))
    return Comparison(rows, trained)


def _make_folder(out: Path) -> None:
    """The folder of the comparison; not that of a run."""
    if (out / "config.toml").exists():
        raise RecordError(f"{out} is the folder of a run: a comparison needs one of its own, give another --out")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(out, error) from error


def _check_first(label: str, runs: Mapping[Path, Settings]) -> None:
    """Build what the first step of an entry needs, unless its runs have begun: they are built already."""
    from gossamer.lab.runs.job import check

    if all((folder / "config.toml").exists() for folder in runs):
        return
    try:
        check(next(iter(runs.values())))
    except (ValueError, ModuleNotFoundError, FileNotFoundError) as error:
        raise RecordError(f"{label}: {one_line(error)}") from error


class _Recipe(TypedDict, total=False):
    """A recipe; its other keys are settings."""

    methods: dict[str, dict[str, Any]]
    seeds: Annotated[int, Within(1)]


def read_recipe(path: Path) -> tuple[dict[str, Settings], int]:
    """Entries and number of seeds of a recipe: a TOML file with common settings and one table ``[methods.LABEL]`` each.

    The keys of a table are settings, or options of its method; the label is the name of the method unless the table
    has ``method = …``.
    """
    recipe = read_file(path, "give each method a table [methods.NAME]", _Recipe)
    if recipe is None:
        raise RecordError(f"cannot read {path}: No such file or directory")
    tables, seeds = recipe.pop("methods", {}), recipe.pop("seeds", SEEDS)
    if not tables:
        raise RecordError(f"{path} compares nothing: give it a table [methods.NAME] for each method")
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


def _with_ood(comparison: Comparison, names: Sequence[str], score: str | None) -> Comparison:
    from gossamer.lab.runs.evaluation import with_ood

    found = [with_ood(folder, names, score) for folder in comparison.folders]
    results = iter(found)
    entries = [replace(entry, results=[next(results) for _ in entry.results]) for entry in comparison.entries]
    scores = dict.fromkeys(result["ood_score"].replace("_", " ") for result in found)
    return Comparison(entries, comparison.folders, f"AUROC by {', '.join(scores)}" if scores else "")
