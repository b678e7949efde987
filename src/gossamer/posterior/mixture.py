"""A posterior of several posteriors: networks trained from other seeds, or kept at the ends of cycles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import nn

from gossamer.types import Posterior


class Mixture(Posterior):
    """Draws of several posteriors, as many of each: an ensemble, whose members may be Bayesian themselves.

    A member with one network gives that one, however many are asked for.

    Example:
        >>> import gossamer
        >>> from gossamer.posterior import InLayers
        >>> members = [InLayers(gossamer.bayesianize(nn.Linear(10, 5), density=0.2)) for _ in range(4)]
        >>> mixture = Mixture(members)
        >>> len(list(mixture.draws(20))), mixture.n_bytes == 4 * members[0].n_bytes
        (20, True)
    """

    def __init__(self, posteriors: Sequence[Posterior]) -> None:
        if not posteriors:
            raise ValueError("a mixture needs at least one posterior")
        self.posteriors = list(posteriors)
        self.model = self.posteriors[0].model

    def draws(self, n: int) -> Iterator[nn.Module]:
        """``n`` networks in all, one member after the other: each is valid until the next is drawn."""
        for posterior, share in zip(self.posteriors, shares(n, len(self.posteriors)), strict=True):
            if share:
                yield from posterior.draws(share)

    def networks(self) -> Iterator[nn.Module]:
        """Those of all members."""
        for posterior in self.posteriors:
            yield from posterior.networks()

    def mean_network(self) -> nn.Module:
        """That of the one member; several have none."""
        return self.posteriors[0].mean_network() if len(self.posteriors) == 1 else super().mean_network()

    @property
    def n_bytes(self) -> int:
        """Bytes of all members."""
        return sum(posterior.n_bytes for posterior in self.posteriors)


def shares(n: int, members: int) -> list[int]:
    """How many of ``n`` draws each member gives: as even as possible, and of few draws the last member has one.

    Example:
        >>> shares(20, 4), shares(6, 4), shares(2, 4), shares(1, 4)
        ([5, 5, 5, 5], [1, 2, 1, 2], [0, 1, 0, 1], [0, 0, 0, 1])
    """
    return [(i + 1) * n // members - i * n // members for i in range(members)]
