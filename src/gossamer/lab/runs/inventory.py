"""Which runs there are in a folder, and how far each is."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gossamer._text.formats import is_number
from gossamer._text.terminal import Table
from gossamer.lab.record import RecordError, Run

DEPTH = 2  # runs/<run> and runs/<comparison>/<run>


def find_runs(folder: Path | str) -> list[Run]:
    """The runs in a folder and in its comparisons, the oldest first; the folder itself may be a run."""
    folder = Path(folder)
    if not folder.is_dir():
        raise RecordError(f"{folder} does not exist: give the folder of your runs")
    patterns = ["/".join(["*"] * depth + ["config.toml"]) for depth in range(DEPTH + 1)]
    folders = sorted({path.parent for pattern in patterns for path in folder.glob(pattern)})
    return sorted(map(Run.open, folders), key=lambda run: str(run.environment.get("time", "")))


def runs_table(runs: Sequence[Run]) -> Table:
    """A row per run: what it is, how far it is, and the first of its metrics."""
    rows = [[str(run.folder), *_cells(run)] for run in runs]
    return Table("", "", ["run", "method", "data", "seed", "started", "state", "result"], rows, n_labels=7)


def _cells(run: Run) -> list[str]:
    config, started = run.config, str(run.environment.get("time", ""))[:16].replace("T", " ")
    names = [str(config.get("method", "")), _data_name(run), str(config.get("seed", ""))]
    try:
        result = run.result()
    except RecordError:
        return [*names, started, "broken", ""]
    if result is None:
        epoch = next((row.get("epoch", 0) for row in reversed(run.metrics())), 0)
        epochs = run.environment.get("effective", {}).get("epochs", config.get("epochs", "?"))  # of all members
        return [*names, started, f"{_unfinished(run)}, epoch {epoch} of {epochs}", ""]
    return [*names, started, "finished", _headline(result.get("metrics", {}))]


def _unfinished(run: Run) -> str:
    """Whether a run is only not finished, or a trial that its sweep has ended."""
    found = {run.folder.name: "unfinished"}
    if (run.folder.parent / "sweep.json").exists():
        from gossamer_sweep.record import SweepRecord  # which waits for torch

        with suppress(RecordError):
            trials = SweepRecord.read(run.folder.parent).trials
            found |= {trial.folder: trial.state for trial in trials if trial.state != "running"}
    return found[run.folder.name]


def _data_name(run: Run) -> str:
    own = (run.data() or {}).get("own")
    return str(run.config.get("data", "") if own is None else own["name"])


def _headline(metrics: object) -> str:
    """The first of the metrics that is a number: they stand in the order of importance."""
    known = metrics.items() if isinstance(metrics, dict) else ()
    return next((f"{name} {value:.4g}" for name, value in known if is_number(value)), "")
