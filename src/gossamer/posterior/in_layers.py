"""Posteriors that live in the layers of one network, and collectors for them."""

import math
from collections.abc import Callable, Iterator
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.files.container import tensor
from gossamer.layers import GaussianWeight, SparseWeight, replica, sparse_weights
from gossamer.posterior.draw import DrawnNetwork, unwrapped
from gossamer.posterior.passes import FixedDraws, drawn_passes
from gossamer.types import Collector, Posterior, Saved, VariationalOptimizer

Refreshing = Callable[[nn.Module], None]


def gaussian_weights(model: nn.Module) -> list[GaussianWeight]:
    """The weights of ``model`` whose variances have a factor."""
    return [module for module in unwrapped(model).modules() if isinstance(module, GaussianWeight)]


def is_bayesian(model: nn.Module) -> bool:
    """Whether any weight of ``model`` has a distribution."""
    return any(isinstance(module, SparseWeight) and module.std is not None for module in model.modules())


def at_mean(model: nn.Module) -> nn.Module:
    """A plain network at the means of ``model``, which is returned itself if it is plain."""
    return DrawnNetwork(model).redraw(at_mean=True) if sparse_weights(model) else model


def ready(network: nn.Module, refresh: Refreshing | None) -> nn.Module:
    """A drawn network in evaluation mode, with batch normalisation refreshed where a posterior asks for it."""
    network.eval()
    if refresh is not None:
        refresh(network)
    return network


class OneNetwork(Posterior):
    """A posterior that holds one network, and nothing else unless a subclass adds it."""

    def __init__(self, model: nn.Module, refresh: Refreshing | None = None) -> None:
        self.model, self.refresh = model, refresh

    def at_mean(self) -> Posterior:
        return SingleNetwork(self.model, self.refresh)

    def to_tree(self) -> dict[str, Any]:
        return {"network": self.model}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        return cls(tree.network(), refresh=tree.refresh)


