"""An update of the subspace for all weights at once, for devices that wait for kernels to be launched.

The choice is that of ``choosing`` and the move that of ``moving``, entry by entry, but a network is one weight here:
two hundred kernels instead of two thousand, and the host waits for the device once. On a CPU, where nothing is
launched, the sorts would cost more than they save, and dense scores of many weights would be alive together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.layers.weight import RegrowStd
from gossamer.sparsity.choosing import joint_scores
from gossamer.sparsity.criteria import ENTRYWISE
from gossamer.sparsity.gradients import Grads, Weights
from gossamer.sparsity.moves import move_together
from gossamer.sparsity.segments import Segments
from gossamer.sparsity.weight_batch import WeightBatch, are_one_kind
from gossamer.types import Criterion

__all__ = ["exchange", "fits", "holds"]

DEVICES = {"cuda"}
LIMIT = 1 << 22  # dense entries that are sorted together: some 40 bytes each, for as long as that takes
WHOLE = 1 << 27  # dense entries of the gradients that are there together: half a gigabyte in float32


def holds(weights: Weights) -> bool:
    """Whether these weights are on a GPU, and their dense gradients few enough to be there together.

    >>> holds({})
    False
    """
    on_gpu = bool(weights) and all(weight.mean.device.type in DEVICES for weight in weights.values())
    return on_gpu and sum(weight.support.size for weight in weights.values()) <= WHOLE


def fits(weights: Weights, grads: Grads, rate: float, removal: Sequence[Criterion]) -> bool:
    """Whether :func:`exchange` can do this update: weights of one kind on a GPU, each with its gradient.

    Args:
        weights: Those that move.
        grads: Of every weight that took part in the loss.
        rate: Share of the active entries that is removed.
        removal: All criteria that score the active entries.
    """
    return (
        are_one_kind(weights.values())
        and all(weight.mean.device.type in DEVICES for weight in weights.values())
        and grads.keys() == weights.keys()
        and len({grad.dtype for grad in grads.values()}) == 1
        and all(int(rate * len(weight.mean)) < len(weight.mean) for weight in weights.values())
        and all(criterion in ENTRYWISE for criterion in removal)
    )


@torch.no_grad()
def exchange(
    weights: Weights,
    grads: Grads,
    rate: float,
    removal: Criterion,
    *,
    compare: Mapping[str, Criterion],
    regrow_std: RegrowStd | None,
    optimizers: Sequence[Optimizer],
) -> dict[str, Any] | None:
    """Remove a share ``rate`` of each weight's entries and add those with the largest |gradient|.

    Args:
        weights: For which :func:`fits` holds.
        grads: Their dense gradients; they are taken out.
        rate: Share of the active entries of each weight that is removed.
        removal: Score of the active entries.
        compare: Further removal criteria, whose choices are only compared.
        regrow_std: σ of a new entry.
        optimizers: Those whose state follows.

    Returns:
        What there is to record, by weight; ``None`` if a gradient is not finite, and then nothing has changed.

    Example:
        >>> import gossamer
        >>> from gossamer.sparsity.criteria import magnitude
        >>> layer = gossamer.sparsify(torch.nn.Linear(4, 2), density=0.5)
        >>> grad = torch.arange(8.0).view(2, 4)
        >>> parts = {"compare": {}, "regrow_std": None, "optimizers": [torch.optim.SGD(layer.parameters())]}
        >>> exchange({"": layer.weight}, {"": grad}, 0.5, magnitude, **parts)["removed"]
        {'': 2}
        >>> bool((layer.support.position == 7).any())
        True
    """
    batch = WeightBatch(list(weights.values()))
    removed = [int(rate * length) for length in batch.active.lengths]
    kept = _keep(batch, removal, removed)
    shared = [batch.active.counts(~(kept | _keep(batch, other, removed))) for other in compare.values()]
    starts, old = _numbered(batch)
    new, largest = _grow(batch, old, kept, [grads.pop(name) for name in weights])
    slot = torch.searchsorted(old, new).clamp_max_(len(old) - 1)
    is_new = old[slot] != new
    counts = torch.stack([batch.active.counts(is_new), *shared])
    finite = largest.isfinite().all().expand(len(counts), 1)
    rows = torch.cat([finite, counts], 1).tolist()  # here, and only here, the host waits
    if not rows[0][0]:
        return None
    move_together(batch, new - starts, slot, is_new, batch.regrown(kept, regrow_std), optimizers)
    return _changes(weights, removed, rows, compare)


def _keep(batch: WeightBatch, criterion: Criterion, removed: Sequence[int]) -> Tensor:
    """Mask of the active entries that stay."""
    score = joint_scores(criterion, batch) + 0.0  # -0 and 0 are equal, but perhaps not for a sort by their bits
    n_kept = [length - n for length, n in zip(batch.active.lengths, removed, strict=True)]
    kept = torch.zeros(len(score), dtype=torch.bool, device=score.device)
    return kept.index_fill_(0, batch.active.best(score, n_kept), True)


def _numbered(batch: WeightBatch) -> tuple[Tensor, Tensor]:
    """For every active entry the number of its weight's first dense entry, and its own."""
    firsts = [sum(batch.sizes[:i]) for i in range(len(batch.sizes))]
    starts = batch.active.spread(batch.active.table([firsts])[0])
    return starts, torch.cat(batch.positions()) + starts


