"""A run is a folder: its configuration, environment, metrics and result. Format: ``docs/run-folder.md``.

Files that are rewritten are replaced in one move, so a reader sees the old one or the new one, never half of either.
Files that grow do so by whole lines, and a line cut short by a crash is dropped when it is read.
"""

from gossamer.files.atomic import RecordError, to_toml, write_atomically
from gossamer.lab.record.contents import environment
from gossamer.lab.record.journal import Lock, TakenError
from gossamer.lab.record.run import FORMAT, Run

__all__ = ["FORMAT", "Lock", "RecordError", "Run", "TakenError", "environment", "to_toml", "write_atomically"]
