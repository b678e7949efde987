"""Numbers as people read them: 1.2 M, 34.5 MB, 93.9 %, 1 h 23 min.

A narrow no-break space stands between a number and its unit; :func:`plain` is for places that want ASCII.
"""

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import TypeGuard

Format = Callable[[float], str]
"""A number -> its text."""

_SPACE = "\u202f"  # narrow and unbreakable, between a number and its unit
_MINUS = "\u2212"
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_PLAIN = str.maketrans(f"⁻⁰¹²³⁴⁵⁶⁷⁸⁹{_SPACE}{_MINUS}", "-0123456789 -")


def is_number(value: object) -> TypeGuard[float]:
    """Whether it is a finite number, small enough to compute with: twice the largest float is infinite."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= 1e300


def number(value: float, digits: int = 3) -> str:
    """``digits`` significant digits, thousands grouped; very small and very large numbers as powers of ten."""
    if value == 0 or not math.isfinite(value):
        return f"{value:.0f}"
    power = math.floor(math.log10(abs(value)))
    if not -5 < power < 7:
        base = f"{value / 10.0**power:.{digits - 1}f}".rstrip("0").rstrip(".")
        text = f"{base}{_SPACE}×{_SPACE}10{str(power).translate(_SUPERSCRIPT)}"
    else:
        text = f"{value:,.{max(0, digits - 1 - power)}f}"
        text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", _MINUS)


def integer(value: float) -> str:
    """A whole number with groups of thousands: 78,125."""
    return f"{value:,.0f}".replace("-", _MINUS)


def count(value: float) -> str:
    """A count to three digits, with k, M, G, T, P or E: 12.3 k."""
    return _scaled(value, count)


def size(value: float) -> str:
    """Bytes, in powers of a thousand: 34.5 MB."""
    return _scaled(value, size)


def macs(value: float) -> str:
    """Multiply-adds (MACs): 555 MMAC."""
    return _scaled(value, macs)


def latency(seconds: float) -> str:
    """A short time: 3.2 ms."""
    return _scaled(seconds, latency)


def times(value: float) -> str:
    """A factor: 2.7×."""
    return f"{value:.1f}×"


def percent(value: float, decimals: int = 1) -> str:
    """A share: 93.9 %."""
    while 0 < abs(value) * 100 < 10**-decimals and decimals < 4:  # a small share keeps a digit or two
        decimals += 1
    return f"{100 * value:.{decimals}f}{_SPACE}%".replace("-", _MINUS)


def duration(seconds: float) -> str:
    """A time, in its two largest units: 1 h 23 min."""
    if seconds < 60 or not math.isfinite(seconds):
        return f"{number(seconds, 2)}{_SPACE}s"
    for large, small, name, small_name in ((86400, 3600, "d", "h"), (3600, 60, "h", "min"), (60, 1, "min", "s")):
        parts = round(seconds / small)
        if parts * small >= large:
            whole, rest = divmod(parts, large // small)
            text = f"{whole}{_SPACE}{name}"
            return f"{text} {rest}{_SPACE}{small_name}" if rest else text
    raise AssertionError("unreachable: sixty seconds are a minute")


def with_error(mean: float, error: float | None, form: Format) -> str:
    """A mean ± its standard error; percentages and plain numbers with the one or two digits that are significant."""
    if not error or not math.isfinite(mean + error) or error < 1e-9 * abs(mean):  # equal up to rounding
        return form(mean)
    if form not in (percent, number):
        return f"{form(mean)} ± {form(error)}" if error > 0.02 * abs(mean) else form(mean)
    scale = 100 if form is percent else 1
    power = math.floor(math.log10(error * scale))
    decimals = min(6, max(0, (error * scale / 10.0**power < 2) - power))  # 0.13, but 0.2: a second digit after a 1 only
    text = f"{mean * scale:,.{decimals}f} ± {error * scale:.{decimals}f}".replace("-", _MINUS)
    return f"{text}{_SPACE}%" if form is percent else text


def column(means: Sequence[float | None], errors: Sequence[float | None], form: Format) -> tuple[str, list[str]]:
    """The unit of a column of numbers, and its cells: in that unit, with as many decimals each.

    Shares have at least one decimal, and shares and plain numbers three digits; more if the typical error is smaller
    than the last one. All else has two digits in its smallest number, but at most two decimals. Any other format
    writes its cells itself.

    Example:
        >>> column([0.9412, 0.9755], [0.0012, 0.0009], percent), column([1234.0, 98_765.0], [None, None], size)
        (('%', ['94.1±0.1', '97.5±0.1']), ('kB', ['1.2', '98.8']))
    """
    if form not in _UNITS:
        pairs = zip(means, errors, strict=True)
        return "", ["-" if mean is None else plain(with_error(mean, error, form)) for mean, error in pairs]
    known = [abs(mean) for mean in means if mean and math.isfinite(mean)] or [1.0]
    factor, unit = next(((f, u) for f, u in reversed(_UNITS[form]) if f <= median(known)), _UNITS[form][0])
    if form in (percent, number):
        known_errors = [error / factor for error in errors if error and math.isfinite(error)]
        largest = 0.1 if form is percent else math.inf
        last = min(largest, median(known) / factor / 100, median(known_errors or [math.inf]))
        decimals = min(4, max(0, -math.floor(math.log10(last))))
    else:
        decimals = min(2, max(0, 1 - math.floor(math.log10(min(known) / factor))))

    def cell(mean: float | None, error: float | None) -> str:
        if mean is None or not math.isfinite(mean):
            return "-" if mean is None else str(mean)
        return f"{mean / factor:,.{decimals}f}" + (f"±{error / factor:.{decimals}f}" if error is not None else "")

    return unit, [cell(mean, error) for mean, error in zip(means, errors, strict=True)]


def plain(text: str) -> str:
    """A formatted number with ordinary characters, for terminals, Markdown and files."""
    return text.replace(f"{_SPACE}×{_SPACE}10", "e").translate(_PLAIN)


def _scaled(value: float, form: Format) -> str:
    """Three digits, in the largest unit that they reach when rounded."""
    units = _UNITS[form]
    factor, unit = next(((f, u) for f, u in reversed(units) if abs(value) >= 0.9995 * f), units[0])
    return f"{number(value / factor)}{_SPACE}{unit}" if unit else number(value / factor)


def _ladder(*units: str) -> list[tuple[float, str]]:
    return [(1000.0**power, unit) for power, unit in enumerate(units)]


_UNITS: dict[Format, list[tuple[float, str]]] = {
    number: [(1.0, "")],
    percent: [(0.01, "%")],
    count: _ladder("", "k", "M", "G", "T", "P", "E"),
    size: _ladder("B", "kB", "MB", "GB", "TB", "PB"),
    macs: _ladder("MAC", "kMAC", "MMAC", "GMAC", "TMAC", "PMAC", "EMAC"),
    duration: [(1.0, "s"), (3600.0, "h")],
    latency: [(0.001, "ms"), (1.0, "s")],
}
"""Factors and units from which a column takes one."""
