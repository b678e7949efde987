"""Names in charts: their colours, how they are shortened, and where they stand without hiding one another."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["colour_class", "shorten", "spread"]

_COLOURS = 6  # as many as the style sheet has


def colour_class(colour: int) -> str:
    """Classes of the page that give a series its colour, and its dashes where there are more series than colours."""
    return f"c{colour % _COLOURS + 1}" + (f" dash{colour // _COLOURS % 3}" if colour >= _COLOURS else "")


def shorten(text: str, most: int = 18) -> str:
    """The text, its middle left out where it is long: the ends tell names apart.

    Example:
        >>> shorten("encoder.layers.11.attention", 20)
        'encoder.la…attention'
    """
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def spread(heights: Sequence[float], gap: float, lowest: float) -> list[float]:
    """Heights moved as little as puts neighbours ``gap`` apart, order kept, none below ``lowest``.

    Least squares under an order: neighbours that are too near form a block around their mean.

    Example:
        >>> spread([50, 52, 10], 10, 100)
        [46.0, 56.0, 10.0]
        >>> spread([98, 99], 10, 100)
        [90.0, 100.0]
    """
    order = sorted(range(len(heights)), key=lambda place: heights[place])
    blocks: list[list[float]] = []
    for rank, place in enumerate(order):
        blocks.append([heights[place] - rank * gap])
        while len(blocks) > 1 and _mean(blocks[-2]) > _mean(blocks[-1]):
            blocks[-2:] = [blocks[-2] + blocks[-1]]
    levels = [_mean(block) for block in blocks for _ in block]
    highest = float(lowest - (len(order) - 1) * gap)
    moved = {
        place: min(level, highest) + rank * gap for rank, (place, level) in enumerate(zip(order, levels, strict=True))
    }
    return [moved[place] for place in range(len(heights))]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
