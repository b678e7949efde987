"""The folder of a run: a name for a new one, what it holds, and the refusal of one that holds something else."""

import itertools
import shlex
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import date
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from gossamer import methods
from gossamer._text.names import file_name
from gossamer.data import changed, describe_data, fingerprint
from gossamer.data.own.record import check_record
from gossamer.files.atomic import checked, unwritable
from gossamer.files.schema import Count, Finite
from gossamer.lab.record import RecordError, Run
from gossamer.lab.record.contents import DATA, RESULT
from gossamer.lab.record.run import FREE, refuse_taken
from gossamer.lab.runs.settings import FORMER, Settings, suited, with_defaults, with_inputs
from gossamer.types import Task


def new_folder(settings: Settings) -> Path:
    """A folder that nobody has: the date, method, data and seed, and a number if that is taken."""
    name = f"{date.today().isoformat()}-{settings.method}-{settings.data_name}-{settings.seed}"
    for number in itertools.count(1):
        folder = Path("runs", file_name(name) + (f"-{number}" if number > 1 else ""))
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise unwritable(folder, error) from error
        return folder
    raise AssertionError("unreachable")


def settings_of(run: Run, **changes: object) -> Settings:
    """The settings of a run, with changes."""
    try:
        return Settings.from_config(run.config | changes, recorded=True)
    except ValueError as error:
        raise RecordError(f"{run.folder / 'config.toml'}: {error}") from error


def stored_result(run: Run) -> dict[str, Any] | None:
    """The result of a run, its metrics and costs checked; ``None`` if the run is not finished."""
    result = run.result()
    if result is not None:
        for hint in (_Outcome, _Numbers):
            checked(result, hint, run.folder / RESULT, "delete it, and --resume writes it again")
    return result


def stored_record(run: Run) -> dict[str, Any] | None:
    """How data of the user's own became numbers; ``None`` for a published data set."""
    own: dict[str, Any] | None = (run.data() or {}).get("own")
    try:
        return None if own is None else check_record(own, run.folder / DATA)
    except ValueError as error:
        raise RecordError(str(error)) from error


def notes_on(task: Task) -> dict[str, Any]:
    """What ``data.json`` says: checksums, and how data of the user's own became numbers."""
    return fingerprint(task) | ({} if task.record is None else {"own": task.record})


def refuse_begun(folder: Path) -> None:
    """Raise if a folder holds a run, or anything else."""
    if not (folder / "config.toml").exists():
        return refuse_taken(folder)
    quoted = shlex.quote(str(folder))
    is_finished = (folder / "result.json").exists()
    way_on = f"gossamer show {quoted} shows it" if is_finished else f"gossamer train --resume {quoted} continues it"
    kind = "a finished" if is_finished else "an unfinished"
    raise RecordError(f"{folder} holds {kind} run: {way_on}; a new one needs another --out")


def refuse_other_settings(folder: Path, settings: Settings) -> None:
    """Raise if a run with other settings has begun in a folder."""
    if not (folder / "config.toml").exists():
        return
    # Settings that were added since the version of the run have their defaults there.
    earlier = {item.name: item.default for item in fields(Settings) if item.default is not MISSING}
    recorded = {key: value for key, value in Run.open(folder).config.items() if key not in FORMER}
    config = {**earlier, "rounds": 1, **recorded}
    if settings.is_open:
        settings = suited(settings, with_inputs(settings.load_task(), stored_record(Run.open(folder)) or {}))
    options = with_defaults(settings.method, methods.as_recorded(settings.method, config.get("options", {})))
    before, asked = _flat(config | {"options": options}), _flat(settings.to_config())
    for key in asked | before:
        if before.get(key) != asked.get(key) and key not in FREE:
            raise RecordError(
                f"{folder} holds a run with {key} {before.get(key)}, not {asked.get(key)}: give another --out, or "
                "delete it"
            )


def refuse_other_data(run: Run, task: Task) -> None:
    """Raise if the data differ from those that a run began with."""
    own, stored = stored_record(run), run.data() or {}
    stored.pop("own", None)
    differs = changed(stored, fingerprint(task)) if stored else []
    if differs and own is not None and task.record is not None:
        raise RecordError(_other_file(run, own["source"], task.record["source"]))
    if differs:
        raise RecordError(
            f"{run.folder} began with other data: {', '.join(differs)} of {task.name} differ from its data.json; give "
            "the folder of the data it began with (GOSSAMER_DATA, or data_dir in config.toml), or train a new run"
        )


def _other_file(run: Run, before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    sizes = [f"{source['bytes']:,} bytes, SHA-256 {source['sha256'][:12]}…" for source in (before, now)]
    return (
        f"{now['path']} is not what {run.folder} was trained on: {sizes[0]} then, {sizes[1]} now. Restore the file, "
        "name where it is with --data, or train a new run"
    )


def show(folder: Path | str) -> str:
    """A run in a few lines: its settings, how far it is, what it reached.

    Example:
        >>> import tempfile
        >>> run = Run.create(Path(tempfile.mkdtemp()) / "first", {"method": "ssvi", "epochs": 3})
        >>> print(show(run.folder).splitlines()[1])
          settings   method=ssvi  epochs=3
    """
    run = Run.open(Path(folder))
    rows = {"settings": {key: value for key, value in run.config.items() if key != "options"}}
    rows |= {"options": run.config.get("options") or {}, "effective": run.environment.get("effective") or {}}
    lines = [f"  {name:<11}" + "  ".join(f"{k}={v}" for k, v in row.items()) for name, row in rows.items() if row]
    known = run.environment | run.environment.get("versions", {})
    made_by = [f"{key} {known[key]}" for key in ("gossamer", "torch", "python") if known.get(key)]
    lines.append("  made by    " + "  ".join(made_by))
    own = stored_record(run)
    if own is not None:
        lines += [f"  data       {describe_data(own)}".replace("\n", "\n  ")]
    result = stored_result(run)
    return "\n".join([str(run.folder), *lines, *(_position(run) if result is None else _outcome(run, result))])


def _position(run: Run) -> list[str]:
    rows = run.metrics()
    epochs = run.environment.get("effective", {}).get("epochs", run.config.get("epochs"))  # of all members
    last = f"epoch {rows[-1].get('epoch')} of {epochs}" if rows else "no epoch is finished"
    return [f"  unfinished {last}; continue with: gossamer train --resume {shlex.quote(str(run.folder))}"]


def _outcome(run: Run, result: dict[str, Any]) -> list[str]:
    members = run.environment.get("effective", {}).get("members", 1)
    of_all = f" in {members} networks" if members != 1 else ""
    cost, known = result["cost"], {key: value for key, value in result["metrics"].items() if value is not None}
    return [
        "  test       " + "  ".join(f"{key} {value:.4g}" for key, value in known.items()),
        f"  cost       {cost['active_parameters']:,} of {cost['total_parameters']:,} weights active{of_all}  "
        f"{cost['seconds']:.1f} s of training  checkpoint {cost['checkpoint_bytes']:,} bytes",
    ]


class _Cost(TypedDict):
    active_parameters: Count
    total_parameters: Count
    checkpoint_bytes: Count
    seconds: Finite


class _Outcome(TypedDict):
    model: str
    cost: _Cost


class _Numbers(TypedDict):
    metrics: dict[str, float | None]
    cost: dict[str, float | None]
    shift: NotRequired[dict[str, float | None]]


def _flat(config: Mapping[str, Any]) -> dict[str, Any]:
    return {**config, **config.get("options", {}), "options": None}
