"""The k best entries of a score."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["top_mask", "where"]


def top_mask(score: Tensor, k: int) -> Tensor:
    """Boolean mask of the ``k`` highest scores of a vector; of equal scores the first positions win.

    Exactly ``k`` entries are true, always: NaN counts as -inf. No value leaves the device.

    >>> top_mask(torch.tensor([1.0, 3.0, 3.0, float("nan"), 3.0]), 2)
    tensor([False,  True,  True, False, False])
    """
    if score.dim() != 1 or not 0 <= k <= len(score):
        raise ValueError(f"top_mask takes a vector and 0 <= k <= its length, got shape {tuple(score.shape)}, k = {k}")
    if k == 0:
        return torch.zeros_like(score, dtype=torch.bool)
    score = torch.where(score.isnan(), -torch.inf, score)
    # topk alone breaks ties as the device likes; by position, every rank, device and rerun chooses the same entries.
    threshold = score.topk(k, sorted=False).values.amin()
    above, tied = score > threshold, score == threshold
    return above | (tied & (tied.cumsum(0) <= k - above.sum()))


def where(mask: Tensor, k: int) -> Tensor:
    """Positions of the ``k`` true entries of a mask: as ``nonzero``, but a GPU need not be waited for.

    >>> where(torch.tensor([False, True, False, True]), 2)
    tensor([1, 3])
    """
    if mask.device.type == "cpu":
        return mask.nonzero().flatten()
    return torch.searchsorted(mask.cumsum(0), torch.arange(1, k + 1, device=mask.device))
