"""Learns the standard deviations of a converted network from curvature, beside any ``torch.optim`` optimizer."""

import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from gossamer.distributed import average_over_ranks, world_size
from gossamer.layers import CurvatureWeight, sparse_weights
from gossamer.layers.curvature import attach, deviation, learn
from gossamer.optim.batches_seen import watch_batches
from gossamer.types import Rule, Step

__all__ = ["Curvature"]

WEIGHT_DECAY = 5e-4
WARMEST, WARMEST_NORMED = 0.05, 0.01  # of the default temperature
NORMS = _NormBase, nn.LayerNorm, nn.GroupNorm  # what makes of noise in the weights before it noise of another size
DIVIDED = (
    "the gradients were divided by {factor:g} between backward() and the optimizer's step, and the curvature was not. "
    "If a GradScaler did it, give it to the curvature, Curvature(model, optimizer, n_data, scaler=scaler); otherwise "
    "divide the loss instead of the gradients"
)
UNREACHED = (
    "no backward pass has reached the standard deviations, so they do not learn: call loss.backward(), not "
    "torch.autograd.grad(loss, parameters)"
)
DECAYED_TWICE = (
    "the optimizer decays the means by {decay:g}, and gossamer.Curvature by its own weight_decay, so the prior counts "
    "twice. Leave the means to the second: gossamer.param_groups(model) has no weight decay"
)


