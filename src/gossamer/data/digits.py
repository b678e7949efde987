"""Handwritten digits, 8×8 pixels, 10 classes, 1,797 images (embedded in scikit-learn: nothing is downloaded)."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from gossamer._text.names import needs
from gossamer.data._images import SPLIT_SEED, split_in_order
from gossamer.likelihoods import Categorical
from gossamer.types import Task

__all__ = ["load"]


def load(root: str | Path | None = None, *, n_val: int | None = None) -> Task:
    """A third for testing, a fifth of the rest held out for choices, the rest for training; pixels from 0 to 1.

    Args:
        root: Not used: there are no files.
        n_val: How many of the images that are not for testing to hold out instead; with 0 ``val`` has no rows.

    Example:
        >>> task = load()
        >>> task.n_data, len(task.val[1]), len(task.test[1])
        (959, 239, 599)
    """
    needs("sklearn", extra="sklearn")
    home = find_spec("sklearn")  # its import, with all it needs in turn, takes longer than a small training
    assert home is not None
    assert home.origin is not None
    rows = np.loadtxt(Path(home.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=np.int64)
    x = torch.from_numpy(rows[:, :-1]).float().view(-1, 1, 8, 8) / 16
    y = torch.from_numpy(rows[:, -1].copy())
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(SPLIT_SEED))
    train, val, test = split_in_order(x[order], y[order], n_val)
    return Task(train, val, test, Categorical(), n_outputs=10, name="digits", class_names=tuple("0123456789"))
