"""What is wrong with a command line."""

from __future__ import annotations

__all__ = ["UsageError"]


class UsageError(Exception):
    """The command line cannot be understood."""