class Curvature(Rule):
    """Learns σ² = T / N(h + δ) of every active weight; from then on ``optimizer.step()`` does it.

    Each step of the optimizer takes the estimates of h that backward has left, moves the running mean h towards them,
    and adds the prior's part δμ to the gradients of the means. The loss is the mean loss alone: add neither
    ``gossamer.kl`` nor weight decay of the means to it.

    Gradients may be accumulated, clipped (h is estimated from those before) and averaged over ranks. A closure's loss
    is seen with the prior's part δ/2 ‖μ‖², as a line search needs. The model's state holds h, T/N, δ and the number of
    estimates, so this object has none. Of several objects for one network the last takes the place of the others.

    Args:
        model: A network converted by :func:`gossamer.bayesianize` with ``std="curvature"``.
        optimizer: Any ``torch.optim`` optimizer of its means, or a list of several.
        n_data: N, the number of training examples.
        temperature: T. 1 is the posterior of the ELBO; smaller ones are narrower. ``None`` chooses it by the number of
            examples for each active weight (:func:`default_temperature`).
        weight_decay: δ: the curvature of the prior, and the weight decay of the means. ``None`` keeps the prior that
            the network was converted with.
        memory: h averages over this share of the training so far.
        own_prior: Centre the prior at a mean m of its own instead of zero: a draw, from torch's generator, of the prior
            that the network was converted with. Networks with other means then differ where no data decide.
        scaler: The ``torch.amp.GradScaler`` of the loop, if it has one. That of an optimizer from Lightning Fabric or
            Accelerate is found without being given.

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
    acts = False  # captured steps compute all of this themselves, so nothing that they copied has to be renewed

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | Sequence[Optimizer],
        n_data: int,
        *,
        temperature: float | None = None,
        weight_decay: float | None = WEIGHT_DECAY,
        memory: float = 0.1,
        own_prior: bool = False,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        _check(n_data, temperature, weight_decay, memory)
        given: list[Any] = list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        # Accelerate's and Fabric's wrappers have no hooks of their own.
        self.optimizers: list[Optimizer] = [
            one if hasattr(one, "_optimizer_step_pre_hooks") else one.optimizer for one in given
        ]
        weights = [weight for weight in sparse_weights(model).values() if isinstance(weight, CurvatureWeight)]
        self.weights = {weight: weight.mean for weight in weights}
        if not self.weights:
            raise ValueError(
                "this model has no weights whose std follows from curvature: convert it with "
                "gossamer.bayesianize(model, std='curvature') first"
            )
        held = [mean for one in self.optimizers for _, mean in self._held_by(one)]
        if not held:
            raise ValueError(
                "the optimizer holds none of this model's means: build it from gossamer.param_groups(model), after the "
                "conversion"
            )
        self._warn_of_decay()
        self.n_data = n_data
        self.scaler = scaler or next(filter(None, map(_scaler_of, given)), None)
        self.temperature = default_temperature(model, n_data) if temperature is None else temperature
        seed = int(torch.randint(2**31, ())) if own_prior else 0
        for number, weight in enumerate(self.weights):
            if own_prior:
                weight.prior_seed, weight.prior_spread = seed + number, weight.prior_std
            attach(weight, self.temperature / n_data, weight_decay, memory, learner=self)
        self._has_learnt = self._is_done = False
        trained = [mean for mean in held if mean.requires_grad]
        self._first = _FirstStep(trained[0]) if trained else None
        for one in self.optimizers:
            one.register_step_pre_hook(self._before_step)
        self._hooks = watch_batches(model, n_data, is_scaled=self.scaler is not None)

    def __getstate__(self) -> dict[str, Any]:
        """For a copy, of which the first step is over."""
        learning = {weight: mean for weight, mean in self.weights.items() if weight.learner is self}
        return self.__dict__ | {"_first": None, "_hooks": [], "weights": learning}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy: its optimizers have no hooks, and its weights no learner."""
        self.__dict__.update(state)
        for weight in self.weights:
            weight.learner = self
        for one in self.optimizers:
            one.register_step_pre_hook(self._before_step)

    def zero_grad(self) -> None:
        for weight in self.weights:
            weight.estimates.zero_grad()

    def __call__(self, step: Step) -> bool:
        """As a rule of :func:`gossamer.fit`: learn before a rule moves the entries; the optimizer's step does the rest.

        With a scaler only that step knows whether the gradients are finite; until then the estimates follow the moves.
        """
        while self._hooks:  # a training that calls rules knows its number of examples
            self._hooks.pop().remove()
        if self.scaler is None:
            for optimizer in self.optimizers:
                self._learn(self._learning(optimizer))
            self._is_done = True
        return False

    @property
    def chosen(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def _before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Act before a step; with a closure, after each of its evaluations."""
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)
        if closure is None:
            self._act(optimizer)
            return None

        def evaluate() -> Any:
            loss = closure()
            self._act(optimizer)
            return loss if loss is None else loss + self._prior(optimizer)

        return args[:1], kwargs | {"closure": evaluate}

    @torch.no_grad()
    def _act(self, optimizer: Optimizer) -> None:
        """Take the estimates of the last backward passes into h, and add the prior's gradient to that of the means."""
        learning, is_done, self._is_done = self._learning(optimizer), self._is_done, False
        found_inf = getattr(optimizer, "found_inf", None)  # of a fused optimizer, which skips such a step itself
        if not learning or (found_inf is not None and bool(found_inf)):
            return
        still_scaled = getattr(optimizer, "grad_scale", None)  # a fused optimizer also divides by the scale itself
        # An average over ranks divides, too.
        is_first = self._first is not None and self._first.begins(
            is_compared=still_scaled is None and self.scaler is None and world_size() == 1
        )
        if is_first:
            self._first = None
        if not is_done:
            self._learn(learning, still_scaled)
        if is_first and not self._has_learnt and all(weight.noisy and not weight.trains_at_mean for weight in learning):
            warnings.warn(UNREACHED, stacklevel=5)
        factor = 1.0 if still_scaled is None else float(still_scaled)
        for weight, mean in learning.items():
            if mean.grad is not None:
                mean.grad.add_(deviation(weight, mean), alpha=weight.damping * factor)

    def _prior(self, optimizer: Optimizer) -> Any:
        """δ/2 ‖μ - m‖², whose gradient :meth:`_act` adds."""
        used = {weight: mean.detach() for weight, mean in self._learning(optimizer).items() if mean.grad is not None}
        return sum(0.5 * weight.damping * deviation(weight, mean).square().sum() for weight, mean in used.items())

    @torch.no_grad()
    def _learn(self, learning: dict[CurvatureWeight, nn.Parameter], still_scaled: Tensor | None = None) -> None:
        scale: Any = still_scaled
        if scale is None and self.scaler is not None:
            scale = self.scaler.get_scale()
        estimates = self._average({weight: weight.estimates.take(mean) for weight, mean in learning.items()})
        for (weight, mean), estimate in zip(learning.items(), estimates.values(), strict=True):
            if estimate is not None and mean.grad is not None:
                # A scaler has divided the gradients already, unless a fused optimizer is to do it.
                grad = mean.grad if still_scaled is None else mean.grad / still_scaled
                learn(weight, estimate if scale is None else estimate / scale, grad)
                self._has_learnt = True

    def _learning(self, optimizer: Optimizer) -> dict[CurvatureWeight, nn.Parameter]:
        """The weights whose estimates are due at a step of this optimizer; captured steps take them themselves."""
        pairs = self._held_by(optimizer)
        return {w: mean for w, mean in pairs if mean.requires_grad and w.learner is self and w.dense_copy is None}

    def _held_by(self, optimizer: Optimizer) -> list[tuple[CurvatureWeight, nn.Parameter]]:
        """The weights whose means this optimizer holds, and these means."""
        held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        return [(weight, mean) for weight, mean in self.weights.items() if id(mean) in held]

    def _warn_of_decay(self) -> None:
        means = {id(mean) for mean in self.weights.values()}
        for group in [group for one in self.optimizers for group in one.param_groups]:
            if group.get("weight_decay", 0) > 0 and any(id(parameter) in means for parameter in group["params"]):
                warnings.warn(DECAYED_TWICE.format(decay=float(group["weight_decay"])), stacklevel=3)

    def _average(self, estimates: dict[CurvatureWeight, Tensor | None]) -> dict[CurvatureWeight, Tensor | None]:
        """The mean over ranks. A weight that only some ranks used counts as used, with a zero on the others."""
        if world_size() == 1 or not estimates:
            return estimates
        # Which weights were used travels with the numbers: a second message would cost as much as the first.
        used = [float(estimate is not None) for estimate in estimates.values()]
        own = [torch.zeros_like(weight.curvature) if e is None else e for weight, e in estimates.items()]
        sizes = [len(part) for part in own]
        *parts, shares = average_over_ranks(torch.cat([*own, own[0].new_tensor(used)])).split([*sizes, len(used)])
        means = zip(estimates, parts, shares.tolist(), strict=True)
        return {weight: mean if share > 0 else None for weight, mean, share in means}


def _scaler_of(optimizer: Any) -> torch.amp.GradScaler | None:
    """What Accelerate's and Fabric's wrappers scale the loss with; nothing for a plain optimizer."""
    precision = getattr(getattr(optimizer, "_strategy", None), "precision", None)  # Fabric's
    return getattr(optimizer, "scaler", None) or getattr(precision, "scaler", None)


class _FirstStep:
    """Compares the gradient of a mean at the first step that uses it with what backward has left."""

    def __init__(self, mean: nn.Parameter) -> None:
        self.mean, self.seen = mean, torch.empty(0)
        self._hook: Any = mean.register_post_accumulate_grad_hook(self._note)  # type: ignore[no-untyped-call]

    def _note(self, mean: Tensor) -> None:
        if mean.grad is not None:
            self.seen = mean.grad.clone()

    def begins(self, is_compared: bool) -> bool:
        """Whether this is that step. Raises if the gradient was divided, which h has not felt."""
        if self.mean.grad is None:
            return False
        self._hook.remove()
        factor = divided_by(self.seen, self.mean.grad) if is_compared else None
        if factor is not None:
            raise ValueError(DIVIDED.format(factor=factor))
        return True


def divided_by(before: Tensor, after: Tensor) -> float | None:
    """The power of two, more than one, by which all of ``before`` was divided; ``None`` if it was not.

    Example:
        >>> grad = torch.tensor([0.1, 0.0, -0.7])
        >>> divided_by(grad * 1024, grad), divided_by(grad * 1000, grad), divided_by(grad, grad)
        (1024.0, None, None)
    """
    if before.shape != after.shape or not bool(after.any()):
        return None
    factor = float(before.abs().max() / after.abs().max())
    is_power = factor > 1 and math.frexp(factor)[0] == 0.5
    return factor if is_power and torch.equal(after * factor, before) else None


def default_temperature(model: nn.Module, n_data: int) -> float:
    """T of a training with N examples and s active weights: √(N/s)/20, at most 0.05; with normalisation N/6s, 0.01.

    The more weights share an example, the more of them the KL of the ELBO pulls back to the prior. Held-out examples
    chose the numbers, see the study of noise. Changes of a pretrained network have at most 0.001: more noise than that
    covers what it knows.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(100, 50), density=0.1)
        >>> default_temperature(model, 20), default_temperature(model, 600_000)
        (0.01, 0.05)
    """
    weights = sparse_weights(model).values()
    per_weight = n_data / sum(weight.support.n_active for weight in weights)
    is_normed = any(isinstance(module, NORMS) for module in model.modules())
    temperature = min(WARMEST_NORMED, per_weight / 6) if is_normed else min(WARMEST, math.sqrt(per_weight) / 20)
    return min(temperature, *(weight.warmest for weight in weights))


def _check(n_data: int, temperature: float | None, weight_decay: float | None, memory: float) -> None:
    if not n_data >= 1:
        raise ValueError(f"n_data is the number of training examples, at least 1; got {n_data!r}")
    for name, value in (("temperature", temperature), ("weight_decay", weight_decay)):
        if value is not None and not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a positive number or None; got {value!r}")
    if not 0 <= memory <= 1:
        raise ValueError(f"memory is a share of the training so far, in [0, 1]; got {memory!r}")
