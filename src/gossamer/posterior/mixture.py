"""A posterior of several posteriors: networks trained from other seeds, or kept at the ends of cycles."""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Self

import torch
from torch import nn

from gossamer.layers.summary import weights_of
from gossamer.types import Posterior, Saved


class Mixture(Posterior):
    """Draws of several posteriors, as many of each: an ensemble, whose members may be Bayesian themselves.

    Every member has the same weight. One with fewer networks than its share of the draws gives them more than once,
    unless all have as few.

    Example:
        >>> import gossamer
        >>> from gossamer.posterior import InLayers, SingleNetwork
        >>> members = [InLayers(gossamer.bayesianize(nn.Linear(10, 5), density=0.2)) for _ in range(4)]
        >>> mixture = Mixture(members)
        >>> len(list(mixture.draws(20))), mixture.n_bytes == 4 * members[0].n_bytes
        (20, True)
        >>> mixture
        <Mixture of 4: 40 of 200 weights active, 560 bytes>
        >>> [times for network, times in Mixture([SingleNetwork(nn.Linear(10, 5)), members[0]]).counted_draws(6)]
        [3, 1, 1, 1]
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
        for network, times in self.counted_draws(n):
            yield from [network] * times

    def counted_draws(self, n: int) -> Iterator[tuple[nn.Module, int]]:
        for posterior, share in zip(self.posteriors, self._shares(n), strict=True):
            if share:
                times = iter(shares(share, posterior.n_drawn(share)))
                for network, own in posterior.counted_draws(share):
                    yield network, sum(islice(times, own))

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


def shares(n: int, members: int) -> list[int]:
    """How many of ``n`` draws each member gives: as even as possible, and of few draws the last member has one.

    Example:
        >>> shares(20, 4), shares(6, 4), shares(2, 4), shares(1, 4)
        ([5, 5, 5, 5], [1, 2, 1, 2], [0, 1, 0, 1], [0, 0, 0, 1])
    """
    return [(i + 1) * n // members - i * n // members for i in range(members)]
