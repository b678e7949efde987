"""Maps of uncertainty, for inputs in a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gossamer._text.formats import is_number, number
from gossamer.lab.report.axes import Axis
from gossamer.lab.report.charts import Words
from gossamer.lab.report.classes import class_names
from gossamer.lab.report.fields import Cloud, heat
from gossamer.lab.report.figure import Figure
from gossamer.lab.report.runs import LoadedRun

_FIELDS = {
    "entropy": ("Entropy", "nats; all uncertainty"),
    "mutual_information": ("Mutual information", "nats; the part on which drawn networks disagree"),
    "std": ("Std", "in units of the target; all uncertainty"),
    "epistemic_std": ("Epistemic std", "in units of the target; the part on which drawn networks disagree"),
}


def figures(run: LoadedRun) -> list[Figure]:
    """A map of each kind of uncertainty, with test points on it."""
    given = run.result.get("map")
    if not isinstance(given, Mapping):
        return []
    side, x, y = given.get("side"), given.get("x"), given.get("y")
    if not isinstance(side, int) or not all(isinstance(ends, list) and len(ends) == 2 for ends in (x, y)):
        return []
    clouds = _clouds(given.get("points"), run)
    found = [(name, given.get(name)) for name in _FIELDS]
    axes = Axis("Input 1", number, *x, tight=True), Axis("Input 2", number, *y, tight=True)  # type: ignore[misc]
    return [
        _map(name, values, side, axes, clouds)
        for name, values in found
        if isinstance(values, list) and len(values) == side**2 and all(map(is_number, values)) and max(values) > 1e-6
    ]


def _map(
    name: str, values: Sequence[float], side: int, axes: tuple[Axis, Axis], clouds: Sequence[tuple[str, Cloud]]
) -> Figure:
    title, unit = _FIELDS[name]
    least = number(min(values), 2) if min(values) > 0.001 * max(values) else "0"
    caption = f"From {least} (clear) to {number(max(values), 2)} (strongest colour) {unit}."
    words = Words(f"map-{name.replace('_', '-')}", f"Map of {title.lower()}", caption)
    return Figure(words.slug, words.title, caption, heat(values, side, axes, clouds, words))


def _clouds(points: Any, run: LoadedRun) -> list[tuple[str, Cloud]]:
    """Test points by class."""
    if not isinstance(points, Mapping) or not all(isinstance(points.get(key), list) for key in "xy"):
        return []
    labels = points.get("label")
    if not isinstance(labels, list):
        return [("test data", Cloud(list(zip(points["x"], points["y"], strict=True)), (), 5))]
    names, rows = class_names(run), list(zip(points["x"], points["y"], labels, strict=True))
    return [
        (names[k] if k < len(names) else str(k), Cloud([(x, y) for x, y, label in rows if label == k], (), k))
        for k in sorted(set(labels))
    ]
