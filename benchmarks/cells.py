"""How the numbers of a benchmark are written."""

from __future__ import annotations

from benchmarks.bars import AcceptanceBar, Unit, Verdict
from benchmarks.timing import Spread

__all__ = ["figure", "found", "megabytes", "milliseconds", "must", "percent", "spread_of", "times"]

UNITS: dict[Unit, str] = {"x": "x", "%": " %", "d": " d", "ms": " ms", "s": " s", "cost": "x"}


def times(value: float) -> str:
    """A speed-up; two decimals where it is a slow-down."""
    return f"{value:.1f}x" if value >= 0.95 else f"{value:.2f}x"


def spread_of(gain: Spread) -> str:
    """Median and quartiles of a speed-up."""
    return f"{times(gain.median)} [{gain.low:.1f}–{gain.high:.1f}]"


def milliseconds(value: float) -> str:
    """Milliseconds to three digits."""
    return f"{value:.0f} ms" if value >= 100 else f"{value:#.3g} ms"


def percent(share: float) -> str:
    """A share in per cent."""
    return f"{100 * share:g} %"


def megabytes(value: float, dense: float | None) -> str:
    """Megabytes (10⁶ bytes), and their share of the dense network's."""
    return f"{value / 1e6:.1f}" + (f" ({100 * value / dense:.1f} %)" if dense and value != dense else "")


def figure(found: Spread, unit: Unit) -> str:
    """A spread in a unit; without quartiles where all three are equal."""
    scale, digits = (100 if unit == "%" else 1), (2 if unit in ("d", "ms", "cost") else 1)
    low, median, high = (f"{scale * value:.{digits}f}" for value in found)
    return f"{median}{UNITS[unit]}" + ("" if low == high else f" [{low}–{high}]")


def must(bar: AcceptanceBar) -> str:
    """The figure that a bar demands."""
    value = 100 * bar.must if bar.unit == "%" else bar.must
    return f"{'at least' if bar.unit == 'x' else 'at most'} {value:g}{UNITS[bar.unit]}"


def found(verdict: Verdict) -> str:
    """The figure measured for a bar."""
    return "not measured" if verdict.found is None else figure(verdict.found, verdict.bar.unit)
