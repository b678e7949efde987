"""The networks of a training: members, one after another, and rounds, which take all steps of one network again."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed import OwnNoise, average_over_ranks
from gossamer.layers import replica
from gossamer.posterior import Mixture
from gossamer.posterior.mixture import pack, unpack
from gossamer.types import Collector, Method, Posterior, VariationalOptimizer

__all__ = ["Build", "Succession", "fall_at_the_end", "renew"]

Build = Callable[[], nn.Module]

SEEDS_APART = 2_654_435_761  # between members: far in the 32 bits that torch's generator reads
CLEAR_FALL = 0.05  # nats per example: what a reader of a log density would notice

KS_LIMIT = 2.7  # of the Kolmogorov-Smirnov statistic times √(n/2): two samples of one law exceed it once in a million
REPEATS, NUMBERS = 3, 2**22  # random numbers of float32 come from 2²⁴ values, so that some are drawn a few times
EQUAL = 1e-3  # singular values that differ by less than this share of them are those of an orthogonal weight
HOW = (
    "give fit the function that builds the network (build=…), or let all members start from the given weights "
    "(fresh=False)"
)


class Succession:
    """Which member and which round is trained, what earlier members have become, and what the next one starts from.

    Args:
        method: How each member is trained.
        network: The plain network that all start from, if it is not built or drawn anew.
        build: Builds the plain network anew.
        seed: Seed of the first member.
        steps: Steps of all members together, in one round.
        rounds: The largest number of rounds.

    Attributes:
        round: The present round, from 0.
        extra: Steps of the rounds that are over.
        finished: The members trained so far.
    """

    def __init__(
        self, method: Method, network: nn.Module, build: Build | None, seed: int, steps: int, rounds: int
    ) -> None:
        self.method, self.build, self.seed, self.rounds = method, build, seed, rounds
        self.network = replica(network) if method.members > 1 else network
        self.steps_each = steps // method.members  # the last one takes what is left
        self.round, self.extra, self.fall = 0, 0, 0.0
        self.nlls: list[Tensor] = []  # of the present round
        self.finished: list[dict[str, Any]] = []

    @property
    def begun(self) -> int:
        """The last step before the present member, or its present round."""
        return len(self.finished) * self.steps_each + self.extra

    @property
    def next_begins(self) -> int | None:
        """The step after which the next member begins; ``None`` for the last one."""
        return self.begun + self.steps_each if len(self.finished) + 1 < self.method.members else None

    def seed_of(self, member: int) -> int:
        """Far apart, so that the members of neighbouring seeds are others."""
        return self.seed + member * SEEDS_APART

    def finish(self, model: nn.Module, collector: Collector, optimizer: Optimizer) -> None:
        """Keep the member that is trained."""
        # Only optimizers that hold a part of the posterior are needed again.
        state = optimizer.state_dict() if isinstance(optimizer, VariationalOptimizer) else None
        self.finished.append({"model": pack(model), "collector": collector.state_dict(), "optimizer": state})
        self.round = 0

    def begins_round(self, nll: Tensor) -> bool:
        """Note the loss of a step; after the last of a round, begin another one if the loss still falls."""
        self.nlls.append(nll)
        if len(self.nlls) < self.steps_each:
            return False
        self.fall, self.nlls = fall_at_the_end(average_over_ranks(torch.stack(self.nlls).double()).tolist()), []
        if not self.fall or self.round + 1 >= self.rounds:
            return False
        self.round, self.extra = self.round + 1, self.extra + self.steps_each
        return True

    def next_network(self, device: torch.device) -> nn.Module:
        """The plain network that the present member starts from."""
        with OwnNoise(self.seed_of(len(self.finished)), device):
            if (self.method.fresh or self.round) and self.build is not None:
                return self.build()
            network = replica(self.network)
            if self.method.fresh:
                renew(network)
            return network

    def posterior(self, last: Posterior, model: nn.Module, step: int, noise: OwnNoise) -> Posterior:
        """The mixture of the members that are trained, or ``last``, the present one's, if it is the only one."""
        if self.method.members == 1:
            return last
        is_trained = step - self.begun >= self.steps_each
        states = noise.states  # an optimizer may draw the seed of its noise
        with noise:
            others = [self._posterior_of(member, model) for member in self.finished]
        noise.states = states
        return Mixture([*others, *([last] if is_trained or not others else [])])

    def _posterior_of(self, member: dict[str, Any], model: nn.Module) -> Posterior:
        network, collector = replica(model), self.method.collector()
        network.load_state_dict(unpack(member["model"]))
        optimizer = self.method.optimizer(network)
        if member["optimizer"] is not None:
            optimizer.load_state_dict(member["optimizer"])
        collector.load_state_dict(member["collector"])
        return collector.posterior(network, optimizer)

    def state_dict(self) -> dict[str, Any]:
        """Which members and rounds are over."""
        state: dict[str, Any] = {"members": list(self.finished)} if self.method.members > 1 else {}
        if self.rounds > 1:
            nlls = torch.stack(self.nlls) if self.nlls else torch.zeros(0)
            state["rounds"] = {"round": self.round, "extra": self.extra, "nlls": nlls, "fall": self.fall}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from the state of a training."""
        self.finished = list(state.get("members", []))
        rounds = state.get("rounds", {"round": 0, "extra": 0, "nlls": torch.zeros(0), "fall": 0.0})
        self.round, self.extra = rounds["round"], rounds["extra"]
        self.nlls, self.fall = list(rounds["nlls"]), rounds["fall"]


def fall_at_the_end(nlls: Sequence[float]) -> float:
    """By how much the loss fell from the third to the last quarter of a training, if clearly; otherwise 0.

    This is the loss of the rows alone: the KL goes on falling, by weights that fade, when predictions have settled. It
    is clear where it exceeds ``CLEAR_FALL`` nats per row and three standard errors.

    Example:
        >>> round(fall_at_the_end(np.linspace(1, 0, 100)), 2), fall_at_the_end([1.0] * 100)
        (0.25, 0.0)
    """
    third, last = np.array_split(np.asarray(nlls), 4)[2:]
    if len(last) < 2:
        return 0.0
    fall = float(third.mean() - last.mean())
    error = math.sqrt(third.var() / len(third) + last.var() / len(last))
    return fall if fall > max(CLEAR_FALL, 3 * error) else 0.0


@torch.no_grad()
def renew(network: nn.Module) -> None:
    """Draw the weights of a network again, in place, by ``reset_parameters`` of its layers: torch's usual law.

    Where the given weights visibly follow another law (pretrained, scaled, orthogonal, biases of gates set by hand), or
    a module with random parameters cannot reset them, that is a ``ValueError``. Layers of a few weights tell little
    about their law: whoever sets their weights should give the function that builds the network instead.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layer = nn.Linear(20, 30)
        >>> before = layer.weight.clone()
        >>> renew(layer)
        >>> torch.equal(layer.weight, before), bool(layer.weight.abs().max() < 20**-0.5)
        (False, True)
        >>> _ = nn.init.orthogonal_(layer.weight)
        >>> renew(layer)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: 'weight' does not follow the law by which its layer draws weights: ...
    """
    for name, module in network.named_modules():
        given = {
            f"{name}.{own}".strip("."): (parameter, parameter.clone())
            for own, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        # What torch's layers have in common is this name alone: no base class declares it.
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
        elif not all(_is_constant(before) for _, before in given.values()):
            raise ValueError(f"{name or type(module).__name__!r} cannot draw other initial weights: {HOW}")
        for full, (parameter, before) in given.items():
            if not _same_law(before, parameter):
                raise ValueError(f"{full!r} does not follow the law by which its layer draws weights: {HOW}")


def _is_constant(values: Tensor) -> bool:
    return bool((values == values.flatten()[:1]).all())


def _same_law(one: Tensor, other: Tensor) -> bool:
    """Whether two draws of a parameter may have one law: entries, the most frequent value, and singular values."""
    if one.numel() == 1:  # the bias of a network with one output tells nothing
        return True
    if _is_constant(one) or _is_constant(other):
        return torch.equal(one, other)
    a, b = one.flatten().double().sort().values, other.flatten().double().sort().values
    everywhere, n = torch.cat([a, b]), len(a)
    gap = (torch.searchsorted(a, everywhere, right=True) - torch.searchsorted(b, everywhere, right=True)).abs().max()
    repeats = [int(values.unique_consecutive(return_counts=True)[1].max()) for values in (a, b)]
    return (
        float(gap) / n * math.sqrt(n / 2) < KS_LIMIT
        and abs(repeats[0] - repeats[1]) <= REPEATS + n / NUMBERS
        and _is_orthogonal(one) == _is_orthogonal(other)
    )


def _is_orthogonal(weight: Tensor) -> bool:
    """Whether all singular values of the weight as a matrix are equal."""
    matrix = weight.flatten(1) if weight.dim() > 1 else weight[None]
    if min(matrix.shape) < 2:
        return False
    gram = (matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix).double()
    size = gram.diagonal().mean()
    return bool((gram - size * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max() < EQUAL * size)
