"""The members of an ensemble that are trained one after another, each from a seed of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import OwnNoise
from gossamer.layers import replica
from gossamer.posterior import Mixture
from gossamer.posterior.snapshots import pack, unpack
from gossamer.train.renew import renew
from gossamer.types import Collector, Method, Posterior, VariationalOptimizer

__all__ = ["Build", "Succession"]

Build = Callable[[], nn.Module]

SEEDS_APART = 2_654_435_761  # between members: far in the 32 bits that torch's generator reads


class Succession:
    """Which member is trained, what those before it have become, and what the next one starts from.

    Args:
        method: How each member is trained.
        network: The plain network that all start from, if it is not built or drawn anew.
        build: Builds the plain network anew.
        seed: Of the first member.
        steps: Of all members together.
    """

    def __init__(self, method: Method, network: nn.Module, build: Build | None, seed: int, steps: int) -> None:
        self.method, self.build, self.seed = method, build, seed
        self.network = replica(network) if method.members > 1 else network
        self.steps_each = steps // method.members  # the last one takes what is left
        self.round, self.extra = 0, 0  # of the present member, and the steps of all rounds that are over
        self.finished: list[dict[str, Any]] = []  # the members trained so far

    @property
    def begun(self) -> int:
        """The last step before the present member, or its present round."""
        return len(self.finished) * self.steps_each + self.extra

    def is_due(self, step: int) -> bool:
        """Whether after this step the next member begins."""
        return step - self.begun == self.steps_each and len(self.finished) + 1 < self.method.members

    def seed_of(self, member: int) -> int:
        """Far apart, so that the members of neighbouring seeds are others."""
        return self.seed + member * SEEDS_APART

    def finish(self, model: nn.Module, collector: Collector, optimizer: Optimizer) -> None:
        """Keep the member that is trained."""
        # Only optimizers that hold a part of the posterior are needed again.
        state = optimizer.state_dict() if isinstance(optimizer, VariationalOptimizer) else None
        self.finished.append({"model": pack(model), "collector": collector.state_dict(), "optimizer": state})

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
