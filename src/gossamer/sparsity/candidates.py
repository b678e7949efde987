"""What ranks send at an update: the gradients of candidates, from which all make the choice of the mean gradient.

An entry whose mean over ranks reaches τ in size reaches τ on some rank. Each rank proposes as many of its best inactive
entries as there will be new ones, k. Of the means of all that were proposed, the k-th in size is a τ that the k best of
all entries reach. Whatever reaches τ on some rank is a candidate, and no other entry can be chosen: the choice from the
means of the candidates is the choice from the dense mean, ties included. That is the threshold algorithm in the three
rounds of Cao and Wang (PODC 2004), with a bit per entry in the second one.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from gossamer.layers import Support
from gossamer.ranks import average_over_ranks, from_every_rank, on_any_rank, world_size
from gossamer.sparsity.gradients import Grads, Weights


@torch.no_grad()
def average_candidates(grads: Grads, weights: Weights, rate: float) -> Grads:
    """The mean over ranks of every entry that an update may choose, and zero for the others.

    Of a weight with n active entries it takes in the int(``rate`` · n) largest. If a gradient is not finite on some
    rank, it is not finite here.
    """
    if world_size() == 1:
        return grads
    devices = {name: grads[name].device for name in weights if name in grads}
    for device in dict.fromkeys(devices.values()):
        names = [name for name, place in devices.items() if place == device]
        flat, supports = [grads[name].flatten() for name in names], [weights[name].support for name in names]
        counts = [int(rate * support.n_active) for support in supports]
        for name, mean in zip(names, _averaged(flat, supports, counts), strict=True):
            grads[name] = mean.view(grads[name].shape)
    return grads


def _averaged(flat: Sequence[Tensor], supports: Sequence[Support], counts: Sequence[int]) -> list[Tensor]:
    is_finite = torch.stack([one.isfinite().all() for one in flat]).all()
    if any(on_any_rank([not bool(is_finite)], flat[0].device)):
        return [torch.full_like(one, torch.nan) for one in flat]
    proposed = _gathered([_best(*each) for each in zip(flat, supports, counts, strict=True)])
    bounds = [_bound(mean, count) for mean, count in zip(_means(flat, proposed), counts, strict=True)]
    # A mean of zeros needs no message.
    reached = _on_any_rank([(one.abs() >= bound) & (one != 0) for one, bound in zip(flat, bounds, strict=True)])
    candidates = [mask.nonzero().flatten() for mask in reached]
    means = zip(flat, candidates, _means(flat, candidates), strict=True)
    return [torch.zeros_like(one).index_copy_(0, where, mean) for one, where, mean in means]


def _best(grad: Tensor, support: Support, count: int) -> Tensor:
    """Where the ``count`` largest inactive entries are, or all of them if there are fewer."""
    size = grad.abs()
    size[support.explicit(grad.device).long()] = -1.0
    size[slice(*support.frozen)] = -1.0
    count = min(count, support.size - support.n_active)
    dtype = torch.int32 if len(grad) <= torch.iinfo(torch.int32).max else torch.int64
    return size.topk(count, sorted=False).indices.to(dtype)


def _bound(means: Tensor, count: int) -> Tensor:
    """A size that the ``count`` best entries reach on some rank: 0 if there are not so many to propose."""
    if count == 0:
        return means.new_tensor(torch.inf)
    if count > len(means):
        return means.new_zeros(())
    # The sum and its division are rounded.
    rounding = 1 - (world_size() + 2) * torch.finfo(means.dtype).eps
    return means.abs().topk(count, sorted=False).values.amin() * rounding


def _means(flat: Sequence[Tensor], where: Sequence[Tensor]) -> list[Tensor]:
    """The means over ranks at these places, in one message."""
    own = torch.cat([one[places] for one, places in zip(flat, where, strict=True)])
    parts = average_over_ranks(own).split([len(places) for places in where])
    return [part.to(one.dtype) for one, part in zip(flat, parts, strict=True)]


def _gathered(where: Sequence[Tensor]) -> list[Tensor]:
    """The places that any rank names, in order; each rank names as many."""
    every = from_every_rank(torch.cat(list(where)))
    return [part.unique().long() for part in every.split([len(places) for places in where], dim=1)]


def _on_any_rank(masks: Sequence[Tensor]) -> list[Tensor]:
    """Where a mask is true on some rank; eight entries travel in a byte."""
    bits = 2 ** torch.arange(8, dtype=torch.uint8, device=masks[0].device)
    ends = list(accumulate(math.ceil(len(mask) / 8) for mask in masks))
    packed = torch.cat([torch.nn.functional.pad(mask, (0, -len(mask) % 8)) for mask in masks]).view(-1, 8)
    every = from_every_rank((packed * bits).sum(1, dtype=torch.uint8))
    union = every[0]
    for one in every[1:]:
        union |= one
    parts = zip(masks, [0, *ends[:-1]], ends, strict=True)
    return [((union[start:end, None] & bits) > 0).flatten()[: len(mask)] for mask, start, end in parts]
