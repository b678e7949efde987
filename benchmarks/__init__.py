"""What sparsity costs and saves, measured on the machine at hand: ``python -m benchmarks``. Not installed.

``timing`` lets works take turns on one clock; ``layers``, ``networks`` and ``memory`` measure one row each, and ``cpu``
lists the rows of a CPU. On a GPU whole trainings are measured: ``contenders`` are the ways to train, ``released`` is
the one that the others are compared with, and ``gpu`` lets them take turns. They return
:class:`benchmarks.measurements.Measurements`, raw samples and environment, from which ``tables``, ``bars``, ``pages``
and ``plot`` make everything that is shown. ``kept`` and ``state`` make tables of other files in ``results/``.

``citizen``, ``state`` and ``uci`` are scripts: ``python -m benchmarks.uci --help``. What has been
measured once is stored in ``results/`` with the commit that has its script.
"""
