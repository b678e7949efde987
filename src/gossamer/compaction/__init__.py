"""Dead channels and units out of a network: the same outputs from a smaller plain one."""

from gossamer.compaction.compacting import Compaction, CompactionRow, compact
from gossamer.compaction.select import Select

__all__ = ["Compaction", "CompactionRow", "Select", "compact"]
