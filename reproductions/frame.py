"""What a table or figure of a paper is, and how its runs are trained, kept and judged.

A file of this folder describes one as ``RESULT``. Its rows are runs of ``gossamer.lab`` with three seeds unless it says
otherwise. Each run has a folder that is named by its settings, so that several results share it. The folder keeps what
was measured of the run: a command that was killed goes on from there, and several processes take different runs.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import pkgutil
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

from gossamer import __version__, data
from gossamer._text.formats import size
from gossamer._text.names import own_code, trusting, unknown
from gossamer.data import DataNotFoundError
from gossamer.data._files import data_root
from gossamer.files.atomic import json_by_rows, one_line, read_file, write_atomically
from gossamer.lab import Settings, resume, train
from gossamer.lab.record import Lock, RecordError, TakenError
from gossamer.lab.record.contents import environment
from gossamer.metrics import METRICS, Metric
from gossamer.train.divergence import DivergenceError

__all__ = [
    "Claim",
    "Kept",
    "Result",
    "Row",
    "Run",
    "Verdict",
    "file_of",
    "find",
    "folder_of",
    "mean_error",
    "names",
    "reproduce",
    "trained",
]

Told = Mapping[str, Any]
"""What determines a run; plain values."""

Measures = dict[str, Any]
"""What was measured of a run, by name: numbers, and lists for pictures."""

Measure = Callable[[Told, Path, Lock], Measures]
"""(settings, folder of the run, the lock on it) -> what the result needs of the run."""

SMALL = {"model": "resnet8", "epochs": 4, "batch_size": 64, "n_draws": 5}
SMALL_DATA = "reproductions.small"
SMALL_SEEDS = 3
SOURCES = {  # of the data files
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "cifar100": "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
    "svhn": "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
}
BYTES_OF_WEIGHT = 48  # two checkpoints of two numbers for each weight, with the state of an optimizer


def trained(told: Told, folder: Path, lock: Lock) -> Measures:
    """The metrics and the costs of a run, which is trained as far as it is not."""
    begun = (folder / "config.toml").exists()
    run = resume(folder, lock=lock, quiet=True) if begun else train(Settings(**told), folder, quiet=True, lock=lock)
    return measures_of(run.result() or {})


def measures_of(result: Mapping[str, Any]) -> Measures:
    """The metrics and costs in the result of a run."""
    return {**result["metrics"], **result["cost"]}


@dataclass(frozen=True)
class Row:
    """A line of a table.

    Args:
        label: Its name, unique in the result.
        told: The settings of a full run, as :class:`gossamer.lab.Settings` takes them.
        printed: What the paper printed, by metric.
        small: What a small run needs in place of what ``told`` and :data:`SMALL` say; if it names data, :data:`SMALL`
            says nothing. ``None``: there is no small run.
        line: In a figure: the line it is a point of.
        at: In a figure: where on the axis.
    """

    label: str
    told: Told
    printed: Mapping[str, str] = field(default_factory=dict)
    small: Told | None = field(default_factory=dict)
    line: str = ""
    at: float = math.nan

    def settings(self, *, small: bool) -> dict[str, Any]:
        """The settings of its runs but for the seed."""
        full = {"calibrate": False, "options": {}, **self.told}
        if not small:
            return full
        own = self.small or {}
        less = own if "data" in own else {"data": f"{SMALL_DATA}:{full['data']}", **SMALL, **own}
        less = {**less, "options": full["options"] | own.get("options", {})}
        return {key: value for key, value in (full | less).items() if key != "n_val"}


@dataclass(frozen=True)
class Claim:
    """What the paper says, as a sum over rows that is at least ``above``: the metric of each times its weight.

    Runs of a seed are ``paired`` where they are the same training up to what differs between the rows. Small runs judge
    what is ``in_small``.
    """

    words: str
    metric: str
    weights: Mapping[str, float]
    above: float = 0.0
    paired: bool = False
    in_small: bool = True

    @classmethod
    def better(cls, one: str, other: str, metric: str, by: float = 0.0) -> Self:
        """The first row is better than the second; a negative ``by`` says how much worse it may be."""
        sign = 1.0 if METRICS[metric].better == "higher" else -1.0
        words = f"{METRICS[metric].heading}, {one} against {other}"
        return cls(words, metric, {one: sign, other: -sign}, by)

    def estimate(self, samples: Mapping[str, Sequence[float]]) -> tuple[float, float]:
        """The sum and its standard error, from the values of each row by seed; infinite for one seed."""
        if self.paired:
            by_seed = zip(*(samples[row] for row in self.weights), strict=True)
            sums = [
                sum(weight * value for weight, value in zip(self.weights.values(), values, strict=True))
                for values in by_seed
            ]
            mean, error = mean_error(sums)
            return mean, math.inf if error is None else error
        # Seeds are few, so the rows share one standard deviation.
        squares = [(x - statistics.fmean(values)) ** 2 for values in samples.values() for x in values]
        free = len(squares) - len(samples)
        mean = sum(weight * statistics.fmean(samples[row]) for row, weight in self.weights.items())
        share = sum(weight**2 / len(samples[row]) for row, weight in self.weights.items())
        return mean, math.sqrt(sum(squares) / free * share) if free else math.inf


class Verdict(NamedTuple):
    """A word, and a sentence that says why."""

    word: str
    why: str


@dataclass(frozen=True)
class Result:
    """A table or figure.

    Args:
        title: What it is, and of which paper.
        claim: What the paper says of it, in a sentence.
        rows: Its lines.
        columns: What it shows of each: names of :data:`gossamer.metrics.METRICS`, or metrics of its own.
        claims: The claim in numbers.
        seeds: Runs of each row; small ones are :data:`SMALL_SEEDS` at most.
        measure: What is measured of a run.
        needs: Data sets that are used beside those of the rows.
        plot: Draws the runs into a file; nothing is drawn without it.
    """

    title: str
    claim: str
    rows: Sequence[Row]
    columns: Sequence[str | Metric]
    claims: Sequence[Claim] = ()
    seeds: int = 3
    measure: Measure = trained
    needs: Sequence[str] = ()
    plot: Callable[[Result, Kept, Path], None] | None = None

    def plan(self, *, small: bool, seeds: int | None = None) -> Iterator[tuple[Row, dict[str, Any]]]:
        """Each row with the settings of each of its runs; the first seeds of all rows come first."""
        for seed in range(seeds or (min(self.seeds, SMALL_SEEDS) if small else self.seeds)):
            for row in (row for row in self.rows if row.small is not None or not small):
                yield row, row.settings(small=small) | {"seed": seed}

    def judge(self, kept: Kept) -> Verdict:
        """The verdict on the claims that runs of this size can judge."""
        if not kept.small:
            return kept.judge(self.claims)
        there = {row.label for row in self.rows if row.small is not None}
        return kept.judge([claim for claim in self.claims if claim.in_small and claim.weights.keys() <= there])

    @property
    def metrics(self) -> list[Metric]:
        """The columns."""
        return [METRICS[column] if isinstance(column, str) else column for column in self.columns]


@dataclass(frozen=True)
class Run:
    """What one run of a row gave, where, and how long it took."""

    row: str
    told: Told
    environment: Mapping[str, Any]
    seconds: float
    measures: Measures


@dataclass
class Kept:
    """The runs of a result, as one file holds them."""

    name: str
    small: bool
    runs: list[Run] = field(default_factory=list)

    def of(self, row: str) -> list[Run]:
        """The runs of a row."""
        return [run for run in self.runs if run.row == row]

    def values(self, row: str, metric: str) -> list[float]:
        """A metric of every run of a row that has it."""
        return [run.measures[metric] for run in self.of(row) if run.measures.get(metric) is not None]

    def judge(self, claims: Sequence[Claim]) -> Verdict:
        """Whether the claims hold by more than two standard errors, fail by as much, or neither."""
        signs, words = [], []
        for claim in claims:
            samples = {row: self.values(row, claim.metric) for row in claim.weights}
            if not all(samples.values()):
                return Verdict("not run", "")
            mean, error = claim.estimate(samples)
            signs.append((mean - claim.above) / error if error else math.copysign(math.inf, mean - claim.above))
            shown = f"{mean:+.3g} ± {error:.2g}" if error < math.inf else f"{mean:+.3g} (one seed)"
            words.append(f"{claim.words}: {shown}" + (f", claimed at least {claim.above:+.3g}" if claim.above else ""))
        if not signs:
            return Verdict("not run", "")
        n, low = sum(sign > 2 for sign in signs), min(signs)
        word = "confirmed" if n == len(signs) else "contradicted" if low < -2 else "not confirmed"
        lead = f"{n} of {len(signs)} comparisons hold; the weakest is " if len(signs) > 1 else ""
        return Verdict(word, lead + words[signs.index(low)])

    def write(self, path: Path) -> None:
        """As JSON with a line for each run, so that a difference between two files can be read."""
        write_atomically(path, json_by_rows(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """From the file; ``None`` if there is none."""
        found = read_file(path, "delete it: python -m reproductions makes it again")
        try:
            return None if found is None else cls(**found | {"runs": [Run(**run) for run in found["runs"]]})
        except (TypeError, KeyError) as error:
            raise RecordError(f"{path} holds no runs of a reproduction ({error}): delete it") from error


def names() -> list[str]:
    """The tables and figures.

    Example:
        >>> "ssvi-table1" in names()
        True
    """
    files = (module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)]))
    return sorted(name.replace("_", "-") for name in files if name.startswith(("ssvi_", "cv_adam_", "em_mcmc_")))


def find(name: str) -> Result:
    """The table or figure of a name.

    Example:
        >>> find("ssvi-table1").seeds
        3
    """
    if name not in names():
        raise ValueError(unknown("reproduction", name, names()))
    result: Result = importlib.import_module(f"reproductions.{name.replace('-', '_')}").RESULT
    return result


def reproduce(
    name: str,
    result: Result,
    out: Path,
    *,
    small: bool,
    seeds: int | None = None,
    where: Told | None = None,
    say: Callable[[str], None] = print,
) -> Kept:
    """Train and measure what is not in the folder yet, and write all runs to ``out/<name>.json`` (``-small``).

    Args:
        name: The name of the result.
        result: The result.
        out: The folder of all results.
        small: Whether to make the small runs.
        seeds: Runs of each row; those of the result if not given.
        where: Settings that say where to train: ``device``, ``data_dir``.
        say: Takes a line for each run.

    Returns:
        The runs that there are; those that another process has not finished are missing.
    """
    plan, place = list(result.plan(small=small, seeds=seeds)), dict(where or {})
    out.mkdir(parents=True, exist_ok=True)
    missing = [told for _, told in plan if not file_of(result, out, told).exists()]
    _check_space(out, missing)
    needs = [f"{SMALL_DATA}:{name}" if small else name for name in result.needs]
    with trusting(*own_code([told for _, told in plan]), *own_code(needs)):
        _check_data([*(told["data"] for told in missing), *(needs if missing else ())], place.get("data_dir"))
        for number, (row, told) in enumerate(plan, 1):
            try:
                run = _one(result, row, told, out, place)
            except TakenError:
                words = "another process has it"
            except DivergenceError as error:  # the others go on; the row lacks this seed
                words = f"failed: {one_line(error)}"
            else:
                shown = ", ".join(f"{metric.heading} {_text(metric, run)}" for metric in result.metrics[:3])
                words = f"{shown} ({run.seconds:.0f} s)"
            say(f"{name} [{number}/{len(plan)}] {row.label}, seed {told['seed']}: {words}")
    # Of several processes the last one to come here finds what the others have finished by now.
    found = (_measured(file_of(result, out, told), row) for row, told in plan)
    kept = Kept(name, small, [run for run in found if run is not None])
    kept.write(out / f"{name}{'-small' if small else ''}.json")
    return kept


def folder_of(out: Path, told: Told) -> Path:
    """The folder of a run, which its settings name."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:16]
    return out / "runs" / f"{told['method']}-{digest}-{told['seed']}"


