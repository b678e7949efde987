"""Monte Carlo dropout (Gal and Ghahramani, ICML 2016): a draw is the network with one set of units dropped."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from gossamer.layers import replica
from gossamer.posterior.in_layers import Refreshing, plain_mean, ready
from gossamer.types import Collector, Posterior

ELEMENTS = (nn.Dropout,)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)


class Dropped(Posterior, Collector):
    """The posterior of a network with dropout; also the collector that makes it.

    A unit that is dropped is a column of the next weight that is zero: a draw of dropout is a draw of weights. So each
    draw drops the same units for all inputs, where torch's layers in training mode drop others for each example. For
    one example the predictions have the same distribution.

    Args:
        model: A network with ``nn.Dropout``, ``nn.Dropout1d``, ``2d`` or ``3d``; a collector gets it at the end.
        generator: Random generator of the draws.
        refresh: Called with each network that is drawn, such as :class:`gossamer.posterior.Refresh`.

    Example:
        >>> posterior = Dropped(nn.Sequential(nn.Linear(10, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
        >>> first, second = (network(torch.ones(2, 10)) for network in posterior.draws(2))
        >>> torch.allclose(first[0], first[1]), torch.allclose(first, second)
        (True, False)
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        generator: torch.Generator | None = None,
        refresh: Refreshing | None = None,
    ) -> None:
        self.generator, self.refresh = generator, refresh
        if model is not None:
            self.model = model

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        return Dropped(model, self.generator, self.refresh)

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Networks in evaluation mode that share the parameters of the model, with other units dropped in each."""
        for _ in range(n):
            masks = {id(layer): UnitMask(layer, self.generator) for layer in dropout_layers(self.model)}
            yield ready(replica(self.model, masks, share=self.refresh is None), self.refresh)

    def mean_network(self) -> nn.Module:
        return plain_mean(self.model, self.refresh)


class UnitMask(nn.Module):
    """Dropout that drops the same units at every call; a layer called twice drops the same units in both calls."""

    def __init__(self, layer: _DropoutNd, generator: torch.Generator | None) -> None:
        super().__init__()
        self.rate, self.drops_channels, self.generator = layer.p, isinstance(layer, CHANNELS), generator
        self.mask = torch.empty(0)

    def forward(self, x: Tensor) -> Tensor:
        shape = (1, x.shape[1], *[1] * (x.dim() - 2)) if self.drops_channels else (1, *x.shape[1:])
        if self.mask.shape != shape:  # at the first call, which tells the shape
            keep = torch.empty(shape, device=x.device).bernoulli_(1 - self.rate, generator=self.generator)
            self.mask = keep / (1 - self.rate) if self.rate < 1 else keep
        return x * self.mask.to(x.dtype)


def dropout_layers(model: nn.Module) -> list[_DropoutNd]:
    """The layers of ``model`` that drop single values or channels."""
    return [module for module in model.modules() if isinstance(module, (*ELEMENTS, *CHANNELS))]
