"""From a plan to stored results: part by part, each written as soon as it is done, none measured twice."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gossamer import __version__
from gossamer.record import RecordError, write_atomically
from gossamer.record.environment import environment
from reproductions._pages import document
from reproductions._progress import Progress
from reproductions._results import Part, Results, Row, Settings

if TYPE_CHECKING:
    from reproductions import Reproduction

__all__ = ["Tick", "reproduce"]

Tick = Callable[[int, int, str], None]
"""(steps done, steps in all, words)."""

FROM_RECORD = ("time", "git_commit", "python", "cpu", "cpu_count", "memory_bytes", "gpu")


def reproduce(
    name: str, chosen: Reproduction, plan: Sequence[Settings], out: Path, *, quiet: bool = False
) -> tuple[Results, list[Path]]:
    """Measure the parts of a plan that are not in the folder yet, and write results, tables and picture.

    Args:
        name: What is reproduced.
        chosen: Its file, see :func:`reproductions.find`.
        plan: Settings of the parts.
        out: The folder: ``results.json`` after each part, ``table.md`` and ``plot.svg`` at the end.
        quiet: Whether to show no progress.

    Returns:
        The results of the plan alone (the file keeps what other settings gave), and the files written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RecordError(f"{out} cannot be the folder of results: {error.strerror}; give another --out") from error
    stored = Results.read(out / "results.json", name)
    with Progress(len(plan), quiet=quiet) as progress:
        for settings in plan:
            progress.begin(settings)
            if stored.find(settings) is None:
                stored.add(_measured(chosen.measure, settings, progress.tick))
                stored.write(out / "results.json")
            progress.end()
    results = Results(name, [part for settings in plan if (part := stored.find(settings)) is not None])
    write_atomically(out / "table.md", document(results, chosen))
    chosen.plot(results, out / "plot.svg")
    return results, [out / file for file in ("results.json", "table.md", "plot.svg")]


def _measured(measure: Callable[[Settings, Tick], list[Row]], settings: Settings, tick: Tick) -> Part:
    start = time.perf_counter()
    rows = measure(settings, tick)
    return Part(settings, _surroundings(), round(time.perf_counter() - start, 2), rows)


def _surroundings() -> dict[str, Any]:
    known = environment()
    own = {"gossamer": __version__, "torch": torch.__version__, "threads": torch.get_num_threads()}
    return {key: known[key] for key in FROM_RECORD} | own
