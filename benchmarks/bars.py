"""What the kernels must reach: a change that misses one of these figures has made something worse. See ``--check``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from benchmarks.layers import FORWARD, RESIDUAL, TRAINING
from benchmarks.measurements import (
    DENSE,
    DRAWN,
    GRADIENT,
    PLAIN,
    RELEASED,
    SSVI,
    Footprint,
    Measurements,
    Timing,
    TrainingCost,
    sparse,
)
from benchmarks.networks import MLP, RESNET
from benchmarks.timing import Spread, speedup, spread

__all__ = ["BARS", "AcceptanceBar", "Verdict", "judge"]

# Times faster, multiples of the density, per cent, milliseconds, seconds, times as long.
Unit = Literal["x", "d", "%", "ms", "s", "cost"]


class AcceptanceBar(NamedTuple):
    """A least speed-up, or a largest cost; ``find`` returns ``None`` where nothing was measured."""

    what: str
    must: float
    unit: Unit
    find: Callable[[Measurements], Spread | None]


class Verdict(NamedTuple):
    """The measured figure of a bar, and whether its median meets it; both ``None`` where nothing was measured."""

    bar: AcceptanceBar
    found: Spread | None
    met: bool | None


def judge(results: Measurements, bars: Sequence[AcceptanceBar] | None = None) -> list[Verdict]:
    """Compare measurements with the bars of their device.

    Example:
        >>> bar = AcceptanceBar("rounds", 5, "x", lambda results: spread([results.rounds]))
        >>> [verdict.met for verdict in judge(Measurements("cpu", 9, {}), [bar])]
        [True]
    """
    verdicts = []
    for bar in BARS.get(results.device, ()) if bars is None else bars:
        found = bar.find(results)
        reached = None if found is None else found.median >= bar.must if bar.unit == "x" else found.median <= bar.must
        verdicts.append(Verdict(bar, found, reached))
    return verdicts


def _row(rows: Sequence[Timing], subject: str, work: str, batch: int) -> Timing | None:
    return next((row for row in rows if (row.subject, row.work, row.batch) == (subject, work, batch)), None)


def _layer(subject: str, work: str, batch: int, must: float, density: float = 0.05) -> AcceptanceBar:
    def find(results: Measurements) -> Spread | None:
        return _gain(_row(results.layers, subject, work, batch), density, DENSE)

    return AcceptanceBar(f"{subject}, batch {batch}, {density:.0%}: {work} over dense LRT", must, "x", find)


def _network(
    subject: str, work: str, batch: int, must: float, density: float = 0.05, over: str = DENSE
) -> AcceptanceBar:
    def find(results: Measurements) -> Spread | None:
        return _gain(_row(results.networks, subject, work, batch), density, over)

    return AcceptanceBar(f"{subject}, batch {batch}, {density:.0%}: {work} over {over}", must, "x", find)


def _gain(row: Timing | None, density: float, over: str) -> Spread | None:
    return row.speedup(sparse(density), over) if row is not None and {sparse(density), over} <= row.ms.keys() else None


def _slowest_residual(results: Measurements) -> Spread | None:
    """The layer of a ResNet that gains least; nothing unless all of them were measured."""
    gains = [_gain(_row(results.layers, case.name, TRAINING, 32), 0.05, DENSE) for case in RESIDUAL]
    found = [gain for gain in gains if gain is not None]
    return min(found, key=lambda gain: gain.median) if len(found) == len(gains) else None


def _bytes(of: Callable[[Footprint], float], density: float | None) -> Callable[[Measurements], Spread | None]:
    """Bytes at 5 % over those of dense LRT, as a share or in multiples of the density."""

    def find(results: Measurements) -> Spread | None:
        rows = {row.way: row for row in results.memory if row.subject == RESNET}
        own, dense = rows.get(sparse(0.05)), rows.get(DENSE)
        return None if own is None or dense is None else spread([of(own) / of(dense) / (density or 1.0)])

    return find


def _updates(subject: str) -> AcceptanceBar:
    def find(results: Measurements) -> Spread | None:
        return next((row.share for row in results.updates if row.subject == subject and row.density == 0.05), None)

    return AcceptanceBar(f"{subject}, 5%: updates of the subspace, share of training", 0.08, "%", find)


def _training(results: Measurements, way: str) -> TrainingCost | None:
    return next((row for row in results.training if (row.subject, row.way, row.batch) == (RESNET, way, 128)), None)


def _state(results: Measurements) -> Spread | None:
    """Bytes of an active entry between two steps, over those where its std is a parameter."""
    rows = {row.way: row.state_bytes for row in results.memory if row.subject == RESNET}
    own, other = rows.get(sparse(0.05)), rows.get(sparse(0.05, GRADIENT))
    return spread([own / other]) if own and other else None


def _step_on_an_h200(way: str, must: float) -> AcceptanceBar:
    """The step time, on an H200 only: milliseconds depend on the kind of GPU."""

    def find(results: Measurements) -> Spread | None:
        row = _training(results, way)
        return spread(row.ms) if row is not None and "H200" in (results.environment.get("gpu") or "") else None

    return AcceptanceBar(f"{RESNET}, batch 128, {way}: step on an H200", must, "ms", find)


def _steps(slow: str, fast: str) -> Callable[[Measurements], Spread | None]:
    """Time of one way over that of another."""

    def find(results: Measurements) -> Spread | None:
        rows = _training(results, slow), _training(results, fast)
        return None if rows[0] is None or rows[1] is None else speedup(rows[0].ms, rows[1].ms)

    return find


def _setup(results: Measurements) -> Spread | None:
    row = _training(results, SSVI)
    return None if row is None else spread([row.setup_seconds])


BARS: dict[str, tuple[AcceptanceBar, ...]] = {
    "gpu": (
        _step_on_an_h200(SSVI, 3.9),
        _step_on_an_h200(DRAWN, 2.6),
        AcceptanceBar(f"{RESNET}, batch 128, {SSVI}: step over {RELEASED}", 5.0, "x", _steps(RELEASED, SSVI)),
        AcceptanceBar(f"{RESNET}, batch 128, {SSVI}: step, times the {PLAIN} one", 2.1, "cost", _steps(SSVI, PLAIN)),
        AcceptanceBar(f"{RESNET}, batch 128, {SSVI}: set-up", 60.0, "s", _setup),
    ),
    "cpu": (
        _layer("linear 1024x1024", FORWARD, 128, 5.5),
        _layer("linear 1024x1024", TRAINING, 128, 5.5),
        _layer("conv 128@16x16", FORWARD, 32, 6.0),
        _layer("conv 128@16x16", TRAINING, 32, 7.0),
        AcceptanceBar(
            "slowest 3x3 layer of a ResNet, batch 32, 5%: forward+backward over dense LRT", 5.5, "x", _slowest_residual
        ),
        _network(RESNET, "training step", 32, 6.0),
        _network(RESNET, "training step", 32, 2.5, over=PLAIN),
        _network(RESNET, "training step", 32, 3.9, density=0.1),
        _network(RESNET, "training step", 32, 1.7, density=0.1, over=PLAIN),
        _network(RESNET, "prediction, one draw", 1, 6.0),
        _network(MLP, "training step", 128, 6.0),
        _network(RESNET, "training step", 32, 1.0, over=sparse(0.05, GRADIENT)),
        _network(MLP, "training step", 128, 1.0, over=sparse(0.05, GRADIENT)),
        AcceptanceBar(
            f"{RESNET}, 5%: parameters, gradients, optimizer", 1.1, "d", _bytes(lambda row: row.training_bytes, 0.05)
        ),
        AcceptanceBar(f"{RESNET}, 5%: state of an active entry, share of that of {GRADIENT}", 0.75, "%", _state),
        AcceptanceBar(f"{RESNET}, 5%: checkpoint", 1.4, "d", _bytes(lambda row: row.checkpoint_bytes, 0.05)),
        AcceptanceBar(f"{RESNET}, batch 32, 5%: peak memory of training", 0.5, "%", _bytes(lambda row: row.peak, None)),
        _updates(RESNET),
        _updates(MLP),
    ),
}
