"""Which channels a network still needs: those that something living reads and that no constant can replace.

A constant channel that is read without zero padding adds a constant, which goes into the reader's bias. Read with zero
padding it adds another number at the border, so one constant channel stays in the name of all of them: the weights of
the others are added to its own, in proportion to their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gossamer.compaction.channels import Analysis, columns, pads_with_zeros, taps
from gossamer.compaction.operations import Operation

__all__ = ["Survivors", "plan"]


class Survivors(NamedTuple):
    """What stays of every space, and the channel of each that stands for other constant ones."""

    kept: dict[int, Tensor]  # space -> sorted channels
    stands_in: dict[int, int]  # space -> channel


class _Reading(NamedTuple):
    """How a layer reads the channels of a space: its needs change with the rows that stay of the layer itself."""

    layer: Any
    constant: Tensor  # (channels,)
    value: Tensor
    writes: int  # the space of its outputs


def plan(operations: Sequence[Operation], known: Analysis) -> Survivors:
    """Shrink every space that is not pinned until nothing more can go."""
    readings = _readings(operations, known)
    kept = {root: _all(space.size) for root, space in enumerate(known.spaces) if known.root(root) == root}
    stands_in: dict[int, int] = {}
    shrinks = True
    while shrinks:
        shrinks = False
        for space, readers in readings.items():
            if known.spaces[space].pinned:
                continue
            alive, stand_in = _needed(readers, kept, kept[space], int(known.spaces[space].size or 0))
            shrinks |= len(alive) < len(kept[space])
            kept[space] = alive
            stands_in.pop(space, None)
            if stand_in is not None:
                stands_in[space] = stand_in
    return Survivors(kept, stands_in)


def _readings(operations: Sequence[Operation], known: Analysis) -> dict[int, list[_Reading]]:
    """By space, the layers that read it; of a space that nothing reads, none."""
    found: dict[int, list[_Reading]] = {
        root: [] for root, space in enumerate(known.spaces) if known.root(root) == root and space.size is not None
    }
    for operation in operations:
        if operation.kind != "mix" or known.tensors[operation.name].layout == "unknown":
            continue
        source = known.tensors[operation.inputs[0]]
        space, writes = known.root(source.space), known.root(known.tensors[operation.name].space)
        if space in found:
            nothing = torch.zeros(known.spaces[space].size or 0, dtype=torch.bool)
            constant = nothing if source.constant is None else source.constant.cpu()
            value = nothing.double() if source.value is None else source.value.cpu()
            found[space].append(_Reading(operation.module, constant, value, writes))
    return found


def _needed(readers: Sequence[_Reading], kept: dict[int, Tensor], own: Tensor, size: int) -> tuple[Tensor, int | None]:
    """Channels that must stay, and among them the one that stands for the constant ones that go.

    They are among ``own``, those that stayed so far: sets that only shrink come to rest.
    """
    needed = torch.zeros(size, dtype=torch.bool)
    merged = torch.zeros(size, dtype=torch.bool)
    candidate = torch.zeros(size, dtype=torch.float64).index_fill(0, own, torch.inf)
    for reader in readers:
        reads = _reads(reader, kept[reader.writes], size)
        needed |= reads & ~reader.constant
        if pads_with_zeros(reader.layer):
            shows = reads & reader.constant & (reader.value != 0)
            merged |= shows
            if shows.any():
                candidate = torch.minimum(candidate, torch.where(reader.constant, reader.value.abs(), 0.0))
    merged &= ~needed
    stand_in: int | None = None
    if merged.any():
        best = int(candidate.argmax())
        if candidate[best] > 0:
            stand_in = best
            needed[best] = True
        else:  # no channel is constant, and not zero, wherever one is needed
            needed |= merged
    if not needed.any():
        needed[own[0]] = True  # torch has no layers without channels
    return needed.nonzero().flatten(), stand_in


def _reads(reader: _Reading, rows: Tensor, size: int) -> Tensor:
    """Which channels have a weight that is not zero, in the rows that stay."""
    weight = columns(reader.layer)
    used = (weight[rows.to(weight.device)] != 0).any(2).any(0)
    return used.view(size, taps(reader.layer, size)).any(1).cpu()


def _all(size: int | None) -> Tensor:
    return torch.arange(size or 0)
