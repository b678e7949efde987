"""Masks of units as zeros of the weights around them: a network without masks and with the same outputs.

A masked unit is zero, so the columns that read it may be zero. Where a linear layer, convolution or batch normalisation
alone writes it and f(0) = 0, its rows may be zero instead of the mask: m f(z) = f(m z). A sum cannot be silenced so,
and keeps its mask.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.compaction.operations import Operation, operations
from gossamer.layers import replica
from gossamer.layers.modules import Masked
from gossamer.layers.structure import rewire


class Governed(NamedTuple):
    """A layer with weights, and the masks that switch its outputs and its inputs off."""

    layer: Any
    rows: Masked | None
    columns: Masked | None

    def dead(self) -> Tensor:
        """Which weights no output can depend on, ``(out, in)``."""
        n_out, n_in = self.layer.weight.shape[:2]
        dead = torch.zeros(n_out, n_in, dtype=torch.bool, device=self.layer.weight.device)
        if self.rows is not None:
            dead |= (self.rows.mask == 0).unsqueeze(1)
        if self.columns is not None:
            dead |= (self.columns.mask == 0).repeat_interleave(n_in // len(self.columns.mask))
        return dead

    def n_dead(self) -> int:
        """How many weights that is."""
        n_taps: int = math.prod(self.layer.weight.shape[2:])
        return int(self.dead().sum()) * n_taps


def governed(model: nn.Module) -> dict[str, Governed]:
    """The linear layers and convolutions that masks switch off in part, by name; none if torch.fx cannot trace it."""
    return {name: found for name, found in _governed(model).items() if not isinstance(found.layer, _NORMS)}


@torch.no_grad()
def without_masks(model: nn.Module) -> nn.Module:
    """A copy of a network in which zero weights replace the masks, wherever they can."""
    network = replica(model)
    found = _governed(network)
    needless: dict[int, nn.Module] = {}
    for part in found.values():
        layer, rows = part.layer, part.rows
        if not isinstance(layer, _NORMS):
            layer.weight[part.dead()] = 0.0
        elif rows is not None:
            layer.weight[rows.mask == 0] = 0.0
        if rows is not None:
            needless[id(rows)] = rows.activation
            if layer.bias is not None:
                layer.bias[rows.mask == 0] = 0.0
    rewire(network, needless)
    return network


_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _governed(model: nn.Module) -> dict[str, Governed]:
    try:
        steps = operations(model)
    except Exception:  # whatever the network's own code raises when it is shown a stand-in for a tensor
        return {}
    made = {step.name: step for step in steps}
    n_readers = Counter(name for step in steps for name in step.inputs)
    rows: dict[int, Any] = {id(layer): s.module for s in steps for layer in _written_for(s, made, n_readers)}
    return {
        step.module_name: Governed(step.module, rows.get(id(step.module)), _read_by(step, made))
        for step in steps
        if step.kind == "mix" or (step.kind == "norm" and id(step.module) in rows)
    }


def _written_for(step: Operation, made: Mapping[str, Operation], n_readers: Mapping[str, int]) -> Sequence[nn.Module]:
    """The layers whose outputs go to this mask alone: a normalisation and the layer before it, or one layer."""
    if not isinstance(step.module, Masked) or step.kind != "mask":
        return []
    writer = made[step.inputs[0]]
    if n_readers[writer.name] > 1 or bool(step.module.activation(torch.zeros(1)).any()):
        return []
    layers: list[Any] = []
    if writer.kind == "norm" and getattr(writer.module, "affine", False):
        layers, writer = [writer.module], made[writer.inputs[0]]
    if writer.kind == "mix" and n_readers[writer.name] == 1:
        layers.append(writer.module)
    return layers


def _read_by(step: Operation, made: Mapping[str, Operation]) -> Masked | None:
    """The mask whose units a layer reads, through operations that leave zeros zero."""
    if step.kind != "mix":
        return None
    source, flattened = made[step.inputs[0]], False
    while source.kind in ("pass", "pool", "flatten", "average"):
        flattened |= source.kind in ("flatten", "average")
        source = made[source.inputs[0]]
    mask = source.module if source.kind == "mask" else None
    if not isinstance(mask, Masked):
        return None
    of_features, reads_features = mask.dim != 1, isinstance(step.module, nn.Linear)
    # A linear layer reads channels of images only where they were flattened first.
    return mask if of_features == reads_features or (reads_features and flattened) else None
