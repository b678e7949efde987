"""How ranks agree on an update: they send gradients of candidates only, and choose as by the mean of all gradients.

An entry whose mean over ranks reaches τ in size reaches τ on some rank. Each rank proposes as many of its best inactive
entries as there will be new ones, k. Of the means of all that were proposed, the k-th in size is a τ that the k best of
all entries reach. Whatever reaches τ on some rank is a candidate, and no other entry can be chosen: the choice from the
means of the candidates is the choice from the dense mean, ties included. That is the threshold algorithm in the three
rounds of Cao and Wang (PODC 2004), with a bit per entry in the second one.

Nothing here is as large as a dense gradient but the gradients themselves, which are given up one after another.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from gossamer.distributed import average_over_ranks, from_every_rank, on_any_rank, world_size
from gossamer.layers import Support
from gossamer.sparsity.gradients import Grads, Weights
from gossamer.sparsity.selection import Best, runs, works_together

AT_ONCE = 1 << 22  # entries of the weights that share messages
LEAST, ON_GPU = 1 << 17, 1 << 22  # entries that are looked at together, at least: a GPU is quick with many
PIECES = 64  # of a large weight: each costs as much as there are best entries


@torch.no_grad()
def best_of_all_ranks(grads: Grads, weights: Weights, rate: float) -> dict[str, Best]:
    """The entries that an update may choose, by the mean of their gradients over ranks; ``grads`` are used up.

    Of a weight with n active entries it takes in the int(``rate`` · n) largest. If a gradient is not finite on some
    rank, nothing is finite here.
    """
    found: dict[str, Best] = {}
    devices = {name: grads[name].device for name in weights if name in grads}
    for device in dict.fromkeys(devices.values()):
        names = [name for name, place in devices.items() if place == device]
        sizes = torch.stack([torch.linalg.vector_norm(grads[name], torch.inf) for name in names])
        is_broken = any(on_any_rank([not bool(sizes.isfinite().all())], device))
        # Small weights share messages, and large ones no memory.
        for first, last in runs([weights[name].support.size for name in names], AT_ONCE):
            portion = names[first:last]
            flat, supports = [grads.pop(name).flatten() for name in portion], [weights[n].support for n in portion]
            bests = [Best(support, int(rate * support.n_active)) for support in supports]
            if not is_broken:
                _look_through(flat, bests)
            for best in bests:
                best.is_finite = not is_broken
            found |= dict(zip(portion, bests, strict=True))
    return found


def _look_through(flat: Sequence[Tensor], bests: Sequence[Best]) -> None:
    """Find the best entries of some weights, given the gradients of this rank."""
    proposed = _gathered([_own_best(one, best.support, best.n_wanted) for one, best in zip(flat, bests, strict=True)])
    means = zip(_means(flat, proposed), bests, strict=True)
    bounds = [_bound(mean, best.n_wanted) for mean, best in means]
    candidates = _reached_on_any_rank(flat, bounds)
    for best, where, mean in zip(bests, candidates, _means(flat, candidates), strict=True):
        best.consider_only(where, mean.float().abs_())


def _own_best(grad: Tensor, support: Support, count: int) -> Tensor:
    """Where the ``count`` largest inactive entries of this rank are, in as few bytes as tell it."""
    best = Best(support, count)
    length = _piece(len(grad), grad.device)
    for start in range(0, len(grad), length):
        best.consider(start, grad[start : start + length].float().abs())
    best.trim()
    return best.where


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


def _reached_on_any_rank(flat: Sequence[Tensor], bounds: Sequence[Tensor]) -> list[Tensor]:
    """Which entries reach their bound on some rank; eight of them travel in a byte."""
    packed = [_packed(one, bound) for one, bound in zip(flat, bounds, strict=True)]
    every = from_every_rank(torch.cat(packed))
    union = every[0]
    for one in every[1:]:
        union |= one
    ends = list(accumulate(map(len, packed)))
    return [_unpacked(union[start:end]) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def _packed(grad: Tensor, bound: Tensor) -> Tensor:
    bits = _bits(grad.device)
    packed = []
    for piece in grad.split(_piece(len(grad), grad.device)):
        mask = (piece.abs() >= bound) & (piece != 0)  # a mean of zeros needs no message
        mask = torch.nn.functional.pad(mask, (0, -len(mask) % 8)).view(-1, 8)
        packed.append((mask * bits).sum(1, dtype=torch.uint8))
    return torch.cat(packed)


def _unpacked(packed: Tensor) -> Tensor:
    bits, length = _bits(packed.device), _piece(8 * len(packed), packed.device)
    masks = (((piece[:, None] & bits) > 0).flatten() for piece in packed.split(length // 8))  # one is alive at a time
    return torch.cat([mask.nonzero().flatten() + number * length for number, mask in enumerate(masks)])


def _piece(size: int, device: torch.device) -> int:
    """How many entries are looked at together, a multiple of eight."""
    return max(ON_GPU if works_together(device) else LEAST, size // PIECES // 8 * 8)


def _bits(device: torch.device) -> Tensor:
    bits: Tensor = 2 ** torch.arange(8, dtype=torch.uint8, device=device)
    return bits
