"""Constrained variational Adam: Algorithm 1 of Ke and Fan (arXiv 2210.12957).

A Gaussian N(μ, (ατ)²) over every weight: α > 0 is shared, τ in (0, 1) its own. The parameters are μ. One step:

    ε ~ N(0, 1),  w = μ + ατε,  g = dL/dw                          inside ``sampled()``
    m ← β1 m + β2 (g + d w)
    ρ ← ρ - η · (slope of the divergence, see ``scales``),  τ = 1/(1 + e^-ρ)
    μ ← μ - l τ m

The weight decay enters m, but not the ε g in the line of ρ, where the paper's text counts it twice.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.optim.sampler import LIMITS, pulls, scale_
from gossamer.optim.scales import ScaledSampler, global_scale
from gossamer.types import Mode, Schedule, VariationalOptimizer


class CVAdam(ScaledSampler):
    """Variational inference by an optimizer: the network stays plain, its parameters are the means.

    ``with optimizer.sampled():`` draws weights for a forward and backward pass and restores the means. All passes
    before one ``step()`` share a draw, so gradients may be accumulated, scaled and clipped.

    In the default mode q minimises E_q N (L + d/2 ‖w‖²)/T - entropy: at temperature 1 the negative ELBO. For a Gaussian
    posterior with independent weights q becomes the posterior.

    Args:
        params: Parameters, or groups of them.
        lr: l; a mean moves by l τ m.
        n_data: N, the number of examples over which the loss is a mean.
        temperature: T; 1 is the posterior, smaller values sharpen it. In reference mode it is the paper's k, which only
            sets the global scale. ``None`` is 1, and 1/√N in reference mode.
        momentum: β1; ``None`` is 0.9, and 0.1 in reference mode.
        gradient_weight: β2.
        weight_decay: d = δ/N, for a prior N(0, 1/δ) on each weight.
        scale_lr: η, the rate of the local scales; ``None`` is 0.01, and 0.1 in reference mode. The two have different
            units: see :mod:`gossamer.optim.scales`.
        init_std: σ = ατ of every weight before the first step; ``None`` is 0.01, or α/2 if that is less. In reference
            mode τ starts at ½.
        global_scale: α, a bound on every σ; ``None`` is the std of the prior, √(T/(N d)), and k l^¾ in reference mode.
        mode: ``"reference"`` for the paper's steps of ρ, global scale and first values.
        maximize: Whether the loss is a mean log-likelihood.
        foreach: Without effect, since all parameters are always stepped at once.
        generator: Source of the noise; ``None`` uses torch's global generator.

    Example:
        >>> w = torch.zeros(1000, requires_grad=True)
        >>> optimizer = CVAdam([w], lr=0.5, n_data=100, generator=torch.Generator().manual_seed(0))
        >>> for _ in range(500):
        ...     optimizer.zero_grad()
        ...     with optimizer.sampled():
        ...         (2 * w.square()).sum().backward()
        ...     _ = optimizer.step()
        >>> abs(float(optimizer.std(w).mean()) - 0.05) < 0.005  # 1/√(N · 4)
        True
    """

    limits = LIMITS | {"temperature": (0, False, math.inf)}  # at 0 there is no distribution
    usual_scale_lr = 0.01

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Schedule,
        *,
        n_data: float,
        temperature: float | Schedule | None = None,
        momentum: float | Schedule | None = None,
        gradient_weight: float | Schedule = 1.0,
        weight_decay: float | Schedule = 5e-4,
        scale_lr: float | Schedule | None = None,
        init_std: float | None = None,
        global_scale: float | Schedule | None = None,
        mode: Mode = "default",
        maximize: bool = False,
        foreach: bool | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self._passes = {"open": 0}  # how many sampled() are open; a dictionary, because wrappers copy attributes
        defaults = {
            "lr": lr,
            "n_data": n_data,
            "temperature": temperature,
            "momentum": momentum,
            "gradient_weight": gradient_weight,
            "weight_decay": weight_decay,
            "scale_lr": scale_lr,
            "init_std": init_std,
            "global_scale": global_scale,
            "mode": mode,
            "maximize": maximize,
        }
        super().__init__(params, defaults, generator)

    @contextlib.contextmanager
    def sampled(self, train: bool = True) -> Iterator[None]:
        """Weights drawn from q inside the block, the means again afterwards, also after an exception.

        Args:
            train: Whether gradients computed inside are for the next ``step()``. Otherwise each block makes a fresh
                draw and keeps nothing of it.
        """
        if self._passes["open"]:
            yield  # already sampled
            return
        self._follow_schedules()
        means = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._passes["open"] += 1
        try:
            self._perturb(train)
            yield
        finally:
            self._passes["open"] -= 1
            with torch.no_grad():
                for parameter, mean in means:
                    parameter.copy_(mean)

    def std(self, parameter: Tensor) -> Tensor:
        """σ = ατ of a parameter of this optimizer."""
        group = next(group for group in self.param_groups if any(parameter is p for p in group["params"]))
        return global_scale(group) * self._scales(group, [parameter])[0]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the draw they belong to."""
        super().zero_grad(set_to_none)
        if not self._passes["open"]:
            self._forget_draw()

    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """One step of a group's parameters that have a gradient."""
        if self._passes["open"]:
            raise RuntimeError("step() belongs after the block `with optimizer.sampled():`, where the means are back")
        if any("noise" not in self.state[parameter] for parameter in params):
            raise RuntimeError(
                "these gradients are not those of a draw: run the forward and backward pass inside "
                "`with optimizer.sampled():`, then step()"
            )
        decay, noises = self._decay(group, params), self._buffers(params, "noise")
        scales, buffers = self._scales(group, params), self._buffers(params, "momentum_buffer")
        drawn = params  # the decay of the mean is that of the draw on average, with less noise
        if group["mode"] == "reference":
            shifts = torch._foreach_mul(torch._foreach_mul(scales, global_scale(group)), noises)
            drawn = list(torch._foreach_add(params, shifts))
        scale_(buffers, group["momentum"])
        torch._foreach_add_(buffers, torch._foreach_mul(pulls(drawn, grads, decay), group["gradient_weight"]))
        self._learn_scales(group, params, scales, noises, grads, decay)
        rates = torch._foreach_mul(self._scales(group, params), group["lr"])
        torch._foreach_sub_(params, torch._foreach_mul(rates, buffers))
        self._forget_draw(params)

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        group.update({"learns_scales": True, "local_scale": 0.5})
        super()._complete(group, schedules)
        if group["mode"] == "reference":
            if group["init_std"] is not None:
                raise ValueError("in reference mode every local scale starts at ½: leave init_std out")
            return
        bound = group["global_scale"]
        first = min(0.01, bound / 2) if group["init_std"] is None else group["init_std"]
        if not 0 < first < bound:
            raise ValueError(f"init_std must be between 0 and the global scale, {bound:g}; got {first}")
        group["local_scale"] = first / bound

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad(), self.sampled():
            return closure()

    @torch.no_grad()
    def _perturb(self, train: bool) -> None:
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.requires_grad]
            for parameter, scale in zip(params, self._scales(group, params), strict=True):
                state = self.state[parameter]
                noise = state["noise"] if train and "noise" in state else self.noise.like(parameter)
                if train:
                    state["noise"] = noise
                parameter.add_(global_scale(group) * scale * noise)

    def _forget_draw(self, params: list[Tensor] | None = None) -> None:
        for parameter in self.state if params is None else params:
            self.state[parameter].pop("noise", None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_passes": {"open": 0}}


def sampled(optimizer: Optimizer) -> contextlib.AbstractContextManager[None]:
    """``optimizer.sampled()`` if the optimizer holds a posterior, otherwise a block that does nothing.

    Example:
        >>> with sampled(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)):
        ...     pass
    """
    return optimizer.sampled() if isinstance(optimizer, VariationalOptimizer) else contextlib.nullcontext()
