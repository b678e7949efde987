"""Numbers on standard output."""

from __future__ import annotations

from gossamer.record import Run
from gossamer.tables import columns

__all__ = ["print_run"]


def print_run(run: Run) -> None:
    """What a run reached, and where it is; once, however many processes trained it."""
    from gossamer.runs.run import is_first_process

    if not is_first_process():
        return
    result = run.result()
    if result is not None:
        print(columns({name: f"{value:.4f}" for name, value in result["metrics"].items()}))
    print(f"run: {run.folder}")
