"""Which groups of weights are cut: scores of groups, and the order in which they go (Ke and Fan, section 3.3).

A weight may be in several groups at once, in one of its input channel and one of its output channel; it goes with the
first of them. The order is total: groups of equal score go by position, so that every rank and rerun cuts the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

__all__ = [
    "GROUP_CRITERIA",
    "GroupCriterion",
    "Scored",
    "cut",
    "mean_square",
    "range_",
    "signed_range",
    "split_networks",
]

GroupCriterion = Callable[[Tensor], Tensor]
"""Weights of each group, ``(groups, size)`` -> a score a group; the lowest are cut."""

Scored = tuple[Tensor, Tensor]
"""Scores of groups, ``(groups,)``, and the group of every stored entry of their weight, ``(entries,)``."""


def range_(weights: Tensor) -> Tensor:
    """The range of sizes, max |w| - min |w| (eq. 9), for the channels of convolutions.

    >>> range_(torch.tensor([[-3.0, 1.0], [2.0, 2.0]]))
    tensor([2., 0.])
    """
    size = _several(weights).abs()
    return size.amax(1) - size.amin(1)


def signed_range(weights: Tensor) -> Tensor:
    """The range itself, max w - min w, which the released code takes for eq. 9.

    >>> signed_range(torch.tensor([[-3.0, 1.0], [2.0, 2.0]]))
    tensor([4., 0.])
    """
    return _several(weights).amax(1) - weights.amin(1)


def mean_square(weights: Tensor) -> Tensor:
    """The mean of w² (eq. 10), for the units of linear layers.

    >>> mean_square(torch.tensor([[-3.0, 1.0], [2.0, 2.0]]))
    tensor([5., 4.])
    """
    return weights.square().mean(1)


GROUP_CRITERIA: dict[str, GroupCriterion] = {"range": range_, "signed_range": signed_range, "mean_square": mean_square}


def cut(
    scored: Mapping[str, Sequence[Scored]], threshold: float | None = None, budget: int | None = None
) -> dict[str, Tensor]:
    """Which stored entries of each weight stay, when the groups of lowest score are cut.

    Either all groups below ``threshold`` go, or as many as it takes for at most ``budget`` entries to stay. The last
    group of a weight always stays: an empty layer would cut the network in two.

    Args:
        scored: By weight, for each of its groupings the scores and the group of every stored entry.
        threshold: λ2.
        budget: How many entries may stay, of all weights together.

    >>> groups = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> cut({"a": [(torch.tensor([3.0, 1.0, 2.0]), groups)]}, budget=4)
    {'a': tensor([ True,  True, False, False,  True,  True])}
    >>> cut({"a": [(torch.tensor([3.0, 1.0, 2.0]), groups)]}, threshold=9.0)
    {'a': tensor([ True,  True, False, False, False, False])}
    """
    scores = torch.cat([score for axes in scored.values() for score, _ in axes])
    scores = scores.nan_to_num(nan=-torch.inf)
    place = torch.empty_like(scores, dtype=torch.long)
    place[scores.argsort(stable=True)] = torch.arange(len(scores), device=scores.device)
    places = iter(place.split([len(score) for axes in scored.values() for score, _ in axes]))
    when = {name: _first([next(places)[group] for _, group in axes], len(scores)) for name, axes in scored.items()}
    n_cut = int((scores < threshold).sum()) if threshold is not None else _to_budget(when, len(scores), budget)
    return {name: moment >= n_cut for name, moment in when.items()}


def split_networks(axes: Sequence[Scored], n: int) -> list[list[Scored]]:
    """The groups of each of ``n`` networks whose weights stand one after another in one weight.

    >>> both = split_networks([(torch.tensor([1.0, 2.0, 3.0, 4.0]), torch.tensor([0, 1, 1, 3]))], 2)
    >>> [(score.tolist(), group.tolist()) for ((score, group),) in both]
    [([1.0, 2.0], [0, 1, 1]), ([3.0, 4.0], [1])]
    """
    if n == 1:
        return [list(axes)]
    networks: list[list[Scored]] = [[] for _ in range(n)]
    for score, group in axes:
        size = len(score) // n
        counts = (group // size).bincount(minlength=n).tolist()
        for network, own, part in zip(networks, score.split(size), group.split(counts), strict=True):
            network.append((own, part % size))
    return networks


def _first(places: Sequence[Tensor], last: int) -> Tensor:
    """When each entry goes: with the first of its groups, and with none if they are the weight's last ones."""
    when = torch.stack(list(places)).amin(0)
    return torch.where(when == when.max(), last, when)


def _to_budget(when: Mapping[str, Tensor], n_groups: int, budget: int | None) -> int:
    """The smallest number of groups that must go for at most ``budget`` entries to stay."""
    if budget is None:
        raise ValueError("cut takes a threshold or a budget")
    going = torch.cat(list(when.values())).bincount(minlength=n_groups + 1)[:n_groups]
    staying = sum(len(moment) for moment in when.values()) - going.cumsum(0)
    enough = (staying <= budget).nonzero()
    total = sum(len(moment) for moment in when.values())
    return 0 if total <= budget else (int(enough[0]) + 1 if len(enough) else n_groups)


def _several(weights: Tensor) -> Tensor:
    if weights.shape[1] == 1:
        raise ValueError("a group of one weight has no range: use criterion='mean_square', or larger groups")
    return weights