def file_of(result: Result, out: Path, told: Told) -> Path:
    """Where the measures of a run are: beside its folder, which may yet be trained; who measures the same shares it."""
    folder = folder_of(out, told)
    return folder.with_name(f"{folder.name}.{result.measure.__name__}.json")


def mean_error(values: Sequence[float]) -> tuple[float, float | None]:
    """Mean and standard error; ``None`` for a single value."""
    return statistics.fmean(values), statistics.stdev(values) / math.sqrt(len(values)) if values[1:] else None


def _one(result: Result, row: Row, told: Told, out: Path, where: Told) -> Run:
    """A run of a row, measured if it was not."""
    folder, path = folder_of(out, told), file_of(result, out, told)
    with Lock(folder) as lock:
        if (run := _measured(path, row)) is not None:
            return run
        start = time.perf_counter()
        measures = result.measure({**told, **where}, folder, lock)
        known = environment()
        versions = {**known["versions"], "gossamer": __version__, "python": known["python"]}
        machine = {key: known[key] for key in ("time", "cpu", "gpu")}
        if where.get("device") == "cpu":
            machine["gpu"] = None  # which a machine may have all the same
        run = Run(row.label, told, machine | versions, round(time.perf_counter() - start, 2), measures)
        write_atomically(path, json.dumps(asdict(run)) + "\n")
        return run


