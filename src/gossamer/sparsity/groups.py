"""Groups of weights that stand and fall together (Ke and Fan, arXiv 2210.12957, section 3.1).

Every linear and convolutional weight is seen in one layout, ``(blocks, out, in, taps)``: a linear layer has one block
and one tap, a convolution has as many blocks as ``groups`` and one tap a position of its kernel. A grouping says which
flat positions belong together, one row a group. Where several networks are trained side by side in one weight (its
layer says so by an attribute ``networks``), each has a block of its own and is pruned for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd, _ConvTransposeNd

from gossamer.layers import SparseLayer, SparseWeight, match_names
from gossamer.names import lookup

__all__ = ["GROUPS", "GroupedWeight", "Groups", "grouped_weights", "input_", "kernel", "output", "weight"]

Groups = Callable[[Tensor], Tensor]
"""Flat positions, ``(blocks, out, in, taps)`` -> one row a group, ``(groups, size)``, every position once."""


def kernel(position: Tensor) -> Tensor:
    """The kernel from one input channel to one output channel; in a linear layer, a single weight.

    >>> kernel(torch.arange(8).view(1, 2, 2, 2)).tolist()
    [[0, 1], [2, 3], [4, 5], [6, 7]]
    """
    return position.flatten(0, 2)


def input_(position: Tensor) -> Tensor:
    """All that an input unit or channel sends out: a group of the first layer is a variable.

    >>> input_(torch.arange(6).view(1, 2, 3, 1)).tolist()
    [[0, 3], [1, 4], [2, 5]]
    """
    return position.transpose(1, 2).flatten(0, 1).flatten(1)


def output(position: Tensor) -> Tensor:
    """All that an output unit or channel takes in.

    >>> output(torch.arange(6).view(1, 2, 3, 1)).tolist()
    [[0, 1, 2], [3, 4, 5]]
    """
    return position.flatten(0, 1).flatten(1)


def weight(position: Tensor) -> Tensor:
    """Every weight for itself.

    >>> weight(torch.arange(3).view(1, 1, 3, 1)).tolist()
    [[0], [1], [2]]
    """
    return position.reshape(-1, 1)


GROUPS: dict[str, Groups] = {"kernel": kernel, "input": input_, "output": output, "weight": weight}


@dataclass(frozen=True)
class GroupedWeight:
    """A linear or convolutional weight of a network, plain or sparse.

    Example:
        >>> import gossamer
        >>> layer = gossamer.sparsify(nn.Linear(3, 2, bias=False), density=1.0, init="pretrained")
        >>> weight = grouped_weights(layer)[""]
        >>> weight.members("input").tolist(), tuple(weight.values().shape)
        ([[0, 3], [1, 4], [2, 5]], (6,))
    """

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
    def networks(self) -> int:
        """How many networks have a part of it: one, but for a stack of them."""
        return int(getattr(self.layer, "networks", 1))

    @property
    def size(self) -> int:
        """Number of its entries, active or not."""
        return self.stored.shape.numel()

    def values(self) -> Tensor:
        """All entries, flat and detached, zeros where nothing is active."""
        dense = self.sparse.dense_mean() if self.sparse is not None else self.parameter
        return dense.detach().flatten()

    def entries(self, dense: Tensor) -> Tensor:
        """Of a flat tensor with one element an entry, those that the parameter stores, in its shape."""
        return dense.view_as(self.parameter) if self.sparse is None else self.sparse.support.gather(dense)

    def members(self, groups: str | Groups) -> Tensor:
        """Flat positions of each group, ``(groups, size)``."""
        position = torch.arange(self.size, device=self.parameter.device)
        members = lookup("grouping", groups, GROUPS)(_layout(self.layer, position, tuple(self.stored.shape)))
        if callable(groups) and groups not in GROUPS.values():
            _check_partition(self.name, members, position)
        return members

    def spread(self, of_groups: Tensor, members: Tensor) -> Tensor:
        """A value of each group as a flat tensor with one element an entry."""
        dense = of_groups.new_empty(self.size)
        dense[members] = of_groups.unsqueeze(1).expand_as(members)
        return dense


def grouped_weights(model: nn.Module, exclude: Sequence[str] = ()) -> dict[str, GroupedWeight]:
    """The weights of all linear layers and convolutions, each once, by the names of their layers.

    Args:
        model: A plain network, or a converted one.
        exclude: Names of layers to leave out; they may hold ``*``.
    """
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
    return {name: weight for name, weight in found.items() if name not in left_out}


def _layout(layer: Any, position: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Flat positions as ``(blocks, out, in, taps)``."""
    blocks = getattr(layer, "groups", 1) * getattr(layer, "networks", 1)
    position = position.view(blocks, shape[0] // blocks, shape[1], -1)
    return position.transpose(1, 2) if isinstance(layer, _ConvTransposeNd) else position


def _check_partition(name: str, members: Tensor, position: Tensor) -> None:
    if members.dim() != 2 or not torch.equal(members.flatten().sort().values, position):
        raise ValueError(
            f"a grouping gives flat positions, (groups, size), with every one of the {len(position)} entries of "
            f"{name or 'the layer'} once; got a tensor of shape {tuple(members.shape)}"
        )
