"""Dense gradients of sparse weights: asked for before a backward pass, gathered after it, the same on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from gossamer.kernels import Sink
from gossamer.layers import SparseWeight
from gossamer.sparsity.ranks import average_over_ranks, on_any_rank

__all__ = ["arm", "average", "collect", "mean_absolute"]

Weights = Mapping[str, SparseWeight]
Grads = dict[str, Tensor]


def arm(weights: Weights, sinks: Mapping[str, Sink] | None = None) -> None:
    """Ask the backward passes from here to :func:`collect` for dense gradients; they add up, as ``.grad`` does.

    A weight that has a sink tells it instead, piece by piece, wherever Python is called in a backward pass.
    """
    for name, weight in weights.items():
        weight.arm((sinks or {}).get(name))


def collect(weights: Weights) -> Grads:
    """The dense gradients of the weights that took part in a backward pass; nothing else holds them any more."""
    grads: Grads = {}
    for name, weight in weights.items():
        probe, grad = weight.probe, weight.disarm()
        if probe is not None:
            probe.grad = None  # who keeps the loss keeps its graph, and with it the probe
        if grad is not None:
            grads[name] = grad
    return grads


def mean_absolute(model: nn.Module, weights: Weights, loss: Callable[[], Tensor], n_draws: int) -> Grads:
    """The mean of |gradient| over ``n_draws`` evaluations of the loss (SSVI, third addition criterion).

    Neither ``.grad`` nor the buffers change: these passes are not training, and BatchNorm forgets them.
    """
    total: Grads = {}
    if not weights:
        return total
    with torch.enable_grad(), _buffers_kept(model):
        for _ in range(n_draws):
            arm(weights)
            probes = [weight.probe for weight in weights.values() if weight.probe is not None]
            grads = torch.autograd.grad(loss(), probes, allow_unused=True)
            for name, grad in zip(weights, grads, strict=True):
                if grad is not None:
                    total[name] = total.get(name, 0) + grad.abs() / n_draws
    collect(weights)
    return total


def average(grads: Grads, weights: Weights) -> Grads:
    """The mean over ranks, in place. A weight that only some ranks used counts as used, with a zero on the others."""
    used = on_any_rank([name in grads for name in weights], next((w.mean.device for w in weights.values()), None))
    for (name, weight), is_used in zip(weights.items(), used, strict=True):
        if is_used:
            if name not in grads:
                grads[name] = weight.mean.detach().new_zeros(weight.support.shape)
            average_over_ranks(grads[name])
    return grads


@contextmanager
def _buffers_kept(model: nn.Module) -> Iterator[None]:
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, buffer in model.named_buffers():
                if name in before:
                    buffer.copy_(before[name])
