"""The result of a run and the record of its data, checked as far as those who compare, show and predict need it."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from gossamer.data.own.record import check_record
from gossamer.files.atomic import checked
from gossamer.files.schema import Count, Finite
from gossamer.lab.record import RecordError, Run
from gossamer.lab.record.contents import DATA, RESULT


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


def stored_result(run: Run) -> dict[str, Any] | None:
    """The result of a run with its metrics and costs; ``None`` if the run is not finished."""
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
