"""Statistics of batch normalisation for weights that were never trained with them: those of a draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gossamer.types import identity

__all__ = ["Refresh", "refresh_batchnorm"]

BatchNorm = nn.modules.batchnorm._BatchNorm


@torch.no_grad()
def refresh_batchnorm(network: nn.Module, batches: Iterable[Tensor]) -> None:
    """Make the running statistics of every batch normalisation those of ``batches``, in place.

    Each becomes the plain mean over the batches. The other layers stay in evaluation mode, so nothing random happens;
    every module has its mode back afterwards.

    Example:
        >>> network = nn.Sequential(nn.BatchNorm1d(1)).eval()
        >>> refresh_batchnorm(network, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])])
        >>> network[0].running_mean, network[0].running_var
        (tensor([4.]), tensor([2.]))
    """
    layers = [m for m in network.modules() if isinstance(m, BatchNorm) and m.track_running_stats]
    if not layers:
        return
    modes = [(module, module.training) for module in network.modules()]
    momenta = [layer.momentum for layer in layers]
    there = _device_of(network)
    network.eval()
    try:
        for layer in layers:
            layer.reset_running_stats()
            layer.momentum = None  # torch's word for a plain mean
            layer.train()
        for batch in batches:
            network(batch.to(there))
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, training in modes:
            module.training = training


@dataclass(frozen=True, eq=False)
class Refresh:
    """Refreshes batch normalisation with the inputs ``x``, in batches: what a posterior does to each draw.

    The inputs of every draw are the same, also where they are augmented at random: two draws then differ by their
    weights alone, and nobody's random numbers are used up.

    Args:
        x: Inputs, as a task stores them.
        transform: What the network reads of a batch of them, augmented or not; it is done where the network is.
        batch_size: Examples at a time, at most.
    """

    x: Tensor
    transform: Callable[[Tensor], Tensor] = identity
    batch_size: int = 256

    def __call__(self, network: nn.Module) -> None:
        """Refresh ``network`` in place."""
        # Parts of equal size: each counts the same, and a rest of one would have no variance.
        parts = self.x.tensor_split(max(1, -(-len(self.x) // self.batch_size)))
        there = _device_of(network)
        with torch.random.fork_rng([there] if there.type == "cuda" else []):
            torch.manual_seed(0)
            refresh_batchnorm(network, (self.transform(part.to(there)) for part in parts))


def _device_of(network: nn.Module) -> torch.device:
    return next((tensor.device for tensor in [*network.parameters(), *network.buffers()]), torch.device("cpu"))
