"""The highest of many scores, and sorted lists of positions: what an update of the subspace chooses by.

Native code on a CPU does in one pass what takes torch several; both find the same numbers, to the bit.
"""

import torch
from torch import Tensor

from gossamer.kernels import library, native


def top_mask(score: Tensor, k: int) -> Tensor:
    """Boolean mask of the ``k`` highest scores of a vector; of equal scores the first positions win.

    Exactly ``k`` entries are true, always: NaN counts as -inf. No value leaves the device.

    >>> top_mask(torch.tensor([1.0, 3.0, 3.0, float("nan"), 3.0]), 2)
    tensor([False,  True,  True, False, False])
    """
    if score.dim() != 1 or not 0 <= k <= score.numel():
        raise ValueError(f"top_mask takes a vector and 0 <= k <= its length, got shape {tuple(score.shape)}, k = {k}")
    if not _is_plain(score) or score.dtype not in (torch.float32, torch.float64):
        if k == 0:
            return torch.zeros_like(score, dtype=torch.bool)
        score = score.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        # topk alone breaks ties as the device likes; by position, every rank, device and rerun chooses alike.
        threshold = score.topk(k, sorted=False).values.amin()
        above, tied = score > threshold, score == threshold
        return above | (tied & (tied.cumsum(0) <= k - above.sum()))
    score, mask = native.in_memory(score), torch.empty_like(score, dtype=torch.bool)
    is_wide = score.dtype is torch.float64
    if library.LIBRARY["top_mask"](score.data_ptr(), is_wide, score.numel(), k, mask.data_ptr()):
        raise library.no_memory(f"the best of {len(score)} scores")
    return mask


def look_through(
    grad: Tensor, first: int, position: Tensor, active: Tensor, frozen: tuple[int, int], least: float
) -> tuple[Tensor, Tensor, bool]:
    """Positions and sizes of the entries of a gradient that reach ``least``, and whether all of it is finite.

    ``grad`` is the part from the entry ``first`` on, and is overwritten. Those of its entries that are active, at some
    of the sorted ``position``, write their sizes into ``active``; neither they nor ``frozen`` ones are returned.
    """
    if not _is_plain(grad) or grad.dtype is not torch.float32:
        score, is_finite = grad.abs_(), bool(grad.isfinite().all())
        inside = ((position >= first) & (position < first + len(grad))).nonzero().flatten()
        own = position[inside].long() - first
        active[inside] = score[own]
        low, high = (min(max(edge - first, 0), len(grad)) for edge in frozen)
        score[own] = score[low:high] = -torch.inf
        where = (score >= max(least, 0.0)).nonzero().flatten()
        return where.to(position.dtype) + first, score[where], is_finite
    grad, wide = native.in_memory(grad), position.dtype is torch.int64
    where, score = torch.empty_like(grad, dtype=torch.int32), torch.empty_like(grad)
    head = (grad.data_ptr(), grad.numel(), first, position.data_ptr(), wide, position.numel(), active.data_ptr())
    count = library.LIBRARY["look_through"](*head, *frozen, least, where.data_ptr(), score.data_ptr())
    return where[: max(count, 0)].to(position.dtype).add_(first), score[: max(count, 0)], count >= 0


def merged(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Two sorted vectors of int64 as one, and where each number was in the two laid end to end."""
    if not _is_plain(a):
        return torch.cat([a, b]).sort()
    a, b = native.in_memory(a), native.in_memory(b)
    values, order = a.new_empty(a.numel() + b.numel()), a.new_empty(a.numel() + b.numel())
    ends = (a.data_ptr(), a.numel(), b.data_ptr(), b.numel())
    library.LIBRARY["merge"](*ends, values.data_ptr(), order.data_ptr())
    return values, order


def located(old: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Where each number of a sorted vector of int64 is in another one, len(old) if it is missing; and whether it is."""
    if not _is_plain(old):
        slot = torch.searchsorted(old, wanted)
        is_new = old[slot.clamp_max(len(old) - 1)] != wanted
        return slot.masked_fill_(is_new, len(old)), is_new
    old, wanted = native.in_memory(old), native.in_memory(wanted)
    slot, is_new = torch.empty_like(wanted), torch.empty_like(wanted, dtype=torch.bool)
    ends = (old.data_ptr(), old.numel(), wanted.data_ptr(), wanted.numel())
    library.LIBRARY["locate"](*ends, slot.data_ptr(), is_new.data_ptr())
    return slot, is_new


def places(mask: Tensor) -> Tensor:
    """Where a vector of booleans is true, in order."""
    if not _is_plain(mask):
        return mask.nonzero().flatten()
    mask, where = native.in_memory(mask), torch.empty(int(mask.count_nonzero()) + 1, dtype=torch.int64)
    library.LIBRARY["places"](mask.data_ptr(), mask.numel(), where.data_ptr())  # what follows the last is written to
    return where[:-1]


def _is_plain(tensor: Tensor) -> bool:
    return bool(library.LIBRARY) and tensor.is_cpu and type(tensor) is Tensor and tensor.numel() > 0
