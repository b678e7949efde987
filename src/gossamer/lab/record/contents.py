"""What the files of a run folder may hold (``docs/run-folder.md``): keys that are not named here are left alone."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from gossamer.files.schema import Count, Finite, Within

CONFIG, ENVIRONMENT, DATA = "config.toml", "environment.json", "data.json"
METRICS, UPDATES = "metrics.jsonl", "subspace.jsonl"
RESULT, EVALUATION = "result.json", "evaluation.json"


class Sum(TypedDict):
    """The first bytes of a journal: how many, and their SHA-256."""

    bytes: Count
    sha256: str


class Environment(TypedDict, total=False):
    """Of ``environment.json``."""

    time: str
    argv: list[str]
    versions: dict[str, str | None]
    effective: dict[str, Any]


class Data(TypedDict, total=False):
    """Of ``data.json``; ``own`` is checked by those who know what it means."""

    own: dict[str, Any]


class MetricsRow(TypedDict):
    """A line of ``metrics.jsonl`` or ``subspace.jsonl``."""

    step: NotRequired[Count]
    epoch: NotRequired[Finite]


Checksums = TypedDict("Checksums", {"result": str, "metrics.jsonl": Sum, "subspace.jsonl": Sum})


class Result(TypedDict, total=False):
    """Of ``result.json``: a report shows what it understands, others check what they need."""

    checksums: Checksums


class Kind(TypedDict, total=False):
    """A kind of conformal sets or intervals; without a threshold where held-out examples were too few for one."""

    threshold: Finite | None


class Intervals(TypedDict, total=False):
    """Conformal sets or intervals at one level."""

    n_draws: Annotated[int, Within(1)]
    step: Count
    kinds: dict[str, Kind]


class Temperature(TypedDict, total=False):
    """The divisor of the logits that fits the held-out examples."""

    temperature: Annotated[float, Within(1e-9, 1e9)]


class Evaluation(TypedDict, total=False):
    """Of ``evaluation.json``, beside one table per kind of evaluation."""

    checksum: str
    conformal: dict[str, Intervals]
    temperature: dict[str, Temperature]


Files = TypedDict(
    "Files",
    {
        "config.toml": dict[str, Any],
        "environment.json": NotRequired[str],
        "data.json": NotRequired[str],
        "metrics.jsonl": Sum,
        "subspace.jsonl": Sum,
    },
)
"""What a checkpoint keeps of the files beside it."""