def _grow(batch: WeightBatch, old: Tensor, kept: Tensor, grads: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Numbers of the entries that are active from now on, sorted, and the largest |gradient| of each group."""
    found, largest = [], []
    before = n_before = 0
    for first, last in _groups(batch.sizes):
        group, dense = batch.weights[first:last], Segments(batch.sizes[first:last], batch.device)
        lengths = batch.active.lengths[first:last]
        part = slice(n_before, n_before + sum(lengths))
        score = _absolute(grads[first:last], dense)
        grads[first:last] = [old[:0]] * len(group)  # nothing dense stays
        largest.append(score.amax())
        active = old[part] - before
        # Who stays is better than any other: the best of all entries are then the whole new support.
        score[active] = torch.where(kept[part], torch.inf, score[active])
        for weight, start in zip(group, dense.starts, strict=True):
            low, high = weight.support.frozen
            if low < high:
                score[start + low : start + high] = -torch.inf
        found.append(dense.best(score, lengths).sort().values + before)
        before, n_before = before + dense.total, part.stop
    return torch.cat(found), torch.stack(largest)


def _absolute(grads: Sequence[Tensor], dense: Segments) -> Tensor:
    """|gradient| of all entries by their numbers, whatever the order of the gradients in memory."""
    score = torch.empty(dense.total, dtype=grads[0].dtype, device=dense.device)
    parts = [part.view(grad.shape) for part, grad in zip(score.split(dense.lengths), grads, strict=True)]
    torch._foreach_copy_(parts, list(grads))
    return score.abs_()


def _groups(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Ranges of weights with at most ``LIMIT`` dense entries together, or of one that has more."""
    first, total = 0, 0
    for number, size in enumerate(sizes):
        if total and total + size > LIMIT:
            yield first, number
            first, total = number, 0
        total += size
    yield first, len(sizes)


def _changes(
    weights: Weights, removed: Sequence[int], rows: Sequence[Sequence[int]], compare: Mapping[str, Criterion]
) -> dict[str, Any]:
    """The record: a row each of how many entries are new and of what the other criteria would have removed as well."""
    replaced, *shared = [row[1:] for row in rows]
    changes: dict[str, Any] = {"removed": dict(zip(weights, removed, strict=True))}
    if compare:
        overlaps = [[_overlap(both, n) for both, n in zip(row, removed, strict=True)] for row in shared]
        changes["iou"] = {
            name: dict(zip(weights, row, strict=True)) for name, row in zip(compare, overlaps, strict=True)
        }
    changes["replaced"] = dict(zip(weights, replaced, strict=True))
    changes["active"] = {name: len(weight.mean) for name, weight in weights.items()}
    return changes


def _overlap(both: int, removed: int) -> float:
    """Intersection over union of two sets of ``removed`` entries that have ``both`` in common."""
    return both / (2 * removed - both) if removed else 1.0
