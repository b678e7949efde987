"""placeholder."""

from __future__ import annotations

import numpy as np

from gossamer.estimators.draws import Draws
from gossamer.estimators.table import Array

__all__ = ["inclusion"]


def inclusion(draws: Draws, n_columns: int) -> Array:
    result = np.zeros(n_columns)
    result[draws.columns.numpy()] = 1
    return result
