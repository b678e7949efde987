"""A search for good options by Optuna: ``gossamer sweep``, beside the package whose runs it trains."""

from gossamer_sweep.page import write_sweep
from gossamer_sweep.record import SweepRecord
from gossamer_sweep.space import read_space
from gossamer_sweep.study import sweep

__all__ = ["SweepRecord", "read_space", "sweep", "write_sweep"]
