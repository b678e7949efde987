"""Groups of weights that are kept or cut together, and which of them are cut (Ke and Fan, arXiv 2210.12957).

Every linear and convolutional weight is seen in one layout, ``(blocks, out, in, taps)``: a linear layer has one block
and one tap, a convolution as many blocks as ``groups`` and one tap per position of its kernel. A grouping lists the
positions that belong together, one row per group.

A weight may be in several groups at once, in one of its input channel and one of its output channel; it goes with the
first of them. The order in which groups go is total: those of equal score go by position, so that every rank and rerun
cuts the same.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gossamer._text.names import lookup
from gossamer.layers import SparseLayer, SparseWeight, match_names

Groups = Callable[[Tensor], Tensor]
"""Flat positions, ``(blocks, out, in, taps)`` -> one row per group, ``(groups, size)``, every position once."""

Axes = str | Groups | Sequence[str | Groups]
"""A grouping by name or function, or several of them."""


def kernel(position: Tensor) -> Tensor:
    """The kernel from one input channel to one output channel; in a linear layer, a single weight."""
    return position.flatten(0, 2)


def input_(position: Tensor) -> Tensor:
    """All weights from one input unit or channel; in the first layer such a group is a variable."""
    return position.transpose(1, 2).flatten(0, 1).flatten(1)


def output(position: Tensor) -> Tensor:
    """All weights into one output unit or channel."""
    return position.flatten(0, 1).flatten(1)


def weight(position: Tensor) -> Tensor:
    """Every weight on its own."""
    return position.reshape(-1, 1)


GROUPS: dict[str, Groups] = {"kernel": kernel, "input": input_, "output": output, "weight": weight}


@dataclass(frozen=True)
class GroupedWeight:
    """A linear or convolutional weight of a network, plain or sparse."""

    name: str
    layer: Any  # the plain layer, or the template of the sparse one: the shape of the product
    stored: nn.Parameter | SparseWeight

    @property
    def sparse(self) -> SparseWeight | None:
        """The sparse weight; ``None`` for a plain one."""
        return self.stored if isinstance(self.stored, SparseWeight) else None

    @property
    def parameter(self) -> nn.Parameter:
        """What the optimizer holds: the dense weight, or the vector of active entries."""
        return self.stored.mean if isinstance(self.stored, SparseWeight) else self.stored

    @property
    def is_conv(self) -> bool:
        """Whether it is the weight of a convolution."""
        return isinstance(self.layer, _ConvNd)

    @property
    def size(self) -> int:
        """Number of its entries, active or not."""
        return self.stored.shape.numel()

    def values(self) -> Tensor:
        """All entries, flat and detached, zeros where nothing is active."""
        dense = self.sparse.dense_mean() if self.sparse is not None else self.parameter
        return dense.detach().flatten()

    def entries(self, dense: Tensor) -> Tensor:
        """The elements of a flat dense tensor that the parameter stores, in its shape."""
        return dense.view_as(self.parameter) if self.sparse is None else self.sparse.support.gather(dense)

    def members(self, groups: str | Groups) -> Tensor:
        """Flat positions of each group, ``(groups, size)``."""
        position = torch.arange(self.size, device=self.parameter.device)
        members = lookup("grouping", groups, GROUPS)(_layout(self.layer, position, tuple(self.stored.shape)))
        if callable(groups) and groups not in GROUPS.values():
            _check_partition(self.name, members, position)
        return members

    def spread(self, of_groups: Tensor, members: Tensor) -> Tensor:
        """One value per group as a flat tensor with one element per entry."""
        dense = of_groups.new_empty(self.size)
        dense[members] = of_groups.unsqueeze(1).expand_as(members)
        return dense


def grouped_weights(model: nn.Module, exclude: Sequence[str] = ()) -> dict[str, GroupedWeight]:
    """The weights of all linear layers and convolutions that ``exclude`` does not match, each once, by layer."""
    found: dict[str, GroupedWeight] = {}
    seen: set[int] = set()
    for name, module in model.named_modules():
        layer = module.template if isinstance(module, SparseLayer) else module
        if not isinstance(layer, nn.Linear | _ConvNd):
            continue
        stored: Any = module.weight
        if id(stored) not in seen and isinstance(stored, nn.Parameter | SparseWeight):
            seen.add(id(stored))
            parts = [part for part in name.split(".") if part not in ("_orig_mod", "_forward_module")]
            found[".".join(parts)] = GroupedWeight(".".join(parts), layer, stored)
    names = (exclude,) if isinstance(exclude, str) else exclude
    left_out = match_names(list(found), names, "exclude")
    weights = {name: weight for name, weight in found.items() if name not in left_out}
    if not weights:
        raise ValueError("this model has no linear layer or convolution whose weights could be grouped or pruned")
    return weights


def check_thresholds(threshold: Any, weights: Mapping[str, GroupedWeight]) -> None:
    """Thresholds by layer must be there for every layer."""
    if isinstance(threshold, Mapping) and not threshold.keys() >= weights.keys():
        missing = ", ".join(sorted(weights.keys() - threshold.keys()))
        raise ValueError(f"a threshold for each layer must name them all, or exclude them; missing: {missing}")


def _layout(layer: Any, position: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat positions as ``(blocks, out, in, taps)``."""
    blocks = layer.groups if isinstance(layer, _ConvNd) else 1
    position = position.view(blocks, shape[0] // blocks, shape[1], -1)
    return position.transpose(1, 2) if isinstance(layer, _ConvTransposeNd) else position


def _check_partition(name: str, members: Tensor, position: Tensor) -> None:
    if members.dim() != 2 or not torch.equal(members.flatten().sort().values, position):
        raise ValueError(
            f"a grouping gives flat positions, (groups, size), with every one of the {len(position)} entries of "
            f"{name or 'the layer'} once; got a tensor of shape {tuple(members.shape)}"
        )


GroupCriterion = Callable[[Tensor], Tensor]
"""Weights of each group, ``(groups, size)`` -> one score per group; the lowest are cut."""

Scored = tuple[Tensor, Tensor]
"""Scores of groups, ``(groups,)``, and the group of every stored entry of their weight, ``(entries,)``."""


def range_(weights: Tensor) -> Tensor:
    """The range of sizes, max |w| - min |w| (eq. 9), for the channels of convolutions."""
    size = _several(weights).abs()
    return size.amax(1) - size.amin(1)


def signed_range(weights: Tensor) -> Tensor:
    """The range itself, max w - min w, which the released code takes for eq. 9."""
    return _several(weights).amax(1) - weights.amin(1)


def mean_square(weights: Tensor) -> Tensor:
    """The mean of w² (eq. 10), for the units of linear layers."""
    return weights.square().mean(1)


GROUP_CRITERIA: dict[str, GroupCriterion] = {"range": range_, "signed_range": signed_range, "mean_square": mean_square}


@dataclass(frozen=True)
class Scoring:
    """How the groups of a weight are scored: by which groupings, and by which criterion.

    ``None`` is the paper's choice, see :class:`gossamer.sparsity.Prune`.
    """

    groups: Axes | None = None
    criterion: str | GroupCriterion | None = None

    def __call__(self, weight: GroupedWeight) -> list[Scored]:
        """Scores and groups of a weight by each grouping."""
        values, criterion = weight.values(), self.criterion_of(weight)
        scored = []
        for members in self._members(weight):
            number = torch.arange(len(members), device=members.device)
            group = weight.entries(weight.spread(number, members)).flatten()
            scored.append((criterion(values[members]).double(), group))
        return scored

    def criterion_of(self, weight: GroupedWeight) -> GroupCriterion:
        """One criterion for all groupings of a weight: their scores are put into one order."""
        if self.criterion is not None:
            return lookup("criterion", self.criterion, GROUP_CRITERIA)
        has_ranges = weight.is_conv and all(members.shape[1] > 1 for members in self._members(weight))
        return range_ if has_ranges else mean_square

    def _members(self, weight: GroupedWeight) -> list[Tensor]:
        axes = self.groups or (("input", "output") if weight.is_conv else "input")
        return [weight.members(groups) for groups in ((axes,) if isinstance(axes, str) or callable(axes) else axes)]


def cut(
    scored: Mapping[str, Sequence[Scored]], threshold: float | None = None, budget: int | None = None
) -> dict[str, Tensor]:
    """Which stored entries of each weight stay, when the groups of lowest score are cut.

    ``scored`` has, for each grouping of each weight, the scores and the group of every stored entry. Either all groups
    below ``threshold`` go, or as many as it takes for at most ``budget`` entries of all weights to stay. The last group
    of a weight always stays: an empty layer would cut the network in two.
    """
    scores = torch.cat([score for axes in scored.values() for score, _ in axes]).nan_to_num(nan=-torch.inf)
    place = torch.empty_like(scores, dtype=torch.long)
    place[scores.argsort(stable=True)] = torch.arange(len(scores), device=scores.device)
    places = iter(place.split([len(score) for axes in scored.values() for score, _ in axes]))
    when = {name: _first([next(places)[group] for _, group in axes], len(scores)) for name, axes in scored.items()}
    n_cut = int((scores < threshold).sum()) if threshold is not None else _to_budget(when, len(scores), budget)
    return {name: moment >= n_cut for name, moment in when.items()}


def _first(places: Sequence[Tensor], last: int) -> Tensor:
    """When each entry goes: with the first of its groups, or never if that is the weight's last one."""
    when = torch.stack(list(places)).amin(0)
    return torch.where(when == when.max(), last, when)


def _to_budget(when: Mapping[str, Tensor], n_groups: int, budget: int | None) -> int:
    """The smallest number of groups that must go for at most ``budget`` entries to stay."""
    if budget is None:
        raise ValueError("cut takes a threshold or a budget")
    moments = torch.cat(list(when.values()))
    gone = moments.bincount(minlength=n_groups + 1)[:n_groups].cumsum(0)  # with the first group, with the first two, …
    return 0 if len(moments) <= budget else min(n_groups, 1 + int((len(moments) - gone > budget).sum()))


def _several(weights: Tensor) -> Tensor:
    if weights.shape[1] == 1:
        raise ValueError("a group of one weight has no range: use criterion='mean_square', or larger groups")
    return weights
