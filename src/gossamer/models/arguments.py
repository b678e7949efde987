"""Checks of the sizes that every network takes."""

from __future__ import annotations

__all__ = ["require_positive"]


def require_positive(**sizes: int) -> None:
    """Raise ``ValueError`` for the first size that is not positive, by its name.

    >>> require_positive(num_classes=10, in_channels=0)
    Traceback (most recent call last):
        ...
    ValueError: in_channels must be at least 1, not 0
    """
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, not {size}")
