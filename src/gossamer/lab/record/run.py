"""A run and its folder, and which runs there are in one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gossamer._text.formats import is_number
from gossamer._text.terminal import Table
from gossamer.files import atomic
from gossamer.files.atomic import RecordError, Row
from gossamer.lab.record.contents import (
    CONFIG,
    DATA,
    ENVIRONMENT,
    EVALUATION,
    METRICS,
    RESULT,
    UPDATES,
    Data,
    Environment,
    Evaluation,
    Files,
    Result,
    environment,
)
from gossamer.lab.record.journal import EMPTY, LOCK, Journal, Lock

FREE = ("data_dir", "device", "ranks")  # settings that say where a run trains, not what; its data has a fingerprint
DEPTH = 2  # runs/<run> and runs/<comparison>/<run>
FORMAT = 1
"""The format that this version writes; it reads this one and all earlier ones."""


class Run:
    """A run and its folder, from :meth:`create` or :meth:`open`.

    Example:
        >>> import tempfile
        >>> run = Run.create(Path(tempfile.mkdtemp()) / "first", {"method": "ssvi", "seed": 0})
        >>> run.append({"step": 1, "loss": 2.3})
        >>> Run.open(run.folder).metrics()
        [{'step': 1, 'loss': 2.3}]
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], environment: dict[str, Any], lock: Lock | None = None
    ) -> None:
        self.folder, self.checkpoint_folder = folder, folder / "checkpoint"  # the second may not exist yet
        self.config = config
        self.environment = environment
        self.lock = lock
        self._journals = {name: Journal(folder / name) for name in (METRICS, UPDATES)}

    @classmethod
    def create(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        data: Mapping[str, Any] | None = None,
        lock: Lock | None = None,
        effective: Mapping[str, Any] | None = None,
    ) -> Run:
        """Make the folder with ``config.toml`` and ``environment.json``; it must not hold anything yet.

        Args:
            folder: The run folder.
            config: The settings of the run.
            data: The fingerprint of what the run trains on, for ``data.json``.
            lock: The lock on the folder, held as long as the run is written.
            effective: Values of the settings that were left open, for ``environment.json``.
        """
        folder = Path(folder)
        text = atomic.to_toml({"format": FORMAT} | {key: value for key, value in config.items() if key != "format"})
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise atomic.unwritable(folder, error) from error
        refuse_taken(folder)
        try:
            for path in folder.glob(".*.tmp"):
                path.unlink()
            # The configuration comes first: a resume needs it, and can write the others.
            atomic.write_atomically(folder / CONFIG, text)
            run = cls.open(folder, lock)
            run.complete(data, effective)
        except RecordError:
            for name in (CONFIG, ENVIRONMENT, DATA):
                (folder / name).unlink(missing_ok=True)
            raise
        return run

    @classmethod
    def open(cls, folder: Path, lock: Lock | None = None) -> Run:
        """Read the folder of an earlier run; whoever writes to it holds its lock."""
        folder, path = Path(folder), Path(folder) / CONFIG
        if not folder.is_dir():
            what = "is a file, not the folder of a run" if folder.exists() else "does not exist"
            raise RecordError(f"{folder} {what}: check the path of the run folder")
        config = atomic.read_file(path, "restore the file or run again")
        if config is None:
            raise RecordError(f"{path} is missing: {_why_missing(folder)}")
        _check_format(path, config.pop("format", None))
        notes = atomic.read_file(folder / ENVIRONMENT, "delete it, the run does not need it", Environment)
        return cls(folder, config, notes or {}, lock)

    def complete(self, data: Mapping[str, Any] | None, effective: Mapping[str, Any] | None = None) -> None:
        """Write ``environment.json`` and ``data.json`` where they are missing: a kill may come before them."""
        if not (self.folder / ENVIRONMENT).exists():
            self.environment = environment() | ({} if effective is None else {"effective": dict(effective)})
            atomic.write_atomically(self.folder / ENVIRONMENT, atomic.to_json(self.environment, indent=2))
        if data is not None and not (self.folder / DATA).exists():
            atomic.write_atomically(self.folder / DATA, atomic.to_json(data, indent=2))

    def data(self) -> dict[str, Any] | None:
        """The fingerprint of what the run trains on; ``None`` where an earlier version stored none."""
        found: dict[str, Any] | None = atomic.read_file(self.folder / DATA, "restore the file, or train again", Data)
        return found

    def append(self, row: Mapping[str, Any], file: str = METRICS) -> None:
        """Add a line to ``metrics.jsonl``, or to ``subspace.jsonl`` for an update of the subspace."""
        check_lock(self)
        self._journals[file].append(row)

    def metrics(self) -> list[Row]:
        """The rows of ``metrics.jsonl``, without an incomplete last one."""
        return self._journals[METRICS].rows()

    def updates(self) -> list[Row]:
        """The rows of ``subspace.jsonl``, without an incomplete last one."""
        return self._journals[UPDATES].rows()

    def checksums(self) -> dict[str, Any]:
        """What a checkpoint keeps of the files beside it; waits until the records so far are on the disk."""
        once = {name: _sha256(self.folder / name) for name in (ENVIRONMENT, DATA)}
        return {
            CONFIG: _binding(self.config),
            **{name: digest for name, digest in once.items() if digest is not None},
            **{name: journal.sync() for name, journal in self._journals.items()},
        }

    def check(self, known: Mapping[str, Any]) -> None:
        """Raise if a file differs from what :meth:`checksums` found; records may have grown since."""
        fix = "delete the folder, and --resume trains the run again from its first step"
        atomic.checked(known, Files, self.checkpoint_folder, fix)
        before, now = known[CONFIG], _binding(self.config)
        for key in before | now:
            if before.get(key) != now.get(key):
                raise RecordError(
                    f"{self.folder / CONFIG} was changed since the checkpoint: {key} was {before.get(key)!r} and is "
                    f"{now.get(key)!r}; restore it, or train a new run with --config"
                )
        for name in (ENVIRONMENT, DATA):
            found = _sha256(self.folder / name)
            if found != known.get(name) and not (name == ENVIRONMENT and found is None):
                raise RecordError(f"{self.folder / name} was changed since the checkpoint: restore it")
        for name, journal in self._journals.items():
            journal.check(known[name])

    def rewind(self, step: int, known: Mapping[str, Any] | None = None) -> None:
        """Delete the rows after ``step`` and incomplete ones, before resuming from the checkpoint of ``step``.

        ``known`` are the :meth:`checksums` in that checkpoint; those of earlier versions have none.
        """
        for name, journal in self._journals.items():
            if known is not None or step == 0:
                journal.cut(EMPTY if known is None else known[name])
            elif journal.path.exists():
                kept = b"".join(line for line, row in journal.lines() if row.get("step", step) <= step)
                if len(kept) != journal.path.stat().st_size:
                    atomic.write_atomically(journal.path, kept)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json``, which marks the run as finished, with checksums of itself and the records."""
        check_lock(self)
        content = json.loads(atomic.to_json({"format": FORMAT} | dict(result)))
        records = {name: journal.sync() for name, journal in self._journals.items()}
        sums = {"checksums": {"result": _digest(content), **records}}
        text = atomic.to_json(content | sums, indent=2)
        atomic.write_atomically(self.folder / RESULT, atomic.rows_on_lines(text))
        check_lock(self)

    def result(self) -> dict[str, Any] | None:
        """What :meth:`write_result` wrote, or ``None`` if the run is not finished."""
        path = self.folder / RESULT
        result: dict[str, Any] | None = atomic.read_file(path, "delete it, and --resume writes it again", Result)
        if result is not None:
            _check_format(path, result.get("format"))
            _check_result(self, path, result)
        return result

    def add_evaluation(self, kind: str, found: Mapping[str, Any]) -> None:
        """Put one kind of evaluation into ``evaluation.json``: entries of other names and kinds stay as they are."""
        content = {"format": FORMAT} | self.evaluation()
        fix = "delete it and evaluate the run again"
        known = atomic.checked(content.get(kind, {}), dict, f"{self.folder / EVALUATION}: {kind}", fix)
        content[kind] = known | dict(found)
        content = json.loads(atomic.to_json(content))
        text = atomic.to_json(content | {"checksum": _digest(content)}, indent=1)
        atomic.write_atomically(self.folder / EVALUATION, text)

    def evaluation(self) -> dict[str, Any]:
        """What ``gossamer evaluate`` measured beyond the metrics of the result, by kind; empty if nothing."""
        path, fix = self.folder / EVALUATION, "delete it and evaluate the run again"
        found: dict[str, Any] | None = atomic.read_file(path, fix, Evaluation)
        if found is None:
            return {}
        known = found.pop("checksum", None)  # earlier versions wrote none
        if known not in (None, _digest(found)):
            raise RecordError(f"{path} was changed after it was measured: {fix}")
        _check_format(path, found.pop("format", None))
        return found


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


def refuse_taken(folder: Path) -> None:
    """Raise if a folder holds anything but what a process that was killed while making it may leave."""
    found = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    if {name for name in found if not name.endswith(".tmp")} - {LOCK, ENVIRONMENT, DATA}:
        raise RecordError(f"{folder} is not empty: continue it with --resume {folder}, or give another --out")


def check_lock(run: Run) -> None:
    """Raise if the folder was removed or replaced since its lock was taken."""
    if run.lock is not None:
        run.lock.check()


def _check_result(run: Run, path: Path, result: dict[str, Any]) -> None:
    """Compare with the checksums in the file, and take these out; earlier versions wrote none."""
    known = result.pop("checksums", None)
    if known is None:
        return
    if known["result"] != _digest(result):
        raise RecordError(f"{path} was changed after the run: delete it, and --resume writes it again")
    for name, journal in run._journals.items():
        if journal.path.exists():  # a finished run may be kept without its records
            journal.check(known[name])


def _why_missing(folder: Path) -> str:
    """Why a folder has no configuration: a process that is killed early leaves it with a lock, or with nothing."""
    if (folder / LOCK).exists():
        return "nothing was trained yet, give the command that began it again"
    if not any(folder.iterdir()):
        return "the folder is empty, give the command that began it again or another folder"
    return f"{folder} is not a run folder, give one that has it"


def _binding(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that must not change between two parts of a run."""
    return {key: value for key, value in config.items() if key not in FREE}


def _sha256(path: Path) -> str | None:
    content = atomic.read_bytes(path)
    return None if content is None else hashlib.sha256(content).hexdigest()


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _check_format(path: Path, found: object) -> None:
    if type(found) is not int:
        raise RecordError(f"{path} has no format number: restore the file, or run again")
    if found > FORMAT:
        raise RecordError(f"{path} has format {found}, this version of gossamer reads up to {FORMAT}: upgrade gossamer")


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
        return [*names, started, f"unfinished, epoch {epoch} of {epochs}", ""]
    return [*names, started, "finished", _headline(result.get("metrics", {}))]


def _data_name(run: Run) -> str:
    own = (run.data() or {}).get("own")
    return str(run.config.get("data", "") if own is None else own["name"])


def _headline(metrics: object) -> str:
    """The first of the metrics that is a number: they stand in the order of importance."""
    known = metrics.items() if isinstance(metrics, dict) else ()
    return next((f"{name} {value:.4g}" for name, value in known if is_number(value)), "")
