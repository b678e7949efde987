"""Learns the standard deviations of a converted network from curvature, beside any ``torch.optim`` optimizer."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.ranks import average_over_ranks, on_any_rank, world_size
from gossamer.types import Rule, Step

__all__ = ["Curvature"]

WEIGHT_DECAY = 5e-4
SCALED = (
    "the gradients were divided by {factor:g} between backward() and the optimizer's step, as a GradScaler does, and the "
    "curvature must not feel that: give it the scaler, Curvature(model, optimizer, …, scaler=scaler)"
)


class Curvature(Rule):
    """Learns σ² = T / N(h + δ) of every active weight; from then on ``optimizer.step()`` does it.

    Each step of the optimizer takes the estimates of h that backward has left, moves the running mean h towards them,
    and adds the prior's part δμ to the gradients of the means. The loss is the mean loss alone: add neither
    ``gossamer.kl`` nor weight decay of the means to it.

    Gradients may be accumulated, clipped (h is estimated from those before) and averaged over ranks; the optimizer may
    take a closure. The model's state holds h, T/N, δ and the number of estimates, so this object has no state.

    Args:
        model: A network converted by :func:`gossamer.bayesianize` with ``std="curvature"``.
        optimizer: Any ``torch.optim`` optimizer of its means, or a list of several.
        n_data: N, the number of training examples.
        temperature: T. 1 is the posterior of the ELBO; smaller ones are narrower. ``None`` chooses it by the number of
            examples for each active weight (:func:`default_temperature`).
        weight_decay: δ: the curvature of the prior, and the weight decay of the means. ``None`` keeps the prior that
            the network was converted with.
        memory: h averages over this share of the training so far.
        scaler: The ``torch.amp.GradScaler`` of the loop, if it has one.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(50, 10), density=0.1)
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=0.9)
        >>> curvature = gossamer.Curvature(model, optimizer, n_data=1000)
        >>> before = model.std.clone()
        >>> for _ in range(10):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 50)).square().mean().backward()
        ...     optimizer.step()
        >>> torch.equal(model.std, before)
        False
    """

    capturable = True

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        n_data: int,
        *,
        temperature: float | None = None,
        weight_decay: float | None = WEIGHT_DECAY,
        memory: float = 0.1,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        _check(n_data, temperature, weight_decay, memory)
        self.optimizers = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self.weights = [weight for weight in sparse_weights(model).values() if isinstance(weight, CurvatureWeight)]
        if not self.weights:
            raise ValueError(
                "this model has no weights whose std follows from curvature: convert it with "
                "gossamer.bayesianize(model, std='curvature') first"
            )
        held = {id(p) for one in self.optimizers for group in one.param_groups for p in group["params"]}
        if not any(id(weight.mean) in held for weight in self.weights):
            raise ValueError(
                "the optimizer holds none of this model's means: build it from gossamer.param_groups(model), after the "
                "conversion"
            )
        n_active = sum(weight.support.n_active for weight in self.weights)
        self.n_data, self.scaler = n_data, scaler
        self.temperature = default_temperature(n_data, n_active) if temperature is None else temperature
        for weight in self.weights:
            weight.attach(self.temperature / n_data, weight_decay, memory)
        self._is_taken = False  # the estimates of this step, before the optimizer's hook
        for one in self.optimizers:
            inner: Any = one if hasattr(one, "_optimizer_step_pre_hooks") else one.optimizer  # type: ignore[attr-defined]
            inner.register_step_pre_hook(self._before_step)

    def __call__(self, step: Step) -> bool:
        """As a rule of :func:`gossamer.fit`: before any rule that moves the entries."""
        if self._is_captured:
            for weight in self.weights:
                weight.count_estimate()
        else:
            self.take()
        self._is_taken = True
        return False

    @property
    def acts(self) -> bool:
        """Nothing that is copied from the weights has to be renewed: captured steps compute this themselves."""
        return False

    @property
    def _is_captured(self) -> bool:
        """Whether captured steps do all this themselves."""
        return self.weights[0].dense_copy is not None

    @torch.no_grad()
    def take(self, optimizer: Optimizer | None = None) -> None:
        """Take the estimates of the last backward passes into h, and add the prior's gradient to that of the means."""
        weights = [weight for weight in self.weights if weight.mean.requires_grad]
        estimates = self._average({weight: weight.take_estimate() for weight in weights})
        # A fused optimizer divides by the scale itself.
        scale = 1.0 if self.scaler is None else self.scaler.get_scale()
        still_scaled = scale if getattr(optimizer, "grad_scale", None) is not None else 1.0
        for weight, estimate in estimates.items():
            if estimate is not None:
                weight.learn(estimate / scale if self.scaler is not None else estimate)
            if weight.mean.grad is not None:
                weight.mean.grad.add_(weight.mean, alpha=weight.damping * still_scaled)

    def _average(self, estimates: dict[CurvatureWeight, Tensor | None]) -> dict[CurvatureWeight, Tensor | None]:
        """The mean over ranks. A weight that only some ranks used counts as used, with a zero on the others."""
        if world_size() == 1 or not estimates:
            return estimates
        device = next(iter(estimates)).curvature.device
        used = on_any_rank([estimate is not None for estimate in estimates.values()], device)
        names = [weight for weight, is_used in zip(estimates, used, strict=True) if is_used]
        own = [torch.zeros_like(w.curvature) if (e := estimates[w]) is None else e for w in names]
        if not own:
            return estimates
        parts = average_over_ranks(torch.cat(own)).split([len(part) for part in own])
        return estimates | dict(zip(names, parts, strict=True))

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Take the estimates before a step; with a closure, after each of its evaluations."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            if not (self._is_taken or self._is_captured):
                self.take(optimizer)
            self._is_taken = False
            return None

        def evaluate() -> Any:
            loss = closure()
            self.take(optimizer)
            return loss

        return args[:1], kwargs | {"closure": evaluate}


def default_temperature(n_data: int, n_active: int) -> float:
    """T by the number of examples for each active weight.

    Example:
        >>> default_temperature(1000, 100), default_temperature(50_000, 500_000)
        (1.0, 0.005)
    """
    return min(1.0, n_data / (20 * n_active))


def _check(n_data: int, temperature: float | None, weight_decay: float | None, memory: float) -> None:
    if not n_data >= 1:
        raise ValueError(f"n_data is the number of training examples, at least 1; got {n_data!r}")
    for name, value in (("temperature", temperature), ("weight_decay", weight_decay)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a positive number or None; got {value!r}")
    if not 0 <= memory <= 1:
        raise ValueError(f"memory is a share of the training so far, in [0, 1]; got {memory!r}")
