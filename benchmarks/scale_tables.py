"""Tables of the page on scale, from the file that ``python -m benchmarks.scale`` writes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from gossamer._text.formats import Format, count, integer, number, plain, size, times
from gossamer._text.tables import Table

__all__ = ["KIND", "scale_tables"]

KIND = "scale"


def scale_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """Constants, the prediction of the largest network, the check by ranks, and the answer."""
    alone = [*content["alone"], content["billion"]]
    return {
        "scale-memory": _memory(alone),
        "scale-times": _times(alone, content),
        "scale-linear": _linear(content),
        "scale-bytes": _bytes(content["checks"]),
        "scale-seconds": _seconds(content["checks"]),
        "scale-answer": _answer(content),
    }


def _memory(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("weights", "layers", "state, per active weight", "checkpoint, per active weight", "scratch of an update",
            "scratch of a checkpoint", "peak of the conversion")  # fmt: skip
    cells = [
        [
            integer(row["weights"]),
            integer(row["layers"]),
            f"{row['state_bytes'] / row['active']:.1f} B",
            f"{row['checkpoint_bytes'] / row['active']:.1f} B",
            _of(row["update_peak_bytes"], size),
            _of(row["save_peak_bytes"], size),
            plain(size(row["convert_peak_bytes"])) + (", by layer" if row["by_layer"] else ""),
        ]
        for row in rows
    ]
    return Table("", "", head, cells)


def _times(rows: Sequence[Mapping[str, Any]], content: Mapping[str, Any]) -> Table:
    head = ("weights", "layers", f"step, {content['few_rows']} rows", f"step, {content['rows']} rows",
            "step, ns per active weight and row", "update", "update, ns per weight", "save", "load")  # fmt: skip
    more = content["rows"] - content["few_rows"]
    cells = []
    for row in rows:
        slope = (statistics.median(row["step_seconds"]) - statistics.median(row["step_seconds_few"])) / more
        update = statistics.median(row["update_seconds"])
        cells.append(
            [
                integer(row["weights"]),
                integer(row["layers"]),
                _of(row["step_seconds_few"]),
                _of(row["step_seconds"]),
                f"{1e9 * slope / row['active']:.2f}",
                _of(row["update_seconds"]),
                f"{1e9 * update / row['weights']:.1f}",
                _of(row["save_seconds"]),
                _of(row["load_seconds"]),
            ]
        )
    return Table("", "", head, cells)


def _linear(content: Mapping[str, Any]) -> Table:
    """What a tenth of the largest network predicted for it, and what was measured."""
    cells = []
    for key, (name, form) in PREDICTED.items():
        found, told = content["billion"][key], content["extrapolated"][key]
        values = found if isinstance(found, list) else [found]
        cells.append([name, plain(form(told)), _of(values, form), times(statistics.median(values) / told)])
    return Table("", "", ("figure", "extrapolated", "measured", "measured / extrapolated"), cells)


def _bytes(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("processes", "weights", "bytes per step", "model", "bytes per update", "model", "proposed / k",
            "candidates / k", "scratch of an update", "model")  # fmt: skip
    cells = [
        [
            integer(row["ranks"]),
            integer(row["weights"]),
            integer(row["bytes_per_step"]),
            integer(row["predicted_bytes_per_step"]),
            integer(row["bytes_per_update"]),
            integer(row["predicted_bytes_per_update"]),
            f"{row['proposed']:.2f}",
            f"{row['candidates']:.2f}",
            _of(row["update_peak_bytes"], size),
            "–" if row["predicted_update_peak_bytes"] is None else plain(size(row["predicted_update_peak_bytes"])),
        ]
        for row in rows
    ]
    return Table("", "", head, cells)


def _seconds(rows: Sequence[Mapping[str, Any]]) -> Table:
    head = ("processes", "wall / CPU time", "step", "model", "measured / model", "update")
    cells = []
    for row in rows:
        if row["step_seconds"] is not None:
            told, found = row["predicted_step_seconds"], row["step_seconds"]
            ratio = times(statistics.median(found) / told)
            crowding, update = f"{row['crowding']:.1f}", _of(row["update_seconds"])
            cells.append([integer(row["ranks"]), crowding, _of(found), plain(_time(told)), ratio, update])
    return Table("", "", head, cells)


def _answer(content: Mapping[str, Any]) -> Table:
    """The network on several devices: what was measured at its size, and what the model says."""
    own, told, devices = content["billion"], content["extrapolated"], content["devices"]
    measured, model, linear = "measured", "model, checked by processes", "extrapolated"
    rate = plain(size(content["link"]["bytes_per_second"]))
    link = f"model, {rate}/s and {1e6 * content['link']['latency']:.0f} µs assumed"
    rows = [
        ("weights, active", f"{plain(count(own['weights']))}, {plain(count(own['active']))}", "given"),
        ("memory of a device between updates", plain(size(own["state_bytes"])), measured),
        ("more during an update, one device", _of(own["update_peak_bytes"], size), measured),
        ("more during an update, two devices", _of(_shared(content)["update_peak_bytes"], size), measured),
        (f"more during an update, {devices} devices", plain(size(told["shared_update_peak_bytes"])), linear),
        ("conversion of a whole dense network, peak", plain(size(told["convert_peak_bytes"])), linear),
        ("conversion layer by layer, peak", plain(size(own["convert_peak_bytes"])), measured),
        ("a device sends in a step", plain(size(told["sent_per_step"])), model),
        ("… dense VI", plain(size(told["dense_vi_sent_per_step"])), "model"),
        ("time of these messages", plain(_time(told["transfer_seconds_per_step"])), link),
        ("a device sends in an update", plain(size(told["sent_per_update"])), f"{model}; candidates of random targets"),
        ("… of which a bit per weight", plain(size(told["mask_sent_per_update"])), model),
        ("… dense gradients instead", plain(size(told["dense_update_sent"])), "model"),
        ("time of these messages", plain(_time(told["transfer_seconds_per_update"])), link),
        (f"step of {content['rows']} rows, one CPU thread", _of(own["step_seconds"]), measured),
        ("update, one CPU thread", _of(own["update_seconds"]), measured),
        ("… in steps", integer(_ratio(own, "update_seconds", "step_seconds")), measured),
        ("checkpoint", plain(size(own["checkpoint_bytes"])), measured),
        ("save, load", f"{_of(own['save_seconds'])}, {_of(own['load_seconds'])}", measured),
    ]
    return Table("", "", ("figure", "value", "how"), rows, n_labels=3)


def _shared(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The largest network on two processes."""
    own: Mapping[str, Any] = next(row for row in content["checks"] if row["weights"] == content["billion"]["weights"])
    return own


def _ratio(row: Mapping[str, Any], above: str, below: str) -> float:
    """Of two medians."""
    return float(statistics.median(row[above]) / statistics.median(row[below]))


def _time(seconds: float) -> str:
    """Three digits, in microseconds, milliseconds or seconds."""
    factor, unit = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if abs(seconds) * f >= 1), (1e6, "µs"))
    return f"{number(seconds * factor)} {unit}"


def _of(values: Sequence[float], form: Format = _time) -> str:
    """The median, and the least and the most where there are several."""
    middle = plain(form(statistics.median(values)))
    return middle if len(values) < 2 else f"{middle} ({plain(form(min(values)))} … {plain(form(max(values)))})"


PREDICTED: dict[str, tuple[str, Format]] = {
    "state_bytes": ("state", size),
    "step_seconds": ("step", _time),
    "update_seconds": ("update", _time),
    "update_peak_bytes": ("scratch of an update", size),
    "checkpoint_bytes": ("checkpoint", size),
    "save_seconds": ("save", _time),
    "load_seconds": ("load", _time),
}
