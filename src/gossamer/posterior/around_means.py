"""A posterior that an optimizer holds: independent Gaussians around the parameters (:class:`gossamer.optim.CVAdam`)."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import sparse_weights
from gossamer.posterior.draw import DrawnNetwork
from gossamer.types import Posterior

__all__ = ["AroundMeans", "GaussianPosterior"]


class AroundMeans:
    """Collector that takes the standard deviations from the optimizer at the end of training.

    Args:
        refresh: Done to each network when it is drawn, such as :class:`gossamer.posterior.Refresh`.
        generator: Of the draws.

    Example:
        >>> from gossamer.optim import CVAdam
        >>> network = nn.Linear(3, 2)
        >>> optimizer = CVAdam(network.parameters(), lr=0.1, n_data=100)
        >>> posterior = AroundMeans().posterior(network, optimizer)
        >>> [drawn.weight.shape for drawn in posterior.draws(2)]
        [torch.Size([2, 3]), torch.Size([2, 3])]
    """

    def __init__(
        self, refresh: Callable[[nn.Module], None] | None = None, generator: torch.Generator | None = None
    ) -> None:
        self.refresh, self.generator = refresh, generator

    def observe(self, model: nn.Module, step: int) -> None:
        """Nothing to collect: the optimizer holds everything."""

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        """The posterior of the trained network."""
        if optimizer is None or not hasattr(optimizer, "std"):
            raise TypeError(f"this posterior needs an optimizer that holds one, such as CVAdam; got {optimizer!r:.80}")
        stds = {name: optimizer.std(p).detach() for name, p in model.named_parameters() if p.requires_grad}
        return GaussianPosterior(model, stds, self.refresh, self.generator)

    def state_dict(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to go on from."""


class GaussianPosterior:
    """Networks with independent Gaussian parameters.

    Args:
        model: The network at its means.
        stds: Standard deviations by the name of the parameter; what is not named is fixed.
        refresh: Done to each network when it is drawn.
        generator: Of the draws.
    """

    def __init__(
        self,
        model: nn.Module,
        stds: dict[str, Tensor],
        refresh: Callable[[nn.Module], None] | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model, self.stds, self.refresh, self.generator = model, stds, refresh, generator

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Networks in evaluation mode, drawn into one place: each is valid until the next is taken."""
        twin = copy.deepcopy(self.model)
        means = {name: mean.detach() for name, mean in self.model.named_parameters()}
        for _ in range(n):
            with torch.no_grad():
                for name, parameter in twin.named_parameters():
                    if name in self.stds:
                        noise = torch.empty_like(parameter).normal_(generator=self.generator)
                        parameter.copy_(means[name] + self.stds[name] * noise)
            network = DrawnNetwork(twin).redraw(at_mean=True) if sparse_weights(twin) else twin
            network.eval()
            if self.refresh is not None:
                self.refresh(network)
            yield network

    @property
    def n_bytes(self) -> int:
        """What means, stds and the rest of the network take."""
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.stds.values()]
        return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
