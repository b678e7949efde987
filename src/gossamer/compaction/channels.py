"""Channels through a network: which tensors share them, and which are constant whatever the input.

Tensors that are added, normalised or activated elementwise have the channels of what they are made of: together they
are a *space*, and a channel leaves all of them or none. A channel is constant where only zero weights, or constant
channels, lead to it; its value goes on through normalisation and activation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from gossamer.compaction.operations import Operation

__all__ = ["Analysis", "Channels", "Space", "analyse", "columns", "pads_with_zeros", "taps"]

Layout = Literal["unknown", "channels", "flattened", "rows", "last"]
"""Where channels are: at dimension 1 of images, flattened with their pixels, at dimension 1 of a table, at the end."""


@dataclass
class Space:
    """Channels that several tensors share."""

    size: int | None  # not known of an input
    pinned: str = ""  # why none of them can leave


class Channels(NamedTuple):
    """What is known of one tensor."""

    space: int
    layout: Layout
    constant: Tensor | None = None  # which channels are, ``(channels,)``; none of them if nothing is known
    value: Tensor | None = None  # of the constant ones; of the others anything


@dataclass
class Analysis:
    """The tensors of a network by the names of the operations that make them, and their spaces."""

    tensors: dict[str, Channels] = field(default_factory=dict)
    spaces: list[Space] = field(default_factory=list)
    _same: list[int] = field(default_factory=list)  # a space -> one that it was joined with

    def root(self, space: int) -> int:
        """The space that stands for all that ``space`` was joined with."""
        while self._same[space] != space:
            space = self._same[space]
        return space

    def space(self, tensor: str) -> Space:
        """The space of a tensor."""
        return self.spaces[self.root(self.tensors[tensor].space)]

    def new(self, size: int | None, pinned: str = "") -> int:
        """A space of its own."""
        self.spaces.append(Space(size, pinned))
        self._same.append(len(self._same))
        return len(self.spaces) - 1

    def pin(self, tensor: str, reason: str) -> None:
        """None of the channels of this tensor can leave."""
        self.space(tensor).pinned = self.space(tensor).pinned or reason

    def join(self, first: int, second: int) -> int:
        """Make one space of two."""
        one, other = self.root(first), self.root(second)
        if one != other:
            self.spaces[one].size = self.spaces[one].size or self.spaces[other].size
            self.spaces[one].pinned = self.spaces[one].pinned or self.spaces[other].pinned
            self._same[other] = one
        return one


def analyse(operations: Sequence[Operation]) -> Analysis:
    """Follow the channels from the input to the output."""
    known = Analysis()
    rules = {
        "mix": _mix,
        "norm": _norm,
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
            for name in operation.inputs:
                known.pin(name, reason)
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
    constant, value = _per_input(source, layer)
    varies = ~constant | (value != 0 if pads_with_zeros(layer) else torch.zeros_like(constant))
    is_constant = ~(weight != 0).any(2)[:, varies].any(1)
    result = (weight.sum(2) * torch.where(varies, 0.0, value)).sum(1)
    if layer.bias is not None:
        result = result + layer.bias.detach().double()
    layout: Layout = (
        "channels" if isinstance(layer, _ConvNd) else "last" if source.layout in ("unknown", "last") else "rows"
    )
    return Channels(known.new(len(weight)), layout, is_constant, result)


def _per_input(source: Channels, layer: Any) -> tuple[Tensor, Tensor]:
    """Constants of a tensor, one for each input of the layer that reads it."""
    n_inputs = int(columns(layer).shape[1])
    if source.constant is None or source.value is None:
        nothing = torch.zeros(n_inputs, dtype=torch.bool, device=layer.weight.device)
        return nothing, nothing.double()
    repeats = taps(layer, len(source.constant))
    return source.constant.repeat_interleave(repeats), source.value.repeat_interleave(repeats)


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
    constant = torch.zeros_like(mean, dtype=torch.bool) if source.constant is None else source.constant
    value = torch.zeros_like(mean) if source.value is None else source.value
    result = torch.where(constant, (value - mean) * scale, 0.0)
    if layer.affine:
        result = result + layer.bias.detach().double()
    layout: Layout = "rows" if is_table else "channels"
    return Channels(source.space, layout, constant | (scale == 0), result)


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
    layouts: dict[Layout, Layout] = {
        "channels": "flattened",
        "flattened": "flattened",
        "rows": "rows",
        "unknown": "unknown",
    }
    layout = layouts.get(source.layout)
    return None if layout is None else source._replace(layout=layout)


def _add(known: Analysis, operation: Operation) -> Channels | None:
    """A sum ties two spaces together; it is constant where both terms are."""
    first, second = (known.tensors[name] for name in operation.inputs)
    sizes = [known.space(name).size for name in operation.inputs]
    if first.layout != second.layout or sizes[0] != sizes[1]:
        return None
    space = known.join(first.space, second.space)
    if first.constant is None or second.constant is None or first.value is None or second.value is None:
        return Channels(space, first.layout)
    return Channels(space, first.layout, first.constant & second.constant, first.value + second.value)
