"""How the numbers of a benchmark are written."""

from __future__ import annotations

from benchmarks.bars import AcceptanceBar, Unit, Verdict
from benchmarks.timing import Spread

__all__ = ["figure", "found", "megabytes", "milliseconds", "must", "percent", "spread_of", "times"]

UNITS: dict[Unit, str] = {"x": "x", "%": " %", "d": " d", "ms": " ms", "s": " s", "cost": "x"}


def times(value: float) -> str:
    """A speed-up; two decimals where it is a slow-down.

    Example:
        >>> times(6.25), times(0.88)
        ('6.2x', '0.88x')
    """
    return f"{value:.1f}x" if value >= 0.95 else f"{value:.2f}x"


def spread_of(gain: Spread) -> str:
    """Median and quartiles of a speed-up.

    Example:
        >>> spread_of(Spread(5.9, 6.2, 6.4))
        '6.2x [5.9–6.4]'
    """
    return f"{times(gain.median)} [{gain.low:.1f}–{gain.high:.1f}]"


def milliseconds(value: float) -> str:
    """Milliseconds to three digits.

    Example:
        >>> milliseconds(0.0592), milliseconds(6.313), milliseconds(59.91), milliseconds(2418.6)
        ('0.0592 ms', '6.31 ms', '59.9 ms', '2419 ms')
    """
    return f"{value:.0f} ms" if value >= 100 else f"{value:#.3g} ms"


def percent(share: float) -> str:
    """A share in per cent.

    Example:
        >>> percent(0.05), percent(0.005)
        ('5 %', '0.5 %')
    """
    return f"{100 * share:g} %"


def megabytes(value: float, dense: float | None) -> str:
    """Megabytes (10⁶ bytes), and their share of the dense network's.

    Example:
        >>> megabytes(13.5e6, 268e6), megabytes(268e6, 268e6)
        ('13.5 (5.0 %)', '268.0')
    """
    return f"{value / 1e6:.1f}" + (f" ({100 * value / dense:.1f} %)" if dense and value != dense else "")


def figure(found: Spread, unit: Unit) -> str:
    """A spread in a unit; without quartiles where all three are equal.

    Example:
        >>> figure(Spread(0.03, 0.0312, 0.04), "%"), figure(Spread(1.01, 1.01, 1.01), "d")
        ('3.1 % [3.0–4.0]', '1.01 d')
    """
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
