"""Run folders as the report reads them, and groups of runs that differ only by their seed."""

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from gossamer._text.formats import is_number, with_error
from gossamer.lab.record import Run
from gossamer.lab.report.parts import Point
from gossamer.metrics import Metric

_MOST_CLASSES = 10_000  # a file may say anything
_NOT_OPTIONS = {"seed", "out", "device", "data_dir", "workers", "threads"}
"""Keys of a configuration that may differ between repetitions of the same experiment."""


@dataclass(frozen=True)
class LoadedRun:
    """The content of a run folder."""

    folder: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    result: Mapping[str, Any]
    evaluation: Mapping[str, Any]  # what was measured after the training

    @property
    def finished(self) -> bool:
        """Whether there is a result."""
        return bool(self.result)

    def name(self, key: str) -> str:
        """The name of the method, data or model; empty if it is not recorded."""
        value = self.result.get(key, self.config.get(key, ""))
        return str(value.get("name", "") if isinstance(value, Mapping) else value)

    def value(self, key: str) -> float | None:
        """A measurement, if the run has it; ``auroc@SET/SCORE`` is that of a set from outside."""
        name, _, place = key.partition("@")
        inputs, _, score = place.rpartition("/")
        scores = mapping(mapping(self.evaluation.get("ood")).get(inputs)).get("scores")
        for part in (self.result.get("metrics"), self.result.get("cost"), mapping(scores).get(score)):
            measured = mapping(part).get(name)
            if is_number(measured):
                return float(measured)
        return None

    @property
    def measured(self) -> list[str]:
        """Names of the metrics of the result that have a value."""
        return [key for key, value in mapping(self.result.get("metrics")).items() if is_number(value)]

    def last(self, key: str) -> float | None:
        """The latest recorded value of a metric."""
        return next((float(row[key]) for row in reversed(self.metrics) if is_number(row.get(key))), None)

    def points(self, key: str, along: str = "step") -> list[Point]:
        """A metric along the training, where both coordinates are finite."""
        rows = ((row.get(along), row.get(key)) for row in self.metrics)
        return [(float(x), float(y)) for x, y in rows if is_number(x) and is_number(y)]

    def curve(self, name: str, *keys: str) -> list[list[float]] | None:
        """Lists of a curve of the result, ``edges`` one longer than the others; missing numbers are NaN."""
        curve = mapping(mapping(self.result.get("curves")).get(name))
        lists = [curve.get(key) for key in keys]
        if not all(isinstance(one, list) and one for one in lists):
            return None
        numbers = [[float(v) if is_number(v) else math.nan for v in one] for one in lists if one]
        lengths = {len(one) - (key == "edges") for key, one in zip(keys, numbers, strict=True)}
        edges = [one for key, one in zip(keys, numbers, strict=True) if key == "edges"]
        whole = all(math.isfinite(v) for one in edges for v in one) and all(one == sorted(set(one)) for one in edges)
        return numbers if len(lengths) == 1 and min(lengths) > 0 and whole else None

    def rows(self, name: str, *keys: str) -> list[tuple[float, ...]]:
        """The places of a curve at which all these lists have finite numbers."""
        lists = self.curve(name, *keys) or []
        return [row for row in zip(*lists, strict=True) if all(map(math.isfinite, row))]

    @property
    def class_names(self) -> list[str]:
        """Names by class number; numbers where the result has no names."""
        names, pairs = self.result.get("class_names"), self.rows("confusion", "label", "predicted")
        if isinstance(names, list) and names:
            return [str(name) for name in names]
        return [str(k) for k in range(min(_MOST_CLASSES, int(max(map(max, pairs), default=-1.0)) + 1))]

    @property
    def layers(self) -> list[Mapping[str, Any]]:
        """Layers with known numbers of active and of all weights."""
        layers = self.result.get("layers")
        known = [mapping(layer) for layer in layers] if isinstance(layers, list) else []
        return [
            one for one in known if is_number(one.get("active")) and is_number(one.get("total")) and one["total"] > 0
        ]

    @property
    def command(self) -> str:
        """The command that started the run, quoted for a shell."""
        argv = self.environment.get("argv")
        if not isinstance(argv, list) or not argv:
            return ""
        program, *rest = map(str, argv)
        start = ["python", program] if program.endswith(".py") else [Path(program).stem]
        return shlex.join([*start, *rest])

    @property
    def settings(self) -> dict[str, Any]:
        """The configuration, inner keys joined by dots."""
        return flat(self.config)

    @property
    def options(self) -> dict[str, Any]:
        """The settings without the seed and the rest that may differ between repetitions."""
        return {key: value for key, value in self.settings.items() if key not in _NOT_OPTIONS}


@dataclass(frozen=True)
class Group:
    """Runs of the same method with the same options."""

    method: str
    detail: str  # how it differs from the other groups of its method
    label: str
    colour: int
    runs: Sequence[LoadedRun]

    def text(self, metric: Metric) -> str:
        """The measurement, mean ± standard error; a dash if no run has it."""
        mean = self.mean(metric.name)
        return "–" if mean is None else with_error(mean, self.error(metric.name), metric.format)

    def values(self, key: str) -> list[float]:
        """The measurement in all runs that have it."""
        return [value for run in self.runs if (value := run.value(key)) is not None]

    def mean(self, key: str) -> float | None:
        """Mean over runs."""
        values = self.values(key)
        return fmean(values) if values else None

    def error(self, key: str) -> float | None:
        """Standard error of the mean over runs, s / √n; a single run has none."""
        values = self.values(key)
        return stdev(values) / math.sqrt(len(values)) if len(values) > 1 else None


def read(folder: Path) -> LoadedRun:
    """Read a run folder; another folder is a :class:`~gossamer.lab.record.RecordError`."""
    run = Run.open(Path(folder))
    result = run.result() or {}
    return LoadedRun(run.folder, run.config, run.environment, run.metrics(), result, run.evaluation())


def group(runs: Sequence[LoadedRun]) -> list[Group]:
    """Runs by method and options, in order of appearance, labelled by their differences."""
    kinds: dict[str, list[LoadedRun]] = {}
    for run in runs:
        key = json.dumps([run.name("method"), run.options], sort_keys=True, default=str)
        kinds.setdefault(key, []).append(run)
    groups: list[Group] = []
    firsts = [some[0] for some in kinds.values()]
    alike = len({first.name("method") for first in firsts}) == 1
    for first, some in zip(firsts, kinds.values(), strict=True):
        method, detail = first.name("method") or first.folder.name, _detail(first, firsts)
        label = detail if alike and detail else ", ".join(filter(None, [method, detail]))
        groups.append(Group(method, detail, label, len(groups), some))
    return groups


def _detail(first: LoadedRun, firsts: Sequence[LoadedRun]) -> str:
    rivals = [other for other in firsts if other.name("method") == first.name("method")]
    keys = sorted({key for rival in rivals for key in rival.options} - {"method"})
    different = [key for key in keys if len({repr(rival.options.get(key)) for rival in rivals}) > 1]
    return ", ".join(f"{key.rsplit('.', 1)[-1]} {first.options[key]}" for key in different if key in first.options)


def flat(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The table without tables in it: their keys follow those of the outer ones after a dot."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        values |= flat(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return values


def mapping(value: object) -> Mapping[str, Any]:
    """The value, if it is a table of a file; else an empty one."""
    return value if isinstance(value, Mapping) else {}
