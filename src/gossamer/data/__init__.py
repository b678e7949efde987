"""Data sets, one file each: ``load()`` gives a Task."""
