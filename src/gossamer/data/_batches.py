"""Mini-batches from tensors that stay where they are: one shuffle an epoch, one gather a batch."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from gossamer.types import Split

__all__ = ["batches"]


def batches(split: Split, batch_size: int, generator: torch.Generator) -> Iterator[Split]:
    """Batches for ever, in a new order every epoch; the last batch of an epoch may be smaller.

    Example:
        >>> stream = batches((torch.arange(5), torch.arange(5)), 2, torch.Generator().manual_seed(0))
        >>> [len(next(stream)[0]) for _ in range(4)]
        [2, 2, 1, 2]
    """
    x, y = split
    if batch_size < 1 or len(y) == 0:
        raise ValueError(f"batches need a positive batch size and some data; got {batch_size} and {len(y)} examples")
    while True:
        order = torch.randperm(len(y), generator=generator).to(y.device)
        for rows in order.split(batch_size):
            yield x[rows], y[rows]
