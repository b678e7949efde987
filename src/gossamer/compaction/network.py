"""``compact``: a smaller plain network with the same outputs."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer._text.terminal import align
from gossamer.compaction.channels import Analysis, Channels, Survivors, analyse, columns, pads_with_zeros, plan, taps
from gossamer.compaction.operations import Operation, operations
from gossamer.layers import replica, sparse_weights
from gossamer.posterior.draw import draw

# Selecting inputs costs a pass over them, so it pays only where most of them are gone.
WORTH_SELECTING = 0.5


@dataclass(frozen=True)
class CompactionRow:
    """A layer before and after."""

    layer: str
    before: tuple[int, ...]
    after: tuple[int, ...]


@dataclass(frozen=True)
class Compaction:
    """What :func:`compact` did: one row per layer, and the dead channels it had to leave, with reasons.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = model[2].weight.data[:, 1].zero_()
        >>> print(compact(model).compaction)
        layer  before  after
        0      3x4     2x4
        2      2x3     2x2
        weights: 18 -> 12
    """

    rows: tuple[CompactionRow, ...]
    left: tuple[str, ...] = ()

    @property
    def n_weights(self) -> tuple[int, int]:
        """Weights of the layers before and after."""
        before = sum(torch.Size(row.before).numel() for row in self.rows)
        return before, sum(torch.Size(row.after).numel() for row in self.rows)

    def __str__(self) -> str:
        cells = [["layer", "before", "after"]]
        cells += [[row.layer, *("x".join(map(str, shape)) for shape in (row.before, row.after))] for row in self.rows]
        before, after = self.n_weights
        return "\n".join([*align(cells), f"weights: {before:,} -> {after:,}", *self.left])


def compact(model: nn.Module) -> nn.Module:
    """A smaller plain network with the outputs of ``model`` in evaluation mode, up to rounding.

    A unit or channel goes where exact zeros prove that it is not needed: none of its weights is read, or it has the
    same value for every input (no weights lead to it, or a mask or batch normalisation multiplies it by zero). What a
    constant contributes goes into the bias of its readers; where these pad with zeros, one constant channel stays for
    all. Sums of residual networks are followed: a channel leaves all terms or none. Where a linear layer or convolution
    that reads the input itself has lost most of its columns, a :class:`Select` before it picks out the rest.

    Pools, means over all pixels, dropout and flattening may be modules or calls in ``forward``. Whatever cannot be
    proved to be dead stays: modules that are called twice, have hooks or are not known, and networks that ``torch.fx``
    cannot trace. A warning names the dead channels that stay for such reasons; ``network.compaction`` lists all layers
    before and after. Inputs must be batches, and ``BatchNorm1d`` after a linear layer must normalise a table.

    Args:
        model: A plain network, or one of :func:`gossamer.sparsify`; it is not changed.

    Example:
        >>> model = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> _ = model[0].weight.data[1].zero_()  # always relu(bias), whatever the input
        >>> small, x = compact(model), torch.randn(5, 4)
        >>> small[0].weight.shape, torch.allclose(small(x), model(x), atol=1e-6)
        (torch.Size([2, 4]), True)
    """
    network = _plain(model)
    try:
        steps = operations(network)
    except Exception as error:  # whatever the network's own code raises when it is shown a stand-in for a tensor
        reason = " ".join(str(error).split())[:200]
        return _finished(network, Compaction((), (f"torch.fx cannot trace this network, all of it stays: {reason}",)))
    known = analyse(steps)
    kept = plan(steps, known)
    rows = [_rewrite(network, step, known, kept) for step in steps if step.kind in ("mix", "norm", "mask")]
    return _finished(network, Compaction(tuple(row for row in rows if row is not None), _left(steps, known)))


class Select(nn.Module):
    """Some of the entries along a dimension: the inputs that a network still reads."""

    index: Tensor

    def __init__(self, index: Tensor, dim: int = -1) -> None:
        super().__init__()
        self.dim = dim
        self.register_buffer("index", index)

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(self.dim, self.index)

    def extra_repr(self) -> str:
        return f"{len(self.index)}, dim={self.dim}"


def _plain(model: nn.Module) -> nn.Module:
    weights = sparse_weights(model).values()
    if any(weight.std is not None for weight in weights):
        raise ValueError(
            "a network of distributions has no outputs of its own: compact one draw of it, gossamer.draw(model), or "
            "its means, gossamer.draw(model, at_mean=True)"
        )
    return draw(model, at_mean=True) if weights else replica(model)


def _finished(network: nn.Module, compaction: Compaction) -> nn.Module:
    network.compaction = compaction  # type: ignore[assignment]
    if compaction.left:
        warnings.warn("compact: " + "; ".join(compaction.left), stacklevel=3)
    return network


def _rewrite(network: nn.Module, step: Operation, known: Analysis, plan: Survivors) -> CompactionRow | None:
    layer: Any = step.module
    made = known.tensors[step.name]
    if made.layout == "unknown":
        return None
    rows = plan.kept[made.space.root]
    if step.kind == "norm":
        _shrink_norm(layer, rows)
        return None
    if step.kind == "mask":
        layer.mask = layer.mask[rows.to(layer.mask.device)]
        if bool(layer.mask.all()):
            network.set_submodule(step.module_name, layer.activation)
        return None
    before = tuple(layer.weight.shape)
    select = _shrink(layer, rows, step, known, plan)
    if select is not None:
        network.set_submodule(step.module_name, nn.Sequential(select, layer))
    return CompactionRow(step.module_name, before, tuple(layer.weight.shape))


def _shrink(layer: Any, rows: Tensor, step: Operation, known: Analysis, plan: Survivors) -> Select | None:
    """Take the rows and columns that stay; returns what must come before the layer, if anything."""
    source = known.tensors[step.inputs[0]]
    space = source.space.root
    device = layer.weight.device
    rows = rows.to(device)
    weight, bias = columns(layer)[rows].double(), 0.0 if layer.bias is None else layer.bias.detach()[rows].double()
    select: Select | None = None
    if space.pinned:
        inputs = torch.arange(weight.shape[1], device=device)
        used = (weight != 0).any(2).any(0)
        if source.layout in ("unknown", "last", "rows") and int(used.sum()) < WORTH_SELECTING * len(used):
            inputs = used.nonzero().flatten() if used.any() else inputs[:1]
            select = Select(inputs, dim=-1 if isinstance(layer, nn.Linear) else 1)
    else:
        kept = plan.kept[space].to(device)
        weight, bias = _fold(layer, weight, bias, source, kept, plan.stands_in.get(space))
        n_taps = taps(layer, int(space.size or 0))
        inputs = (kept.unsqueeze(1) * n_taps + torch.arange(n_taps, device=device)).flatten()
    _set(layer, weight[:, inputs], bias)
    return select


def _fold(
    layer: Any, weight: Tensor, bias: Tensor | float, source: Channels, kept: Tensor, stand_in: int | None
) -> tuple[Tensor, Tensor | float]:
    """Move what removed channels contribute into the bias, or into the weights of the channel that stands for them."""
    if source.constant is None or source.value is None:
        return weight, bias
    gone = torch.ones_like(source.constant).index_fill(0, kept, False)
    value = torch.where(gone & source.constant, source.value, 0.0).repeat_interleave(taps(layer, len(gone)))
    value = torch.where((weight != 0).any(2).any(0), value, 0.0)
    if not pads_with_zeros(layer):
        return weight, bias + (weight.sum(2) * value).sum(1)
    if stand_in is not None and bool((value != 0).any()):
        weight = weight.clone()
        weight[:, stand_in] += (weight * (value / source.value[stand_in]).view(1, -1, 1)).sum(1)
    return weight, bias


def _set(layer: Any, weight: Tensor, bias: Tensor | float) -> None:
    like = layer.weight
    layer.weight = nn.Parameter(weight.view(*weight.shape[:2], *like.shape[2:]).to(like.dtype), like.requires_grad)
    kind = "features" if isinstance(layer, nn.Linear) else "channels"
    setattr(layer, f"out_{kind}", len(weight))
    setattr(layer, f"in_{kind}", weight.shape[1])
    if isinstance(bias, Tensor) and (layer.bias is not None or bool(bias.any())):
        layer.bias = nn.Parameter(bias.to(like.dtype), like.requires_grad)


def _shrink_norm(layer: Any, rows: Tensor) -> None:
    rows = rows.to(layer.running_mean.device)
    layer.num_features = len(rows)
    layer.running_mean, layer.running_var = layer.running_mean[rows], layer.running_var[rows]
    if layer.affine:
        layer.weight = nn.Parameter(layer.weight.detach()[rows], layer.weight.requires_grad)
        layer.bias = nn.Parameter(layer.bias.detach()[rows], layer.bias.requires_grad)


def _left(steps: list[Operation], known: Analysis) -> tuple[str, ...]:
    """Dead channels that stay because something that is not understood reads or makes them."""
    found: dict[str, list[str]] = {}
    for step in steps:
        if step.kind != "mix" or known.tensors[step.name].constant is None:  # not understood
            continue
        reason = known.space(step.name).pinned
        dead = int((columns(step.module).flatten(1) == 0).all(1).sum())
        if reason and reason != "the output" and dead:
            found.setdefault(reason, []).append(f"{step.module_name} ({dead})")
    return tuple(f"dead channels stay in {', '.join(where)}: {reason}" for reason, where in found.items())
