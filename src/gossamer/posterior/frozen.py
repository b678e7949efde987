"""Networks to deploy: modules that hold the positions and the values of active entries and no more."""

from typing import Any

import torch
from torch import Tensor, nn

from gossamer.layers import sparse_weights
from gossamer.posterior.in_layers import InLayers
from gossamer.posterior.passes import DrawnPasses, FixedDraws, points
from gossamer.types import Posterior


def frozen(posterior: Posterior | nn.Module, n_draws: int | None = None) -> nn.Module:
    """A network to deploy, in evaluation mode, that holds the positions and values of active entries and no more.

    Its passes are those of the sparse kernels where these are faster. ``gossamer.save`` writes it to one file.

    Args:
        posterior: A converted network, or a posterior of such networks.
        n_draws: ``None`` takes the means, and the outputs are those of the network. Otherwise so many draws are made
            now, and the outputs are ``(draws, batch, …)``, as :class:`gossamer.posterior.Prediction` takes them.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(8, 50), nn.ReLU(), nn.Linear(50, 3)), density=0.1)
        >>> network = gossamer.posterior.frozen(model, n_draws=20)
        >>> gossamer.posterior.Prediction(network(torch.randn(4, 8))).mutual_information.shape
        torch.Size([4])
        >>> gossamer.posterior.frozen(model)(torch.randn(4, 8)).shape
        torch.Size([4, 3])
    """
    if not isinstance(posterior, nn.Module | Posterior):
        raise TypeError(f"frozen takes a network or a posterior, not a {type(posterior).__name__}")
    if n_draws is not None and n_draws < 1:
        raise ValueError(f"n_draws must be at least 1, or None for the means; got {n_draws}")
    known = InLayers().posterior(posterior) if isinstance(posterior, nn.Module) else posterior
    if n_draws is None:
        mean = known.at_mean()
        weights = sparse_weights(mean.model).values()
        # A change of a pretrained network is no network without it.
        if mean.refresh is not None or not weights or any(weight.rest is not None for weight in weights):
            return mean.mean_network()
        return points(mean.model)
    fixed = known.fixed(n_draws)
    if fixed is None:
        raise ValueError(
            f"the draws of a {type(known).__name__} do not differ by their active entries alone (or have statistics of "
            "batch normalisation of their own): save networks of it, gossamer.save(posterior, file, n_draws=20)"
        )
    return FrozenDraws(fixed)


class FrozenDraws(nn.Module):
    """Outputs of all draws of posteriors with fixed draws, ``(draws, batch, …)``; ``posterior`` holds them.

    One thread at a time may use it.
    """

    def __init__(self, posterior: Posterior) -> None:
        super().__init__()
        self.posterior = posterior
        self.parts = nn.ModuleList(_Part(one) for one in _members(posterior))

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        return torch.cat([part(*args, **kwargs) for part in self.parts])


class _Part(nn.Module):
    """The draws of one network; what they compute with are buffers."""

    def __init__(self, fixed: FixedDraws) -> None:
        super().__init__()
        self.passes = DrawnPasses(fixed.model)
        self.n = fixed.n_drawn(2**31)
        for i, (weight, rows) in enumerate(zip(self.passes.weights, fixed.values.values(), strict=True)):
            self.register_buffer(f"values{i}", rows)
            self.register_buffer(f"positions{i}", weight.support.position)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        values = [getattr(self, f"values{i}") for i in range(len(self.passes.weights))]
        with torch.no_grad():
            outputs: Tensor = self.passes.hold(values)(*args, **kwargs)
        self.passes.hold([])
        return outputs


def _members(posterior: Any) -> list[FixedDraws]:
    """The networks whose draws a posterior of fixed draws has."""
    return [posterior] if isinstance(posterior, FixedDraws) else [m for p in posterior.posteriors for m in _members(p)]
