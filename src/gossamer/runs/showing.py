"""A run in a few lines."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from gossamer.record import RecordError, Run

__all__ = ["show"]


def show(folder: Path | str) -> str:
    """A run in a few lines: what it was told, how far it is, what it reached.

    Example:
        >>> import tempfile
        >>> run = Run.create(Path(tempfile.mkdtemp()) / "first", {"method": "ssvi", "epochs": 3})
        >>> print(show(run.folder).splitlines()[1])
          settings   method=ssvi  epochs=3
    """
    run = Run.open(Path(folder))
    rows = {"settings": {key: value for key, value in run.config.items() if key != "options"}}
    rows |= {"options": run.config.get("options") or {}}
    lines = [f"  {name:<11}" + "  ".join(f"{k}={v}" for k, v in row.items()) for name, row in rows.items() if row]
    lines.append("  made by    " + "  ".join(f"{key} {value}" for key, value in _versions(run).items()))
    result = run.result()
    return "\n".join([str(run.folder), *lines, *(_progress(run) if result is None else _result(run, result))])


def _progress(run: Run) -> list[str]:
    rows = run.metrics()
    last = f"epoch {rows[-1]['epoch']} of {run.config.get('epochs')}" if rows else "no epoch is finished"
    return [f"  unfinished {last}; continue with: gossamer train --resume {shlex.quote(str(run.folder))}"]


def _result(run: Run, result: dict[str, Any]) -> list[str]:
    try:
        cost = result["cost"]
        return [
            "  test       " + "  ".join(f"{key} {value:.4g}" for key, value in result["metrics"].items()),
            f"  cost       {cost['active_parameters']:,} of {cost['total_parameters']:,} weights active  "
            f"{cost['seconds']:.1f} s of training  checkpoint {cost['checkpoint_bytes']:,} bytes",
        ]
    except (KeyError, TypeError, ValueError) as error:
        path = run.folder / "result.json"
        raise RecordError(f"{path} is broken ({error!r}): delete it and --resume the run") from error


def _versions(run: Run) -> dict[str, Any]:
    known = run.environment | run.environment.get("versions", {})
    return {key: known[key] for key in ("gossamer", "torch", "python") if known.get(key)}
