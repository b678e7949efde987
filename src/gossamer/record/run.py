"""A run and its folder."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gossamer.record import files
from gossamer.record.environment import environment
from gossamer.record.files import RecordError, Row

FORMAT = 1
"""The format that this version writes; it reads this one and all earlier ones."""


class Run:
    """A run and its folder, from :meth:`create` or :meth:`open`.

    Example:
        >>> import tempfile
        >>> run = Run.create(Path(tempfile.mkdtemp()) / "first", {"method": "ssvi", "seed": 0})
        >>> run.append_metrics({"step": 1, "loss": 2.3})
        >>> Run.open(run.folder).metrics()
        [{'step': 1, 'loss': 2.3}]
    """

    def __init__(self, folder: Path, config: dict[str, Any], environment: dict[str, Any]) -> None:
        self.folder = folder
        self.config = config
        self.environment = environment

    @classmethod
    def create(cls, folder: Path, config: Mapping[str, Any], data: Mapping[str, str] | None = None) -> Run:
        """Make the folder with ``config.toml`` and ``environment.json``; it must not hold anything yet.

        ``data`` is the fingerprint of what the run trains on, for ``data.json``.
        """
        folder = Path(folder)
        text = files.to_toml({"format": FORMAT} | {key: value for key, value in config.items() if key != "format"})
        try:
            folder.mkdir(parents=True, exist_ok=True)
            taken = any(folder.iterdir())
        except FileExistsError:
            raise RecordError(f"{folder} is a file, not a folder: give another --out") from None
        except OSError as error:
            raise files.unwritable(folder, error) from error
        if taken:
            raise RecordError(f"{folder} is not empty: continue it with --resume {folder}, or give another --out")
        # The configuration is written last, because it makes the folder a run.
        others = {"environment.json": environment()} | ({} if data is None else {"data.json": data})
        try:
            for name, content in others.items():
                files.write_atomically(folder / name, files.to_json(content, indent=2))
            files.write_atomically(folder / "config.toml", text)
        except RecordError:
            for name in others:
                (folder / name).unlink(missing_ok=True)
            raise
        return cls.open(folder)

    @classmethod
    def open(cls, folder: Path) -> Run:
        """Read the folder of an earlier run."""
        folder, path = Path(folder), Path(folder) / "config.toml"
        if not folder.is_dir():
            raise RecordError(f"{folder} does not exist: check the path of the run folder")
        try:
            config = tomllib.loads(path.read_bytes().decode())
        except FileNotFoundError:
            raise RecordError(f"{path} is missing: {folder} is not a run folder, give one that has it") from None
        except OSError as error:
            raise files.unreadable(path, error) from error
        except ValueError as error:  # both broken TOML and broken UTF-8
            raise RecordError(f"{path} is broken: {files.one_line(error)}; restore the file or run again") from error
        _check_format(path, config.pop("format", None))
        notes = files.read_json(folder / "environment.json", "delete it, the run does not need it")
        return cls(folder, config, notes or {})

    @property
    def checkpoint_folder(self) -> Path:
        """The folder of the checkpoints, which may not exist yet."""
        return self.folder / "checkpoint"

    def data(self) -> dict[str, str] | None:
        """The fingerprint of what the run trains on; ``None`` where an earlier version stored none."""
        return files.read_json(self.folder / "data.json", "restore the file, or train again")

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """Add a line to ``metrics.jsonl``."""
        files.append_line(self.folder / "metrics.jsonl", row)

    def append_update(self, row: Mapping[str, Any]) -> None:
        """Add a line to ``subspace.jsonl``: one update of the subspace."""
        files.append_line(self.folder / "subspace.jsonl", row)

    def metrics(self) -> list[Row]:
        """The rows of ``metrics.jsonl``, without an incomplete last one."""
        return [row for _, row in files.read_lines(self.folder / "metrics.jsonl")]

    def updates(self) -> list[Row]:
        """The rows of ``subspace.jsonl``, without an incomplete last one."""
        return [row for _, row in files.read_lines(self.folder / "subspace.jsonl")]

    def rewind(self, step: int) -> None:
        """Delete the rows after ``step`` and incomplete ones, before resuming from the checkpoint of ``step``."""
        for path in (self.folder / "metrics.jsonl", self.folder / "subspace.jsonl"):
            if path.exists():
                kept = b"".join(line for line, row in files.read_lines(path) if row.get("step", step) <= step)
                if len(kept) != path.stat().st_size:
                    files.write_atomically(path, kept)

    def write_result(self, result: Mapping[str, Any]) -> None:
        """Write ``result.json``, which marks the run as finished."""
        text = files.to_json({"format": FORMAT} | dict(result), indent=2)
        files.write_atomically(self.folder / "result.json", files.rows_on_lines(text))

    def result(self) -> dict[str, Any] | None:
        """What :meth:`write_result` wrote, or ``None`` if the run is not finished."""
        path = self.folder / "result.json"
        result = files.read_json(path, "delete it and evaluate the run again")
        if result is not None:
            _check_format(path, result.get("format"))
        return result

    def add_evaluation(self, kind: str, found: Mapping[str, Any]) -> None:
        """Put one kind of evaluation into ``evaluation.json``: entries of other names and kinds stay as they are."""
        content = {"format": FORMAT} | self.evaluation()
        content[kind] = content.get(kind, {}) | dict(found)
        files.write_atomically(self.folder / "evaluation.json", files.to_json(content, indent=1))

    def evaluation(self) -> dict[str, Any]:
        """What ``gossamer evaluate`` measured beyond the metrics of the result, by kind; empty if nothing."""
        path = self.folder / "evaluation.json"
        found = files.read_json(path, "delete it and evaluate the run again")
        if found is None:
            return {}
        _check_format(path, found.pop("format", None))
        return found


def _check_format(path: Path, found: object) -> None:
    if not isinstance(found, int):
        raise RecordError(f"{path} has no format number: restore the file, or run again")
    if found > FORMAT:
        raise RecordError(f"{path} has format {found}, this version of gossamer reads up to {FORMAT}: upgrade gossamer")
