"""Numbers on standard output."""

from __future__ import annotations

from collections.abc import Mapping

from gossamer.record import Run

__all__ = ["columns", "print_run"]


def columns(rows: Mapping[str, str]) -> str:
    """Names and what stands beside them, aligned.

    Example:
        >>> print(columns({"nll": "0.3", "accuracy": "0.9"}))
        nll       0.3
        accuracy  0.9
    """
    width = max(map(len, rows), default=0)
    return "\n".join(f"{name.ljust(width)}  {text}".rstrip() for name, text in rows.items())


def print_run(run: Run) -> None:
    """What a run reached, and where it is; once, however many processes trained it."""
    from gossamer.runs.starting import is_first_process

    if not is_first_process():
        return
    result = run.result()
    if result is not None:
        print(columns({name: f"{value:.4f}" for name, value in result["metrics"].items()}))
    print(f"run: {run.folder}")
