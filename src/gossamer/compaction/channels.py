"""Channels through a network: which tensors share them, and which are constant whatever the input.

Tensors that are added, normalised or activated elementwise have the channels of what they are made of: together they
are a *space*, and a channel leaves all of them or none. A channel is constant where only zero weights, or constant
channels, lead to it; its value goes on through normalisation and activation.

A network needs the channels that something living reads and that no constant can replace. A constant channel that is
read without zero padding adds a constant, which goes into the reader's bias. Read with zero padding it adds another
number at the border, so one constant channel stays in the name of all of them: the weights of the others are added to
its own, in proportion to their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gossamer.compaction.operations import Operation

Layout = Literal["unknown", "channels", "flattened", "rows", "last"]
"""Where channels are: at dimension 1 of images, flattened with their pixels, at dimension 1 of a table, at the end."""


@dataclass(eq=False)
class Space:
    """Channels that several tensors share."""

    size: int | None  # not known of an input
    pinned: str = ""  # why none of them can leave
    joined: Space | None = None

    @property
    def root(self) -> Space:
        """The space that stands for all that this one was joined with."""
        return self if self.joined is None else self.joined.root


class Channels(NamedTuple):
    """What is known of one tensor."""

    space: Space
    layout: Layout
    constant: Tensor | None = None  # which channels are, ``(channels,)``; none of them if nothing is known
    value: Tensor | None = None  # of the constant ones; of the others anything

    def constants(self, n_channels: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
        """Which of the channels are constant, and the values of those that are."""
        if self.constant is None or self.value is None:
            nothing = torch.zeros(n_channels, dtype=torch.bool, device=device)
            return nothing, nothing.double()
        return self.constant.to(device), self.value.to(device)


@dataclass
class Analysis:
    """The tensors of a network by the names of the operations that make them, and their spaces."""

    tensors: dict[str, Channels] = field(default_factory=dict)
    spaces: list[Space] = field(default_factory=list)

    def space(self, tensor: str) -> Space:
        """The space of a tensor."""
        return self.tensors[tensor].space.root

    def new(self, size: int | None, pinned: str = "") -> Space:
        """A space of its own."""
        self.spaces.append(Space(size, pinned))
        return self.spaces[-1]


class Survivors(NamedTuple):
    """What stays of every space, and the channel of each that stands for other constant ones."""

    kept: dict[Space, Tensor]  # sorted channels
    stands_in: dict[Space, int]


def analyse(operations: Sequence[Operation]) -> Analysis:
    """Follow the channels from the input to the output."""
    known = Analysis()
    rules = {
        "mix": _mix,
        "norm": _norm,
        "mask": _mask,
        "pointwise": _pointwise,
        "pass": lambda known, operation: known.tensors[operation.inputs[0]],
        "pool": _pool,
        "average": _average,
        "flatten": _flatten,
        "add": _add,
    }
    for operation in operations:
        rule = rules.get(operation.kind)
        made = rule(known, operation) if rule is not None else None
        if made is None:  # what is not understood reads everything, and may make anything
            end = {"input": "the input", "output": "the output"}.get(operation.kind)
            reason = end or operation.reason or f"{operation.module_name or operation.name} reads it in another way"
            for space in map(known.space, operation.inputs):
                space.pinned = space.pinned or reason
            made = Channels(known.new(None, reason), "unknown")
        known.tensors[operation.name] = made
    return known


def columns(layer: Any) -> Tensor:
    """The weight of a linear layer or convolution as ``(out, in, taps)``."""
    weight: Tensor = layer.weight.detach()
    return weight.flatten(2) if weight.dim() > 2 else weight.unsqueeze(2)


def taps(layer: Any, n_channels: int) -> int:
    """Inputs of a layer to a channel: of a linear layer that reads flattened images, the number of pixels."""
    return int(columns(layer).shape[1]) // n_channels


def pads_with_zeros(layer: Any) -> bool:
    """Whether a constant channel is not constant any more at the border."""
    if not isinstance(layer, _ConvNd) or layer.padding_mode != "zeros":
        return False
    if isinstance(layer.padding, str):
        return layer.padding == "same" and any(size > 1 for size in layer.kernel_size)
    return any(size > 0 for size in layer.padding)


def _mix(known: Analysis, operation: Operation) -> Channels | None:
    """A linear layer or convolution: new channels, constant where nothing varying leads to them."""
    layer: Any = operation.module
    source = known.tensors[operation.inputs[0]]
    allowed = ("unknown", "flattened", "rows", "last") if isinstance(layer, nn.Linear) else ("unknown", "channels")
    weight = columns(layer).double()
    n_channels = known.space(operation.inputs[0]).size
    if source.layout not in allowed or (n_channels is not None and weight.shape[1] % n_channels):
        return None
    n_inputs = weight.shape[1]
    constant, value = source.constants(n_inputs, weight.device)
    constant, value = (each.repeat_interleave(n_inputs // max(1, len(each))) for each in (constant, value))
    varies = ~constant | (value != 0 if pads_with_zeros(layer) else torch.zeros_like(constant))
    is_constant = ~(weight != 0).any(2)[:, varies].any(1)
    result = (weight.sum(2) * torch.where(varies, 0.0, value)).sum(1)
    if layer.bias is not None:
        result = result + layer.bias.detach().double()
    layout: Layout = (
        "channels" if isinstance(layer, _ConvNd) else "last" if source.layout in ("unknown", "last") else "rows"
    )
    return Channels(known.new(len(weight)), layout, is_constant, result)


def _norm(known: Analysis, operation: Operation) -> Channels | None:
    """Batch normalisation in evaluation mode: an affine map of each channel; a scale of zero makes it constant."""
    layer: Any = operation.module
    source = known.tensors[operation.inputs[0]]
    n_channels = known.space(operation.inputs[0]).size
    is_table = isinstance(layer, nn.BatchNorm1d) and source.layout in ("rows", "last")
    if n_channels != layer.num_features or not (is_table or source.layout == "channels"):
        return None
    mean, variance = layer.running_mean.double(), layer.running_var.double()
    scale = (variance + layer.eps).rsqrt()
    if layer.affine:
        scale = scale * layer.weight.detach().double()
    constant, value = source.constants(len(mean), mean.device)
    result = torch.where(constant, (value - mean) * scale, 0.0)
    if layer.affine:
        result = result + layer.bias.detach().double()
    layout: Layout = "rows" if is_table else "channels"
    return Channels(source.space, layout, constant | (scale == 0), result)


def _mask(known: Analysis, operation: Operation) -> Channels | None:
    """A masked activation: zero where the mask is."""
    layer: Any = operation.module
    source = known.tensors[operation.inputs[0]]
    is_on = layer.mask.detach() != 0
    if known.space(operation.inputs[0]).size != len(is_on) or (source.layout == "channels") != (layer.dim == 1):
        return None
    constant, value = source.constants(len(is_on), is_on.device)
    return source._replace(constant=constant | ~is_on, value=torch.where(is_on, layer.activation(value), 0.0))


def _pointwise(known: Analysis, operation: Operation) -> Channels:
    source = known.tensors[operation.inputs[0]]
    assert operation.apply is not None
    value = None if source.value is None else operation.apply(source.value)
    return source._replace(value=value)


def _pool(known: Analysis, operation: Operation) -> Channels | None:
    source = known.tensors[operation.inputs[0]]
    if source.layout != "channels":
        return None
    layer: Any = operation.module
    padding = getattr(layer, "padding", 0)
    pads = any(padding) if isinstance(padding, tuple) else padding > 0
    # Maxima are padded with -∞; averages with zeros, which a constant other than zero does not survive.
    if pads and getattr(layer, "count_include_pad", False) and source.constant is not None and source.value is not None:
        return source._replace(constant=source.constant & (source.value == 0))
    return source if not getattr(layer, "divisor_override", None) else source._replace(constant=None, value=None)


def _average(known: Analysis, operation: Operation) -> Channels | None:
    """The mean over all pixels: a pool, and its one pixel flattened."""
    source = known.tensors[operation.inputs[0]]
    return source._replace(layout="flattened") if source.layout == "channels" else None


def _flatten(known: Analysis, operation: Operation) -> Channels | None:
    source = known.tensors[operation.inputs[0]]
    if source.layout == "last":
        return None
    return source._replace(layout="flattened") if source.layout == "channels" else source


def _add(known: Analysis, operation: Operation) -> Channels | None:
    """A sum ties two spaces together; it is constant where both terms are."""
    first, second = (known.tensors[name] for name in operation.inputs)
    space, other = first.space.root, second.space.root
    if first.layout != second.layout or space.size != other.size:
        return None
    if space is not other:
        space.pinned, other.joined = space.pinned or other.pinned, space
    if first.constant is None or second.constant is None or first.value is None or second.value is None:
        return Channels(space, first.layout)
    return Channels(space, first.layout, first.constant & second.constant, first.value + second.value)


class _Reading(NamedTuple):
    """How a layer reads the channels of a space: its needs change with the rows that stay of the layer itself."""

    layer: Any
    constant: Tensor  # (channels,)
    value: Tensor
    writes: Space  # that of its outputs


def plan(operations: Sequence[Operation], known: Analysis) -> Survivors:
    """Shrink every space that is not pinned until nothing more can go."""
    kept = {space: torch.arange(space.size or 0) for space in known.spaces if space.joined is None}
    readings = _readings(operations, known)
    stands_in: dict[Space, int] = {}
    shrinks = True
    while shrinks:
        shrinks = False
        for space, readers in readings.items():
            alive, stand_in = _needed(readers, kept, kept[space], int(space.size or 0))
            shrinks |= len(alive) < len(kept[space])
            kept[space] = alive
            stands_in.pop(space, None)
            if stand_in is not None:
                stands_in[space] = stand_in
    return Survivors(kept, stands_in)


def _readings(operations: Sequence[Operation], known: Analysis) -> dict[Space, list[_Reading]]:
    """The layers that read each space from which channels may leave; of a space that nothing reads, none."""
    found: dict[Space, list[_Reading]] = {
        space: [] for space in known.spaces if not (space.joined or space.pinned or space.size is None)
    }
    for operation in operations:
        if operation.kind != "mix" or known.tensors[operation.name].layout == "unknown":
            continue
        space = known.space(operation.inputs[0])
        if space in found:
            constant, value = known.tensors[operation.inputs[0]].constants(space.size or 0, "cpu")
            found[space].append(_Reading(operation.module, constant, value, known.space(operation.name)))
    return found


def _needed(
    readers: Sequence[_Reading], kept: dict[Space, Tensor], own: Tensor, size: int
) -> tuple[Tensor, int | None]:
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
