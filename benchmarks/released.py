"""SSVI in the style of its released code, by plain autograd: what the GPU path is compared with.

Written anew from what that code computes, for comparison only. Means and raw stds are dense, a raw std of exactly zero
says that a weight is not active. Every layer has its own two convolutions, softplus and KL; gradients are masked in
hooks, momenta and weights are masked after each step of the optimizer; an update sorts all scores of each layer twice
and asks the device for its counts. Two things the released code does besides are left out, in its favour: a third sort
per layer, of which nothing is used, and the checks of ``torch.distributions``, each of which waits for the device.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD

from gossamer.layers import GaussianWeight, SparseLayer
from gossamer.layers.weight import REFERENCE_FLOOR
from gossamer.schedules import cosine
from gossamer.types import Schedule

__all__ = ["ReleasedLayer", "ReleasedSteps", "released"]

LR, MOMENTUM, WEIGHT_DECAY, KL_WEIGHT = 0.01, 0.9, 5e-4, 0.01
REPLACEMENT_RATE, UNTIL = 0.3, 0.75


def released(model: nn.Module) -> nn.Module:
    """A network converted by :func:`gossamer.bayesianize` with each sparse layer replaced, in place, by a dense one.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(20, 10)), density=0.1, mode="reference")
        >>> layer = released(model)[0]
        >>> tuple(layer.mean.shape), int((layer.raw_std != 0).sum())
        ((10, 20), 20)
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if isinstance(child, SparseLayer):
                setattr(parent, name, ReleasedLayer(child))
    return model


class ReleasedLayer(nn.Module):
    """A linear layer or a convolution with dense means and raw stds, masked where the given layer is not active."""

    mask: Tensor

    def __init__(self, layer: SparseLayer) -> None:
        super().__init__()
        weight = layer.weight
        assert isinstance(weight, GaussianWeight)
        self.mean = nn.Parameter(weight.dense_mean().detach().clone())
        self.raw_std = nn.Parameter(weight.support.scatter(weight.raw_std.detach()).clone())
        self.bias, self.prior_std = layer.bias, weight.prior_std
        self.is_sparse = not weight.support.is_dense
        self.register_buffer("mask", self.raw_std.detach() != 0)
        self.__dict__["template"] = layer.template
        self.keeps_gradient, self.gradient = False, torch.empty(0)
        if self.is_sparse:
            self.mean.register_hook(self._masked_mean)  # type: ignore[no-untyped-call]
            self.raw_std.register_hook(lambda grad: grad * self.mask)  # type: ignore[no-untyped-call]

    def _masked_mean(self, grad: Tensor) -> Tensor:
        if self.keeps_gradient:
            self.gradient = grad
        return grad * self.mask

    def forward(self, x: Tensor) -> Tensor:
        """``conv(x, μ) + sqrt(conv(x², σ²) + 1e-8) ε``."""
        mean = self._product(x, self.mean, self.bias)
        variance = self._product(x**2, F.softplus(self.raw_std) ** 2 * (self.raw_std != 0), None)
        return mean + torch.sqrt(variance + REFERENCE_FLOOR) * torch.randn_like(mean)

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of the active weights."""
        std = F.softplus(self.raw_std)
        terms = (self.prior_std / std).log() + (std**2 + self.mean**2) / (2 * self.prior_std**2) - 0.5
        return (terms * (self.raw_std != 0)).sum()

    def _product(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        plain: Any = self.__dict__["template"]
        if weight.dim() == 2:
            return F.linear(x, weight, bias)
        return F.conv2d(x, weight, bias, plain.stride, plain.padding, plain.dilation, plain.groups)


class ReleasedSteps:
    """The training steps of a network of :class:`ReleasedLayer`.

    Example:
        >>> import gossamer
        >>> model = released(gossamer.bayesianize(nn.Sequential(nn.Linear(20, 10)), density=0.1, mode="reference"))
        >>> steps = ReleasedSteps(model, n_data=100, total_steps=40, update_period=2)
        >>> [steps.step(torch.randn(8, 20), torch.randint(10, (8,))) for _ in range(4)]
        [False, True, False, True]
    """

    def __init__(self, model: nn.Module, n_data: int, total_steps: int, update_period: int = 100) -> None:
        self.model, self.scale, self.period = model, KL_WEIGHT / n_data, update_period
        self.layers = [module for module in model.modules() if isinstance(module, ReleasedLayer)]
        stds = [layer.raw_std for layer in self.layers]
        rest = [p for p in model.parameters() if all(p is not std for std in stds)]
        groups: list[dict[str, Any]] = [{"params": rest, "weight_decay": WEIGHT_DECAY}, {"params": stds}]
        self.optimizer = SGD(groups, lr=LR, momentum=MOMENTUM)
        self.last_step = int(UNTIL * total_steps)
        self.rate: Schedule = cosine(REPLACEMENT_RATE, max(1, self.last_step))
        self.index = 0

    def step(self, x: Tensor, y: Tensor) -> bool:
        """Take one step; returns whether it was an update."""
        self.index += 1
        moves = self.index % self.period == 0 and self.index < self.last_step
        for layer in self.layers:
            layer.keeps_gradient = moves
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.model(x), y)
        loss = loss + self.scale * sum([layer.kl() for layer in self.layers], start=torch.zeros_like(loss))
        loss.backward()
        if moves:
            self._update()
        else:
            self.optimizer.step()
            self._mask()
        return moves

    @torch.no_grad()
    def _mask(self) -> None:
        for layer in self.layers:
            if layer.is_sparse:
                for parameter in (layer.mean, layer.raw_std):
                    momentum = self.optimizer.state[parameter].get("momentum_buffer")
                    if momentum is not None:
                        momentum.mul_(layer.mask)
                    parameter.mul_(layer.mask)

    @torch.no_grad()
    def _update(self) -> None:
        before = [layer.mask.clone() for layer in self.layers]
        for layer in self.layers:
            if layer.is_sparse:
                layer.mask.copy_(_moved(layer, self.rate(self.index)))
        self._mask()
        for layer, old in zip(self.layers, before, strict=True):
            if layer.is_sparse:
                new = layer.mask & ~old
                layer.mean[new] = 0
                layer.raw_std.add_(new * layer.raw_std.sum() / (layer.raw_std != 0).sum())
                layer.gradient = torch.empty(0)


def _moved(layer: ReleasedLayer, rate: float) -> Tensor:
    """The mask with a share of its entries replaced: the worst by SNR(|θ|) out, the largest gradients in."""
    n_active = int(layer.mask.sum().item())
    n_replaced = int(rate * n_active)
    best = _snr_abs(layer).flatten().sort(descending=True).indices[: n_active - n_replaced]
    kept = torch.zeros_like(layer.mask).flatten()
    kept[best] = True
    growth = layer.gradient.abs().flatten()
    growth = torch.where(kept, growth.min() - 1, growth)
    kept[growth.sort(descending=True).indices[:n_replaced]] = True
    return kept.view_as(layer.mask)


def _snr_abs(layer: ReleasedLayer) -> Tensor:
    """E|θ| / std(|θ|) as the paper writes it, zero where there is no weight."""
    mean, std = layer.mean, F.softplus(layer.raw_std) * (layer.raw_std != 0)
    bell = torch.exp(-(mean**2) / (2 * std**2)) / math.sqrt(2 * math.pi)
    expected = mean * torch.erf(mean / std / math.sqrt(2)) + 2 * std * bell
    return (expected / torch.sqrt(std**2 + mean**2 - expected**2)).nan_to_num(0.0, posinf=math.inf)
