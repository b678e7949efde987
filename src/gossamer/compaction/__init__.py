"""Dead channels and units out of a network: the same outputs from a smaller plain one."""

from gossamer.compaction.network import Compaction, CompactionRow, Select, compact

__all__ = ["Compaction", "CompactionRow", "Select", "compact"]
