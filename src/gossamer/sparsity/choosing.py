"""Who stays and who comes in: one choice for each weight, or one over all of them, of exactly as many entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor

from gossamer.layers import SparseWeight
from gossamer.sparsity.criteria import ENTRYWISE, GradientCriterion
from gossamer.sparsity.ranks import from_first_rank
from gossamer.sparsity.selection import top_mask, where
from gossamer.sparsity.weight_batch import WeightBatch, are_one_kind
from gossamer.types import Criterion, WeightStats

__all__ = [
    "Scope",
    "addition_score",
    "grow",
    "joint_scores",
    "keep",
    "n_removed",
    "overlap",
    "removal_scores",
    "survivors",
]

Scope = Literal["layer", "global"]


def removal_scores(criterion: Criterion, weights: Mapping[str, SparseWeight]) -> dict[str, Tensor]:
    """Scores of the active entries of each weight, finite and the same on every rank."""
    if criterion in ENTRYWISE and are_one_kind(weights.values()):
        # All weights at once, so that a GPU does not wait for the launches of many small kernels.
        joint = WeightBatch(list(weights.values()))
        return dict(zip(weights, joint_scores(criterion, joint).split(joint.active.lengths), strict=True))
    return {
        name: from_first_rank(_as_score(criterion(weight.stats()), len(weight.mean), "removal"))
        for name, weight in weights.items()
    }


def joint_scores(criterion: Criterion, joint: WeightBatch) -> Tensor:
    """As :func:`removal_scores`, of weights taken as one, for an entrywise criterion."""
    return from_first_rank(_as_score(criterion(joint.stats()), joint.active.total, "removal"))


def addition_score(criterion: Criterion, weight: SparseWeight, kept: Tensor, grad: Tensor | None) -> Tensor:
    """Scores of all entries of a weight, the same on every rank; -∞ for those that are kept or must stay zero.

    Args:
        criterion: The addition criterion.
        weight: Whose entries.
        kept: Flat positions of the active entries that stay.
        grad: The dense gradient, where the criterion asks for one.
    """
    flat = None if grad is None else grad.flatten()
    of_gradient = type(criterion) is GradientCriterion and flat is not None
    mean = flat if of_gradient and flat is not None else weight.dense_mean().flatten()  # nobody looks at it there
    score = _as_score(criterion(WeightStats(mean=mean, grad=flat)), len(mean), "addition")
    if not isinstance(criterion, GradientCriterion):  # gradients are averaged already; any other score may be random
        from_first_rank(score)
    score.index_fill_(0, kept, -torch.inf)
    first, last = weight.support.frozen
    if first < last:
        score[first:last] = -torch.inf
    return score


def survivors(weight: SparseWeight, kept: Tensor, n_kept: int) -> Tensor:
    """Flat positions of the ``n_kept`` active entries that the mask ``kept`` marks."""
    position = weight.support.position
    assert position is not None
    return position[where(kept, n_kept)].long()


def n_removed(kept: Mapping[str, Tensor], rate: float, scope: Scope) -> dict[str, int]:
    """How many entries the masks of :func:`keep` remove from each weight.

    >>> n_removed({"a": torch.tensor([True, False, False])}, 0.7, "layer")
    {'a': 2}
    """
    if scope == "layer":  # known without looking, for which a GPU would have to be waited for
        return {name: int(rate * len(mask)) for name, mask in kept.items()}
    return {name: int((~mask).sum()) for name, mask in kept.items()}


def keep(scores: Mapping[str, Tensor], rate: float, scope: Scope) -> dict[str, Tensor]:
    """Masks of the entries that stay when a share ``rate`` of them, those with the lowest scores, is removed.

    >>> keep({"a": torch.tensor([1.0, 4.0]), "b": torch.tensor([2.0, 3.0])}, 0.5, "layer")
    {'a': tensor([False,  True]), 'b': tensor([False,  True])}
    """
    if scope == "layer":
        return {name: top_mask(score, len(score) - int(rate * len(score))) for name, score in scores.items()}
    # The best entry of each weight is safe: an empty layer would cut the network in two.
    safe = {name: score.index_fill(0, score.argmax(), torch.inf) for name, score in scores.items()}
    total = sum(len(score) for score in scores.values())
    return _best_of_all(safe, max(len(safe), total - int(rate * total)))


def grow(removed: Mapping[str, int], score: Callable[[str], Tensor], scope: Scope) -> dict[str, Tensor]:
    """Flat positions that are added to each weight: the best of the dense scores, as many as were removed.

    Args:
        removed: How many entries each weight lost.
        score: Dense scores of a weight by its name, -∞ where nothing can be added.
        scope: Whether every weight takes in as many as it lost, or only all together.
    """
    if scope == "layer":  # one after another, so that only one weight's dense score is alive at a time
        return {name: where(top_mask(score(name), count), count) for name, count in removed.items()}
    added = _best_of_all({name: score(name) for name in removed}, sum(removed.values()))
    return {name: mask.nonzero().flatten() for name, mask in added.items()}


def overlap(kept: Tensor, other: Tensor) -> float:
    """Intersection over union of what two masks remove; 1 where neither removes anything.

    >>> overlap(torch.tensor([True, False, False]), torch.tensor([False, True, False]))
    0.3333333333333333
    """
    union = int((~(kept & other)).sum())
    return int((~kept & ~other).sum()) / union if union else 1.0


def _as_score(score: Tensor, n_entries: int, kind: str) -> Tensor:
    """A copy in float32 at least, in which every number is finite: ±∞ are left to mark entries with."""
    if score.shape != (n_entries,):
        raise ValueError(f"the {kind} criterion must give {n_entries} scores, one an entry; got {tuple(score.shape)}")
    score = score.to(torch.promote_types(score.dtype, torch.float32), copy=True)
    return score.nan_to_num_(nan=torch.finfo(score.dtype).min)


def _best_of_all(scores: Mapping[str, Tensor], k: int) -> dict[str, Tensor]:
    """The ``k`` best of all weights together, given back weight by weight."""
    if not scores:
        return {}
    masks = top_mask(torch.cat(list(scores.values())), k).split([len(score) for score in scores.values()])
    return dict(zip(scores, masks, strict=True))
