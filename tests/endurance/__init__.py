"""What is tried to lose a run or to get a wrong number out of one: attacks on runs, on files and on sweeps.

``attacks``, ``mutations`` and ``sweep`` are commands: ``python -m tests.endurance.attacks --help``. They take hours, so
that ``make test`` runs small shares of them alone; ``make endurance`` runs all, and stores the counts in ``results/``.
"""