class InLayers(OneNetwork, Collector):
    """The posterior of a network whose layers hold distributions; also the collector that makes it.

    Args:
        model: The network; a collector gets it at the end of training.
        generator: Random generator of the draws.
        refresh: Called with each network that is drawn, such as :class:`gossamer.posterior.Refresh`.

    Example:
        >>> import gossamer
        >>> posterior = InLayers(gossamer.bayesianize(nn.Linear(10, 5), density=0.2))
        >>> [network.weight.shape for network in posterior.draws(2)]
        [torch.Size([5, 10]), torch.Size([5, 10])]
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
        return InLayers(model, self.generator, self.refresh) if is_bayesian(model) else SingleNetwork(model)

    def draws(self, n: int) -> Iterator[nn.Module]:
        drawn = DrawnNetwork(self.model)
        for _ in range(n):
            yield ready(drawn.redraw(self.generator), self.refresh)

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        if self.refresh is not None:  # each draw has statistics of its own
            yield from super().passes(n)
            return
        with drawn_passes(self.model) as passes:
            yield from passes.draws(n, self.generator)

    def fixed(self, n: int) -> Posterior | None:
        restless = any(weight.rest is not None for weight in sparse_weights(self.model).values())
        return None if self.refresh is not None or restless else FixedDraws.of(self.model, n, self.generator)

    @property
    def n_bytes(self) -> int:
        weights = sparse_weights(self.model).values()
        spare = [
            tensor
            for weight in weights
            for name, tensor in (*weight.named_parameters(recurse=False), *weight.named_buffers(recurse=False))
            if name not in weight.stored()
        ]
        return super().n_bytes - sum(vector.numel() * vector.element_size() for vector in spare)

    def at_width(self, factor: float, generator: torch.Generator | None = None) -> Posterior:
        if not gaussian_weights(self.model):
            return self
        twin = InLayers(replica(unwrapped(self.model), share=True), generator or self.generator, self.refresh)
        twin.set_width(factor)
        return twin

    def set_width(self, factor: float) -> None:
        """Keep ``factor`` in the weights, whose state has it."""
        for weight in gaussian_weights(self.model):
            weight.calibration = factor


class SingleNetwork(OneNetwork):
    """A posterior of one network: what a deterministic method leaves.

    ``refresh`` is that of :class:`InLayers`.

    Example:
        >>> [type(network).__name__ for network in SingleNetwork(nn.Linear(2, 2)).draws(5)]
        ['Linear']
    """

    def draws(self, n: int) -> Iterator[nn.Module]:
        """The one network in evaluation mode, however many are asked for."""
        yield ready(DrawnNetwork(self.model).redraw(at_mean=True), self.refresh)

    def passes(self, n: int) -> Iterator[tuple[nn.Module, list[int]]]:
        if self.refresh is not None:
            yield from super().passes(n)
            return
        with drawn_passes(self.model) as passes:
            yield passes.at_mean(), [1]

    def n_drawn(self, n: int) -> int:
        return 1


class LocalPasses(OneNetwork):
    """The posterior as training sees it: every pass draws noise for each output (local reparameterization).

    For a convolution this differs from drawing the weights: the outputs of different pixels are independent.
    ``refresh`` is that of :class:`InLayers`; one is enough, for all passes have the same weights.

    Example:
        >>> import gossamer
        >>> layer = gossamer.bayesianize(nn.Linear(10, 5), density=0.2)
        >>> [torch.equal(network.mean, layer.mean) for network in LocalPasses(layer).draws(2)]
        [True, True]
    """

    def draws(self, n: int) -> Iterator[nn.Module]:
        """The network in evaluation mode, whose passes are noisy: ``n`` times the same one.

        It shares the tensors of the model, unless it is refreshed, but has modes of its own, so other threads may use
        the model meanwhile.
        """
        # A copy is noisy, also where a subspace has silenced the model for its next backward pass.
        network = ready(replica(unwrapped(self.model), share=self.refresh is None), self.refresh)
        for _ in range(n):
            yield network


class Last(Collector):
    """Collector that takes the network at the end of training, at its means; ``refresh`` is that of :class:`InLayers`.

    Example:
        >>> type(Last().posterior(nn.Linear(2, 2))).__name__
        'SingleNetwork'
    """

    def __init__(self, refresh: Refreshing | None = None) -> None:
        self.refresh = refresh

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        return SingleNetwork(model, self.refresh)


class AroundMeans(Collector):
    """Collector that takes the standard deviations from the optimizer at the end of training.

    ``refresh`` and ``generator`` are those of :class:`InLayers`.

    Example:
        >>> from gossamer.optim import CVAdam
        >>> network = nn.Linear(3, 2)
        >>> optimizer = CVAdam(network.parameters(), lr=0.1, n_data=100)
        >>> posterior = AroundMeans().posterior(network, optimizer)
        >>> [drawn.weight.shape for drawn in posterior.draws(2)]
        [torch.Size([2, 3]), torch.Size([2, 3])]
    """

    def __init__(self, refresh: Refreshing | None = None, generator: torch.Generator | None = None) -> None:
        self.refresh, self.generator = refresh, generator

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        holder: object = optimizer
        if not isinstance(holder, VariationalOptimizer):
            raise TypeError(f"this posterior needs an optimizer that holds one, such as CVAdam; got {optimizer!r:.80}")
        stds = {name: holder.std(p).detach() for name, p in model.named_parameters() if p.requires_grad}
        return GaussianPosterior(model, stds, self.refresh, self.generator)


class GaussianPosterior(OneNetwork):
    """Networks with independent Gaussian parameters around those of ``model``, all else as in :class:`InLayers`.

    ``stds`` are by the name of the parameter; parameters without one are fixed.
    """

    def __init__(
        self,
        model: nn.Module,
        stds: dict[str, Tensor],
        refresh: Refreshing | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.model, self.stds, self.refresh, self.generator = model, stds, refresh, generator
        self.width = 1.0

    def to_tree(self) -> dict[str, Any]:
        return super().to_tree() | {"stds": {name: std * math.sqrt(self.width) for name, std in self.stds.items()}}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        model, stds = tree.network(), tree.inside("stds")
        parameters = dict(model.named_parameters())
        return cls(
            model, {name: tensor(stds, name, parameters.get(name), least=0) for name in stds.content}, tree.refresh
        )

    def draws(self, n: int) -> Iterator[nn.Module]:
        twin = replica(self.model)
        means = {name: mean.detach() for name, mean in self.model.named_parameters()}
        for _ in range(n):
            with torch.no_grad():
                for name, parameter in twin.named_parameters():
                    if name in self.stds:
                        noise = torch.empty_like(parameter).normal_(generator=self.generator)
                        parameter.copy_(means[name] + math.sqrt(self.width) * self.stds[name] * noise)
            yield ready(at_mean(twin), self.refresh)

    def at_width(self, factor: float, generator: torch.Generator | None = None) -> Posterior:
        twin = GaussianPosterior(self.model, self.stds, self.refresh, generator or self.generator)
        twin.set_width(factor)
        return twin

    def set_width(self, factor: float) -> None:
        self.width = factor

    @property
    def n_bytes(self) -> int:
        return super().n_bytes + sum(std.nbytes for std in self.stds.values())
