"""Posteriors of several networks: trained from other seeds, or kept during one training.

The cyclical samplers of Zhang et al. (ICLR 2020) and of Ke and Fan (arXiv 2210.12957) keep three networks per cycle,
where the learning rate is lowest, and average their predictions. Of a network with Gaussian weights the whole posterior
is kept, means, stds and active entries: one training then gives the members of an ensemble (SeBayS, arXiv 2206.00794).
"""

import copy
import math
from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import SparseWeight, replica
from gossamer.layers.summary import weights_of
from gossamer.posterior.in_layers import InLayers, Refreshing, SingleNetwork, is_bayesian
from gossamer.types import Collector, Posterior, Saved

Packed = dict[str, Any]
"""A tensor by name, or the ``position`` and ``value`` of its entries that are not zero with its ``shape``."""


class Mixture(Posterior):
    """Draws of several posteriors, as many of each: an ensemble, whose members may be Bayesian themselves.

    Every member has the same weight. One with fewer networks than its share of the draws gives them more than once,
    unless all have as few.

    Example:
        >>> import gossamer
        >>> from gossamer.posterior import InLayers
        >>> members = [InLayers(gossamer.bayesianize(nn.Linear(10, 5), density=0.2)) for _ in range(4)]
        >>> mixture = Mixture(members)
        >>> len(list(mixture.draws(20))), mixture.n_bytes == 4 * members[0].n_bytes
        (20, True)
        >>> mixture
        <Mixture of 4: 40 of 200 weights active, 560 bytes>
    """

    def __init__(self, posteriors: Sequence[Posterior]) -> None:
        if not posteriors:
            raise ValueError("a mixture needs at least one posterior")
        self.posteriors = list(posteriors)
        self.model = self.posteriors[0].model

    def to_tree(self) -> dict[str, Any]:
        return {"members": self.posteriors}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        return cls(tree.posteriors("members"))

    def draws(self, n: int) -> Iterator[nn.Module]:
        """At most ``n`` networks in all, one member after the other: each is valid until the next is drawn."""
        for posterior, share in zip(self.posteriors, self._shares(n), strict=True):
            if share:
                times = shares(share, posterior.n_drawn(share))
                for network, own in zip(posterior.draws(share), times, strict=False):
                    yield from [network] * own

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        for posterior, share in zip(self.posteriors, self._shares(n), strict=True):
            if share:
                times = iter(shares(share, posterior.n_drawn(share)))
                for network, counts in posterior.passes(share):
                    yield network, [sum(islice(times, own)) for own in counts]

    def fixed(self, n: int) -> Posterior | None:
        members = [one.fixed(own) for one, own in zip(self.posteriors, self._shares(n), strict=True) if own]
        known = [member for member in members if member is not None]
        return Mixture(known) if len(known) == len(members) else None

    def n_drawn(self, n: int) -> int:
        return sum(self._shares(n))

    def networks(self) -> Iterator[nn.Module]:
        for posterior in self.posteriors:
            yield from posterior.networks()

    def at_mean(self) -> Posterior:
        return self.posteriors[0].at_mean() if len(self.posteriors) == 1 else super().at_mean()

    def at_width(self, factor: float, generator: torch.Generator | None = None) -> Posterior:
        return Mixture([posterior.at_width(factor, generator) for posterior in self.posteriors])

    def set_width(self, factor: float) -> None:
        for posterior in self.posteriors:
            posterior.set_width(factor)

    @property
    def n_bytes(self) -> int:
        return sum(posterior.n_bytes for posterior in self.posteriors)

    def __repr__(self) -> str:
        """How many weights of all members are active, and the bytes of all."""
        totals = [weights_of(posterior.model) for posterior in self.posteriors]
        active, total = map(sum, zip(*totals, strict=True))
        return f"<Mixture of {len(totals)}: {active:,} of {total:,} weights active, {self.n_bytes:,} bytes>"

    def _shares(self, n: int) -> list[int]:
        """Draws of each member."""
        members = len(self.posteriors)
        if n < members:
            return shares(n, members)
        return members * [max(posterior.n_drawn(n // members) for posterior in self.posteriors)]


class Snapshots(Collector):
    """Collector that keeps the network after the given steps, without its zeros.

    Args:
        at: The steps, counted from 1, after which to keep the network.
        refresh: Called with each network that is drawn, such as :class:`gossamer.posterior.Refresh`.
        generator: Random generator of the draws from Gaussian weights.

    Example:
        >>> network = nn.Linear(2, 1)
        >>> snapshots = Snapshots(at=ends_of_cycles(steps=100, cycles=4))
        >>> for step in range(1, 101):
        ...     snapshots.observe(network, step)
        >>> len(snapshots.kept), [type(drawn).__name__ for drawn in snapshots.posterior(network).draws(2)]
        (4, ['Linear', 'Linear'])
    """

    def __init__(
        self, at: Collection[int], refresh: Refreshing | None = None, generator: torch.Generator | None = None
    ) -> None:
        self.at, self.refresh, self.generator = frozenset(at), refresh, generator
        self.kept: list[Packed] = []

    def observe(self, model: nn.Module, step: int) -> None:
        if step in self.at:
            self.kept.append(pack(model))

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        if not self.kept:
            return InLayers(generator=self.generator, refresh=self.refresh).posterior(model)
        return SnapshotPosterior(model, list(self.kept), self.refresh, self.generator)

    def state_dict(self) -> dict[str, Any]:
        return {"kept": list(self.kept)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept = list(state["kept"])


class SnapshotPosterior(Posterior):
    """Networks of the structure of ``model`` that :func:`pack` kept during training, all with the same weight."""

    def __init__(
        self,
        model: nn.Module,
        kept: list[Packed],
        refresh: Refreshing | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model, self.kept, self.refresh, self.generator = model, kept, refresh, generator

    def to_tree(self) -> dict[str, Any]:
        return {"network": self.model, "states": self.kept}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        return cls(tree.network(), [state.content for state in tree.each("states")], tree.refresh)

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Networks in evaluation mode, spread evenly over the training: each is valid until the next is drawn.

        Of Gaussian weights ``n`` draws, as many of each kept posterior; otherwise the kept networks, at most all.
        """
        for posterior, share in self._shares(n):
            yield from posterior.draws(share)

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        for posterior, share in self._shares(n):
            yield from posterior.passes(share)

    def _shares(self, n: int) -> Iterator[tuple[Posterior, int]]:
        """The posterior of each kept network, and its draws; each is valid until the next."""
        twin = replica(self.model)
        # Few are the last of equal parts: with as many parts as cycles, the ends of the cycles.
        for packed, share in zip(self.kept, shares(self.n_drawn(n), len(self.kept)), strict=True):
            if share:
                with torch.no_grad():
                    twin.load_state_dict(unpack(packed))
                yield InLayers(twin, self.generator, self.refresh), share

    def networks(self) -> Iterator[nn.Module]:
        twin = replica(self.model)
        for packed in self.kept:
            twin.load_state_dict(unpack(packed))
            yield twin

    def n_drawn(self, n: int) -> int:
        return n if is_bayesian(self.model) else min(n, len(self.kept))

    def at_mean(self) -> Posterior:
        """That of the one network that was kept; several have none."""
        if len(self.kept) > 1:
            return super().at_mean()
        return SingleNetwork(next(self.networks()), self.refresh)

    @property
    def n_bytes(self) -> int:
        return sum(map(packed_bytes, self.kept))


def shares(n: int, members: int) -> list[int]:
    """How many of ``n`` draws each member gives: as even as possible, and of few draws the last member has one."""
    return [(i + 1) * n // members - i * n // members for i in range(members)]


def ends_of_cycles(steps: int, cycles: int, per_cycle: int = 1, spacing: int | None = None) -> list[int]:
    """Steps, counted from 1, of ``per_cycle`` snapshots per cycle, ``spacing`` steps apart, the last at its end.

    Args:
        steps: Length of the training.
        cycles: How many cycles it has.
        per_cycle: Snapshots per cycle.
        spacing: Steps between them; ``None`` is a fiftieth of a cycle, which is the papers' epoch.

    Example:
        >>> ends_of_cycles(100, 2), ends_of_cycles(100, 2, per_cycle=3, spacing=5)
        ([50, 100], [40, 45, 50, 90, 95, 100])
    """
    shortest = steps // cycles
    spacing = max(1, shortest // 50) if spacing is None else spacing
    if cycles < 1 or per_cycle < 1 or spacing < 1 or (per_cycle - 1) * spacing >= shortest:
        raise ValueError(
            f"{per_cycle} snapshots {spacing} steps apart do not fit into cycles of {shortest} steps: "
            "train longer, or take fewer cycles or snapshots"
        )
    # A cycle ends with the last step whose phase is below 1, see gossamer.schedules.cyclical.
    ends = [-(-steps * (cycle + 1) // cycles) for cycle in range(cycles)]
    return [end - spacing * i for end in ends for i in reversed(range(per_cycle))]


def pack(model: nn.Module) -> Packed:
    """A copy on the CPU of what predictions need of ``model``; a tensor with many exact zeros keeps the other entries.

    The state again gives the same draws, but training would not go on from it to the bit.
    """
    state = model.state_dict()
    for prefix, weight in model.named_modules():
        if isinstance(weight, SparseWeight):
            for name in weight.vectors:
                state.pop(f"{prefix}.{name}".lstrip("."), None)
            state |= {f"{prefix}.{name}".lstrip("."): entry for name, entry in weight.stored().items()}
    return {name: _pack(entry) for name, entry in state.items()}


def unpack(packed: Packed) -> dict[str, Any]:
    """The state again, for ``load_state_dict``."""
    return {name: _unpack(entry) for name, entry in packed.items()}


def packed_bytes(packed: Packed) -> int:
    """Bytes of a packed state."""
    tensors = [part for entry in packed.values() for part in (entry.values() if isinstance(entry, dict) else [entry])]
    return sum(part.numel() * part.element_size() for part in tensors if isinstance(part, Tensor))


def _pack(entry: Any) -> Any:
    if not isinstance(entry, Tensor):  # what a module keeps by get_extra_state
        return {"other": copy.deepcopy(entry)}
    tensor = entry.detach().cpu()
    flat = tensor.reshape(-1)
    n = flat.numel()
    index_type = torch.int32 if n <= torch.iinfo(torch.int32).max else torch.int64
    position = flat.nonzero().squeeze(1)  # zeros of either sign come back as 0.0
    if len(position) * (tensor.element_size() + index_type.itemsize) >= n * tensor.element_size():
        return tensor.clone()
    return {"shape": list(tensor.shape), "position": position.to(index_type), "value": flat[position]}


def _unpack(entry: Any) -> Any:
    if isinstance(entry, Tensor):
        return entry
    if "other" in entry:
        return entry["other"]
    shape, value = entry["shape"], entry["value"]
    flat = torch.zeros(math.prod(shape), dtype=value.dtype)
    flat[entry["position"].long()] = value
    return flat.view(shape)
