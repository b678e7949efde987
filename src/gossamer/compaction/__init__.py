"""Removal of dead channels and units: a smaller plain network with the same outputs."""

from gossamer.compaction.network import Compaction, CompactionRow, Select, compact

__all__ = ["Compaction", "CompactionRow", "Select", "compact"]
