"""MC dropout (Gal and Ghahramani, ICML 2016): dropout stays on in prediction, and each draw drops other units.

    q(W) = M diag(z),   z ~ Bernoulli(1 - p)/(1 - p)

M are the trained weights, z belongs to the inputs of a layer. The loss of dropout with weight decay is the negative
ELBO of this q with a normal prior, up to constants.

The paper has rates of 0.1 and 0.5 for its networks. Where nothing says which, it is 0.1 before every layer: on 6,000
images of CIFAR-100 a small conv net with 0.5 before linear layers had half the held-out accuracy after 20 epochs, and
on two small tables no rate was better on both.
"""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd
from torch.optim import Optimizer

from gossamer.files.container import OTHER_NETWORK
from gossamer.files.schema import Within
from gossamer.layers import replica
from gossamer.methods._parts import replace_layers, with_options_of
from gossamer.methods.sgd import sgd
from gossamer.posterior.in_layers import OneNetwork, Refreshing, ready
from gossamer.types import Collector, Method, Posterior, Saved, Task

__all__ = ["Dropped", "mc_dropout"]

RATE = 0.1
ELEMENTS = (nn.Dropout,)
CHANNELS = (nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
# The inputs of a convolution are dropped by channels: only those are columns of its weight.
DROPOUT_BEFORE: dict[type[nn.Module], type[nn.Module]] = {
    nn.Linear: nn.Dropout,
    nn.Conv1d: nn.Dropout1d,
    nn.Conv2d: nn.Dropout2d,
    nn.Conv3d: nn.Dropout3d,
}


@with_options_of(sgd, "optimizer")
def mc_dropout(task: Task, steps: int, *, rate: float | None = None, **training: Any) -> Method:
    """MC dropout: the network's own dropout layers, or one before each linear layer and convolution but the first.

    Args:
        rate: p, the share of units that are dropped. ``None`` is what the network's own dropout layers have. In a
            network without any it is 0.1.
    """
    if rate is not None and not 0 < rate < 1:
        raise ValueError(f"rate is a share of the units, between 0 and 1; got {rate}")
    return replace(sgd(task, steps, **training), prepare=partial(with_dropout, rate=rate), collector=Dropped)


class Dropped(OneNetwork, Collector):
    """The posterior of a network with dropout; also the collector that makes it: a draw is one set of dropped units.

    A unit that is dropped is a column of the next weight that is zero: a draw of dropout is a draw of weights. So each
    draw drops the same units for all inputs, where torch's layers in training mode drop others for each example.

    Args:
        model: A network with ``nn.Dropout``, ``nn.Dropout1d``, ``2d`` or ``3d``; a collector gets it at the end.
        generator: Random generator of the draws.
        refresh: Called with each network that is drawn, such as :class:`gossamer.posterior.Refresh`.

    Example:
        >>> posterior = Dropped(nn.Sequential(nn.Linear(10, 50), nn.Dropout(0.5), nn.Linear(50, 3)))
        >>> first, second = (network(torch.ones(2, 10)) for network in posterior.draws(2))
        >>> torch.allclose(first[0], first[1], atol=1e-6), torch.allclose(first, second)
        (True, False)
    """

    by_weights = False

    def __init__(
        self,
        model: nn.Module | None = None,
        generator: torch.Generator | None = None,
        refresh: Refreshing | None = None,
    ) -> None:
        self.generator, self.refresh = generator, refresh
        if model is not None:
            self.model = model

    def to_tree(self) -> dict[str, Any]:
        return super().to_tree() | {"rates": [float(layer.p) for layer in dropout_layers(self.model)]}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        return cls(tree.network(partial(_with_rates, tree)), refresh=tree.refresh)

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        return Dropped(model, self.generator, self.refresh)

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Networks in evaluation mode that share the parameters of the model, with other units dropped in each."""
        for _ in range(n):
            masks = {id(layer): UnitMask(layer, self.generator) for layer in dropout_layers(self.model)}
            yield ready(replica(self.model, masks, share=self.refresh is None), self.refresh)


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


def with_dropout(model: nn.Module, rate: float | None = None) -> nn.Module:
    """The network, with dropout before each linear layer and convolution but the first if it has none."""
    if own := dropout_layers(model):
        for layer in own:
            layer.p = layer.p if rate is None else rate
        return model
    layers = [module for module in model.modules() if type(module) in DROPOUT_BEFORE][1:]
    if not layers:
        raise ValueError(
            "this network has no hidden linear or convolutional layer to drop units of: give it dropout layers of its "
            "own (nn.Dropout)"
        )
    share = RATE if rate is None else rate
    dropped = {id(layer): nn.Sequential(DROPOUT_BEFORE[type(layer)](share), layer) for layer in layers}
    return replace_layers(model, dropped)


def _with_rates(tree: Saved, model: nn.Module) -> nn.Module:
    rates = tree.get("rates", list[Annotated[float, Within(0, 1)]])
    try:
        model = with_dropout(model)
    except ValueError as error:
        raise tree.error("rates", f"cannot be set: {error}", OTHER_NETWORK) from error
    layers = dropout_layers(model)
    if len(rates) != len(layers):
        raise tree.error("rates", f"must be {len(layers)} numbers", OTHER_NETWORK)
    for layer, rate in zip(layers, rates, strict=True):
        layer.p = rate
    return model
