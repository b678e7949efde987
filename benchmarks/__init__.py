"""Benchmarks: what sparsity costs and saves, measured on the machine at hand.

``timing`` lets works take turns on one clock, ``layers``, ``networks``, ``memory`` and ``updates`` measure a row each,
``cpu`` says which rows there are on a CPU. On a GPU whole trainings are measured: ``contenders`` are the ways to train,
``released`` is the one that the others are compared with, ``gpu`` lets them take turns. What they find is
:class:`Results`, raw samples and environment, from which ``tables``, ``bars``, ``pages`` and ``plot`` make all that is
shown.

``recorded`` does the same for a folder of results: runs of recipes that were kept (``recipes``), comparisons
(``trials``) and bytes of trainings (``state``).
"""

from benchmarks.bars import judge
from benchmarks.pages import document, fill
from benchmarks.plot import plot
from benchmarks.results import Footprint, Results, Timing, TrainingCost, UpdateCost
from benchmarks.tables import all_tables
from benchmarks.timing import Clock, Spread, alternate
from gossamer.tables import Table

__all__ = [
    "Clock",
    "Footprint",
    "Results",
    "Spread",
    "Table",
    "Timing",
    "TrainingCost",
    "UpdateCost",
    "all_tables",
    "alternate",
    "document",
    "fill",
    "judge",
    "plot",
]