def _measured(path: Path, row: Row) -> Run | None:
    """What was measured of a run of a row."""
    found = read_file(path, "delete it")
    return None if found is None else Run(**found | {"row": row.label})


def _text(metric: Metric, run: Run) -> str:
    value = run.measures.get(metric.name)
    return "–" if value is None else metric.text(value)


def _check_data(sets: Sequence[str], root: str | None) -> None:
    """Load every set once: what is missing is told before hours of training."""
    for name in dict.fromkeys(sets):
        if ":" not in name and name not in data.names():  # simulated, by the result itself
            continue
        bare, where = name.rpartition(":")[2], data_root(root)
        try:
            data.load(name, root, **({"only_test": True} if name == "svhn" else {}))
        except DataNotFoundError as error:
            if (url := SOURCES.get(bare)) is None:
                raise
            raise RecordError(f"{bare} is not in {where}: {_fetch(url, where)} gets it") from error


def _fetch(url: str, where: Path) -> str:
    """The command that puts a published file into a folder, unpacked."""
    if url.endswith(".tar.gz"):
        return f"mkdir -p {where} && curl -L {url} | tar xz -C {where}"
    return f"curl -L --create-dirs {url} -o {where / url.rpartition('/')[2]}"


def _check_space(out: Path, missing: Sequence[Told]) -> None:
    """Refuse to begin what cannot be kept."""
    from reproductions.cost import n_weights

    needed = sum(BYTES_OF_WEIGHT * n_weights(told) for told in missing)
    free = shutil.disk_usage(out).free
    if needed > free:
        text = f"{len(missing)} runs need about {size(needed)}, and {out} has {size(free)}"
        raise RecordError(f"{text}: free some, or give another --out")
