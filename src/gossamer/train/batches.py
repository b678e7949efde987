"""The batches of a training, which can be asked for at any step."""

from collections.abc import Callable

import torch
from torch import Tensor

from gossamer.distributed import OwnNoise
from gossamer.types import Split, identity

__all__ = ["Batches"]

AT_ONCE = 4096  # examples augmented at a time: temporary memory must fit beside the network
SMALL = 2**24  # bytes of a table that is gathered once per epoch: a gather per batch costs more than a small step


class Batches:
    """The batch of any step, from tensors on one device: one shuffle per epoch, one gather per batch or small epoch.

    The order and augmentation of an epoch depend only on the seed and the number of the epoch, so that a run can
    continue anywhere. An epoch is augmented at once: on a GPU that is a few kernels per epoch instead of per batch. The
    last batch of an epoch may be smaller. With several ranks each takes its share of every batch, and shares may differ
    by one example: :meth:`weight` makes up for it.

    Example:
        >>> batches = Batches((torch.arange(5), torch.arange(5)), batch_size=2, seed=0)
        >>> [len(batches[step][0]) for step in range(4)], batches.per_epoch
        ([2, 2, 1, 2], 3)
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        seed: int,
        device: torch.device | str = "cpu",
        *,
        augment: Callable[[Tensor], Tensor] = identity,
        rank: int = 0,
        n_ranks: int = 1,
    ) -> None:
        if batch_size < 1 or len(split[1]) == 0:
            raise ValueError(
                f"batch_size must be positive and data not empty; got {batch_size} and {len(split[1])} rows"
            )
        self.x, self.y = split[0].to(device), split[1].to(device)
        self.batch_size, self.seed, self.rank, self.n_ranks = batch_size, seed, rank, n_ranks
        self.augment = augment
        self.per_epoch = -(-len(self.y) // batch_size)
        self._is_small = self.x.nbytes + self.y.nbytes <= SMALL
        self._epoch, self._order = -1, torch.empty(0)
        self._ordered_x: Tensor | None = None  # those of an epoch, where they are gathered or augmented at once
        self._ordered_y: Tensor | None = None

    def __getitem__(self, step: int) -> Split:
        """The batch of step ``step``, counted from 0."""
        epoch, index = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            self._start(epoch)
        place = slice(index * self.batch_size, (index + 1) * self.batch_size)
        x = self.x[self._order[place]] if self._ordered_x is None else self._ordered_x[place]
        y = self.y[self._order[place]] if self._ordered_y is None else self._ordered_y[place]
        if self.n_ranks > 1 and len(y) >= self.n_ranks:  # all ranks take a last batch that is too small to share
            x, y = x[self.rank :: self.n_ranks], y[self.rank :: self.n_ranks]
        return x, y

    def weight(self, step: int) -> float:
        """The factor of this rank's mean loss with which the mean over ranks is the mean over the whole batch.

        Example:
            >>> split = torch.arange(5), torch.arange(5)
            >>> [round(Batches(split, 3, seed=0, rank=rank, n_ranks=2).weight(0), 2) for rank in (0, 1)]
            [1.33, 0.67]
        """
        whole = min(self.batch_size, len(self.y) - step % self.per_epoch * self.batch_size)
        own = len(range(self.rank, whole, self.n_ranks))
        return self.n_ranks * own / whole if whole >= self.n_ranks else 1.0

    def _start(self, epoch: int) -> None:
        """Shuffle and augment an epoch."""
        # A large odd factor keeps the seeds of neighbouring runs and epochs apart.
        key = self.seed * 1_000_003 + epoch
        self._order = torch.randperm(len(self.y), generator=torch.Generator().manual_seed(key)).to(self.y.device)
        self._epoch = epoch
        if self._is_small:
            self._ordered_x, self._ordered_y = self.x[self._order], self.y[self._order]
        if self.augment is not identity:
            with OwnNoise(key, self.x.device):
                self._ordered_x = torch.cat([self.augment(self.x[rows]) for rows in self._order.split(AT_ONCE)])
