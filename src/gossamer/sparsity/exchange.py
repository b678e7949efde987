"""An update of the subspace: which entries leave, which come in, and the move that follows.

A share of the active entries, those with the lowest removal scores, is exchanged for as many others, those with the
highest addition scores. The budget is constant to the last integer: of every weight, or with ``scope="global"`` of all
weights together. The choice is written for weights laid end to end. A GPU makes it for many at once, in two hundred
kernels instead of two thousand and with one wait; a CPU for one after another, so that only one dense score is alive.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.distributed import from_first_rank
from gossamer.kernels.ordered import merged, places, top_mask
from gossamer.layers import SparseWeight
from gossamer.layers.weight import RegrowStd, stats_of
from gossamer.sparsity.criteria import ENTRYWISE, GradientCriterion
from gossamer.sparsity.gradients import Grads, Weights
from gossamer.sparsity.moves import Moved, WeightBatch, forget_histories, move
from gossamer.sparsity.selection import Best, Segments, runs, works_together
from gossamer.types import Criterion, WeightStats

Scope = Literal["layer", "global"]

LIMIT = 1 << 22  # dense entries that a GPU sorts together: some 40 bytes each, for as long as that takes


@dataclass(frozen=True)
class Exchange:
    """Exchanges active entries of low removal scores for others of high addition scores."""

    removal: Criterion
    addition: Criterion
    scope: Scope = "layer"
    regrow_std: RegrowStd | None = None
    optimizers: Sequence[Optimizer] = ()  # their states follow

    @torch.no_grad()
    def __call__(
        self, weights: Weights, grads: Grads, shortlists: Mapping[str, Best], rate: float
    ) -> dict[str, Any] | None:
        """Exchange a share ``rate`` of the active entries; ``None``, and nothing changes, if a gradient is not finite.

        ``grads`` are taken out as they are used; ``shortlists`` replace those that were seen in pieces. Returns what
        there is to record, by weight.
        """
        parts: dict[torch.device | None, dict[str, SparseWeight]] = {}
        for name, weight in weights.items():
            parts.setdefault(None if self.scope == "global" else weight.mean.device, {})[name] = weight
        batches = [WeightBatch(part) for part in parts.values()]
        choices = [self._choose(batch, grads, shortlists, rate) for batch in batches]
        if not all(choice.is_finite for choice in choices):
            return None
        removed: dict[str, int] = {}
        replaced: dict[str, int] = {}
        for batch, choice in zip(batches, choices, strict=True):
            move(batch, choice.moved, batch.regrown(choice.kept, self.regrow_std), self.optimizers)
            removed |= zip(batch.names, choice.removed, strict=True)
            replaced |= zip(batch.names, choice.replaced, strict=True)
        for optimizer in self.optimizers:
            forget_histories(optimizer)
        columns = {
            "removed": removed,
            "replaced": replaced,
            "active": {name: len(weight.mean) for name, weight in weights.items()},
        }
        return {key: {name: column[name] for name in weights} for key, column in columns.items()}

    def _choose(self, batch: WeightBatch, grads: Grads, shortlists: Mapping[str, Best], rate: float) -> _Choice:
        kept, removed = keep(removal_scores(self.removal, batch), batch.active, rate, self.scope)
        number, entries, largest = self._grow(batch, kept, grads, shortlists)
        moved = Moved.to(batch, number, entries)
        is_finite = largest.isfinite().all().expand(1)
        numbers = torch.cat([is_finite, moved.entries.counts(moved.is_new)])
        finite, *replaced = numbers.tolist()  # here, and only here, the host waits for a GPU
        return _Choice(kept, moved, bool(finite), removed, replaced)

    def _grow(
        self, batch: WeightBatch, kept: Tensor, grads: Grads, shortlists: Mapping[str, Best]
    ) -> tuple[Tensor, Segments | None, Tensor]:
        """Numbers of the entries that are active from now on, how many each weight has, and the largest |gradient|."""
        _, old = batch.numbers
        found, largest = [], []
        alone = [name in shortlists for name in batch.names]
        limit = None if self.scope == "global" else LIMIT if works_together(batch.device) else 1
        before = n_before = 0
        for first, last in runs(batch.sizes, limit, alone):
            names, lengths = batch.names[first:last], batch.active.lengths[first:last]
            dense, part = Segments(batch.sizes[first:last], batch.device), slice(n_before, n_before + sum(lengths))
            stays, active = kept[part], old[part] - before
            if alone[first]:
                shortlist = shortlists[names[0]]
                entries, _ = merged(active.index_select(0, places(stays)), shortlist.best(stays))
                largest.append(old.new_tensor(0.0 if shortlist.is_finite else torch.nan, dtype=torch.float32))
            else:
                score, size = self._addition_scores(names, batch.weights[first:last], grads, dense)
                largest.append(size)
                # Entries that stay score +∞, so that one top-k gives the whole new support.
                score[active] = torch.where(stays, torch.inf, score[active])
                one_budget = self.scope == "global"
                entries = places(top_mask(score, sum(lengths))) if one_budget else dense.top(score, lengths)
                if not isinstance(self.addition, GradientCriterion):  # any other score may be random
                    from_first_rank(entries)
            found.append(entries + before)
            before, n_before = before + dense.total, part.stop
        number = torch.cat(found)
        return number, None if self.scope == "layer" else _lengths(batch, number), torch.stack(largest)

    def _addition_scores(
        self, names: Sequence[str], weights: Sequence[SparseWeight], grads: Grads, dense: Segments
    ) -> tuple[Tensor, Tensor]:
        """Scores of all entries of some weights, -∞ for those that must stay zero, and the largest |gradient|."""
        own = [grads.pop(name, None) for name in names]
        given = [grad for grad in own if grad is not None]
        if type(self.addition) is GradientCriterion and len(given) == len(own):
            score = _absolute(given, dense)
            size = score.amax()
        else:
            size = torch.stack([torch.linalg.vector_norm(grad, torch.inf) for grad in given] or [torch.zeros(())])
            size = size.amax().to(dense.device)
            score = torch.cat([self._addition_score(w, grad) for w, grad in zip(weights, own, strict=True)])
        for weight, start in zip(weights, dense.starts, strict=True):
            low, high = weight.support.frozen
            if low < high:
                score[start + low : start + high] = -torch.inf
        return score, size

    def _addition_score(self, weight: SparseWeight, grad: Tensor | None) -> Tensor:
        flat = None if grad is None else grad.flatten()
        mean = weight.dense_mean().flatten()
        return _as_score(self.addition(WeightStats(mean=mean, grad=flat)), len(mean), "addition")


class _Choice(NamedTuple):
    kept: Tensor
    moved: Moved
    is_finite: bool
    removed: list[int]  # how many entries of each weight leave
    replaced: list[int]  # and how many of its new ones were not active before


def _lengths(batch: WeightBatch, number: Tensor) -> Segments:
    """How the entries of these numbers are spread over the weights."""
    ends = torch.tensor(list(accumulate(batch.sizes)), device=batch.device)
    up_to = torch.searchsorted(number, ends)
    return Segments(up_to.diff(prepend=up_to.new_zeros(1)).tolist(), batch.device)


def removal_scores(criterion: Criterion, batch: WeightBatch) -> Tensor:
    """Scores of the active entries of all weights, finite."""
    if criterion in ENTRYWISE and batch.is_one_kind and works_together(batch.device):
        return _as_score(criterion(batch.stats()), batch.active.total, "removal")
    return torch.cat([_as_score(criterion(stats_of(weight)), len(weight.mean), "removal") for weight in batch.weights])


def keep(score: Tensor, active: Segments, rate: float, scope: Scope) -> tuple[Tensor, list[int]]:
    """Which entries stay when a share ``rate`` of lowest score leaves, by the first rank's scores; how many leave."""
    if scope == "layer":
        removed = [int(rate * length) for length in active.lengths]
        n_kept = [length - n for length, n in zip(active.lengths, removed, strict=True)]
        kept = active.top_mask(score, n_kept)
        from_first_rank(kept.view(torch.uint8))  # the choice is an eighth of the scores
        return kept, removed
    kept = active.top_mask_of_all(score, active.total - int(rate * active.total))
    return kept, active.counts(~kept).tolist()


def _as_score(score: Tensor, n_entries: int, kind: str) -> Tensor:
    """A copy in float32 at least, in which every number is finite: ±∞ are left to mark entries with."""
    if score.shape != (n_entries,):
        raise ValueError(f"the {kind} criterion must give {n_entries} scores, one per entry; got {tuple(score.shape)}")
    score = score.to(torch.promote_types(score.dtype, torch.float32), copy=True)
    # -0 and 0 are equal, but perhaps not for a sort by their bits.
    return score.nan_to_num_(nan=torch.finfo(score.dtype).min).add_(0.0)


def _absolute(grads: Sequence[Tensor], dense: Segments) -> Tensor:
    """|gradient| of all entries by their numbers, whatever the order of the gradients in memory."""
    dtype = reduce(torch.promote_types, {grad.dtype for grad in grads})
    score = torch.empty(dense.total, dtype=dtype, device=dense.device)
    parts = [part.view(grad.shape) for part, grad in zip(score.split(dense.lengths), grads, strict=True)]
    torch._foreach_copy_(parts, list(grads))
    return score.abs_()
