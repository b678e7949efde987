"""Adaptive empirical Bayes by SGHMC with stochastic approximation (Deng, Zhang, Liang and Lin, NeurIPS 2019).

Each weight β has the prior N(0, s² v₁) with probability δ, and Laplace(0, s v₀) otherwise. SGHMC samples the weights of
the energy (eq. 7, with N examples and the mean loss L)

    U = N L + Σ β² κ₁ / (2 s²) + |β| κ₀ / s

and after every step k what is hidden moves by a small step size ω towards what these weights say (Algorithm 1):

    ρ ← (1 - ω) ρ + ω a/(a + b),   a = δ N(β; 0, v₁),   b = (1 - δ) Laplace(β; 0, v₀)
    κ₀ ← (1 - ω) κ₀ + ω (1 - ρ)/v₀,   κ₁ ← (1 - ω) κ₁ + ω ρ/v₁
    δ ← (1 - ω) δ + ω (Σ ρ + A - 1)/(2 A + p - 2),   s² ← (1 - ω) s² + ω s'²
    s' = (W₁ + √(W₁² + 4 (P + ν + 2) (W₂ + ν λ))) / (2 (P + ν + 2)),   W₁ = Σ |β| κ₀,   W₂ = Σ β² κ₁

with p weights in a layer and P in all. Then the smallest weights of each layer become zero. There is no mask: they keep
their velocity, and may be among the larger ones after the next step.

A dense network is trained first. The authors' second stage has 50,000 steps, and all that counts them (ω, the rate, the
sparsity, the temperature) runs through the same values in ours, faster or slower. Their prior is for N = 50,000; with
fewer examples it would leave nothing of the weights, so there it counts N/50,000 times. ν is that of the released code,
1000, for its network of 270,000 weights, and in proportion for others. ρ begins with what the dense
network says. The authors' ½ for all weights is a decay of large ones too, which ω takes the whole stage to lift: behind
batch normalisation weights can shrink, but an MLP without it ended at chance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.kernels.ordered import top_mask
from gossamer.methods._parts import apart, is_normed, noise_of_all_ranks, refresh_of
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots
from gossamer.schedules import step_of
from gossamer.sparsity.clock import Clocked
from gossamer.sparsity.groups import GroupedWeight, grouped_weights
from gossamer.sparsity.moves import after_steps
from gossamer.types import Method, Rule, Schedule, Step, Task

__all__ = ["aeb"]

# Of the released code and its README, for ResNet-20 on CIFAR-10 at a sparsity of 90 %.
STEPS, EPOCHS, EXAMPLES, PARAMETERS = 50_000, 1000, 50_000, 270_000
RATE = 2e-9 * EXAMPLES  # of the second stage, per mean loss
DROPS, DROP = (0.7, 0.9), 0.1  # of the rate, in each stage
DENSE_TEMPERATURE, TEMPERATURE, COOLING = 1 / 20_000, 1 / 1000, 1 / 1.005
DAMPING = 0.99  # per epoch, of the sparsity that is still missing
NU, LAMBDA = 1000 / PARAMETERS, 1000.0  # ν is this times P, and the A of δ is P
FIRST_KAPPA = 5e-4


def aeb(
    task: Task,
    steps: int,
    *,
    density: float = 0.1,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    dense: float = 0.5,
    laplace_scale: float = 0.005,
    normal_variance: float = 1e-5,
    prior_weight: float | None = None,
    learn_prior: bool = False,
    samples: int = 5,
    refresh_batchnorm: bool = False,
) -> Method:
    """Adaptive empirical Bayes: a dense network, then SGHMC under a prior that learns which weights are small.

    All linear layers and convolutions become sparse except the first convolution, with the same density each. In the
    paper linear layers stay dense; its network has a single small one.

    Args:
        density: Share of the weights that are not zero in the end.
        lr: Learning rate of the dense stage; 0.1. That of the second is 5 over its number of steps, as in the paper,
            and at most this.
        momentum: Momentum of the sampler.
        weight_decay: Weight decay of all weights in the dense stage, and of those that stay dense after it.
        dense: Share of the training before anything becomes sparse.
        laplace_scale: v₀. For other densities than a tenth the authors have 0.1 and 0.5.
        normal_variance: v₁; likewise 5e-5 (density 0.3), 5e-4 (0.5) and 1e-3 (0.7).
        prior_weight: How much the prior counts; ``None`` is N/50,000, at most 1, and a tenth of that in networks
            without batch normalisation: their outputs shrink with their weights, those of the paper's network do not.
        learn_prior: Whether δ and s learn too; otherwise they are ½ and 1. The authors advise against it for networks.
        samples: How many networks are kept, evenly over the last tenth of the training.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    begin = step_of(dense, steps, "dense")
    length = steps - begin
    if not 1 <= samples <= max(1, min(length, steps // 10)):
        raise ValueError(f"samples are kept in the last tenth of the training, one per step at most; got {samples}")
    if not 0 < density <= 1:
        raise ValueError(f"density is the share of weights that stay, in (0, 1]; got {density}")
    first = 0.1 if lr is None else lr
    second = min(first, RATE * STEPS / max(1, length))
    prior = Prior(laplace_scale, normal_variance)

    def optimizer(model: nn.Module) -> SGHMC:
        rest, sparse = apart(model, (weight.parameter for weight in _sparse(model).values()))
        return SGHMC(
            [sparse | {"weight_decay": lambda step: weight_decay if step < begin else 0.0}, rest],
            lr=first,
            n_data=task.n_data,
            temperature=_temperature(begin, length),
            momentum=momentum,
            weight_decay=weight_decay,
            generator=noise_of_all_ranks(),
        )

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        clock = SecondStage(begin, length, density)
        strength = _strength(model, task.n_data) if prior_weight is None else prior_weight
        return [EmpiricalBayes(_sparse(model), optimizer, prior, clock, strength / task.n_data, learn_prior)]

    kept = [steps - (steps // 10) * i // samples for i in range(samples)]
    return Method(
        optimizer=optimizer,
        lr=_rates(first, second, begin, length),
        rules=rules,
        collector=lambda: Snapshots(kept, refresh_of(task, refresh_batchnorm)),
        lr_is_given=lr is not None,
    )


@dataclass(frozen=True)
class Prior:
    """Laplace(0, v₀) or N(0, v₁)."""

    laplace_scale: float
    normal_variance: float

    def __post_init__(self) -> None:
        """Reject what is no scale."""
        if not (self.laplace_scale > 0 and self.normal_variance > 0):
            raise ValueError(
                "laplace_scale and normal_variance must be positive; got "
                f"{self.laplace_scale} and {self.normal_variance}"
            )

    def probability(self, weights: Tensor, share: Tensor | float) -> Tensor:
        """Probability that a weight is of the Gaussian component, whose ``share`` is δ: a/(a + b)."""
        odds = torch.as_tensor(share, dtype=weights.dtype, device=weights.device).logit()
        normal = -weights.square() / (2 * self.normal_variance) - math.log(2 * math.pi * self.normal_variance) / 2
        laplace = -weights.abs() / self.laplace_scale - math.log(2 * self.laplace_scale)
        return torch.sigmoid(odds + normal - laplace)


@dataclass(frozen=True)
class SecondStage:
    """What depends on the step k of the second stage, counted from 1."""

    begin: int
    length: int
    density: float

    def step_size(self, k: int) -> float:
        """ω = 0.02/(1000 + k)^¾ at the speed of this clock: its sum over the stage is the same for every length."""
        speed = STEPS / self.length
        return speed * 0.02 / math.pow(1000 + k * speed, 0.75)

    def n_kept(self, k: int, size: int) -> int:
        """How many weights of a layer are not cut; the sparsity rises fast at first, and is exact at the end."""
        last = math.pow(DAMPING, EPOCHS)
        missing = (math.pow(DAMPING, EPOCHS * k / self.length) - last) / (1 - last)
        return max(1, round(size * (self.density + (1 - self.density) * missing)))


@dataclass
class Beliefs:
    """The hidden quantities of a layer."""

    normal: Tensor  # ρ
    kappa0: Tensor
    kappa1: Tensor
    share: Tensor  # δ

    @classmethod
    def first(cls, weights: Tensor, prior: Prior) -> Beliefs:
        """Before the first step of the second stage, of the weights of the first."""
        start = torch.full_like(weights, FIRST_KAPPA)
        return cls(prior.probability(weights, 0.5), start, start.clone(), weights.new_tensor(0.5))

    def follow(self, weights: Tensor, prior: Prior, step_size: float) -> None:
        """Move towards what the weights say; δ is not moved."""
        self.normal.lerp_(prior.probability(weights, self.share), step_size)
        self.kappa0.lerp_((1 - self.normal) / prior.laplace_scale, step_size)
        self.kappa1.lerp_(self.normal / prior.normal_variance, step_size)

    def pull(self, weights: Tensor, scale: Tensor) -> Tensor:
        """The gradient of the energy of the prior."""
        return weights * self.kappa1 / scale**2 + weights.sign() * self.kappa0 / scale


class EmpiricalBayes(Clocked):
    """Adds the gradient of the prior; after the optimizer's step, adapts the prior and cuts the smallest weights.

    ``weight`` says how much the prior counts in the loss, which is a mean: 1/N, or less.
    """

    def __init__(
        self,
        weights: Mapping[str, GroupedWeight],
        optimizer: Optimizer,
        prior: Prior,
        clock: SecondStage,
        weight: float,
        learn_prior: bool = False,
    ) -> None:
        super().__init__()
        self.weights = {name: weight.parameter for name, weight in weights.items()}
        self.prior, self.clock, self.weight, self.learn_prior = prior, clock, weight, learn_prior
        self.beliefs: dict[str, Beliefs] = {}  # from the second stage on
        self.scale = next(iter(self.weights.values())).detach().new_ones(())
        after_steps(optimizer, self.adapt)

    @torch.no_grad()
    def __call__(self, step: Step) -> bool:
        """Add the gradient of the prior; the gradient is never spent."""
        self.index = step.number
        if self.index > self.clock.begin:
            if not self.beliefs:
                self.beliefs = {name: Beliefs.first(weight, self.prior) for name, weight in self.weights.items()}
            for name, weight in self.weights.items():
                if weight.grad is not None:
                    weight.grad.add_(self.beliefs[name].pull(weight, self.scale), alpha=self.weight)
        return False

    @torch.no_grad()
    def adapt(self) -> None:
        """What follows the optimizer's step."""
        k = self.index - self.clock.begin
        if k < 1:
            return
        step_size = self.clock.step_size(k)
        for name, weight in self.weights.items():
            self.beliefs[name].follow(weight, self.prior, step_size)
            stays = top_mask(weight.abs().flatten(), self.clock.n_kept(k, weight.numel())).view_as(weight)
            weight.masked_fill_(~stays, 0.0)
        if self.learn_prior:
            self._learn_prior(step_size)

    def _learn_prior(self, step_size: float) -> None:
        total = sum(weight.numel() for weight in self.weights.values())
        nu, count = NU * total, total * (1 + NU) + 2
        lasso = ridge = torch.zeros_like(self.scale)
        for name, weight in self.weights.items():
            own = self.beliefs[name]
            own.share.lerp_((own.normal.sum() + total - 1) / (2 * total + weight.numel() - 2), step_size)
            lasso = lasso + (weight.abs() * own.kappa0).sum()
            ridge = ridge + (weight.square() * own.kappa1).sum()
        scale = (lasso + (lasso**2 + 4 * count * (ridge + nu * LAMBDA)).sqrt()) / (2 * count)
        self.scale = self.scale.square().lerp(scale.square(), step_size).sqrt()

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        """By layer: weights that are zero now, and all of them get a gradient."""
        k = self.index - self.clock.begin
        cut = {
            name: weight.numel() - self.clock.n_kept(k, weight.numel()) if k > 0 else 0
            for name, weight in self.weights.items()
        }
        return {name: (n, n) for name, n in cut.items()}

    def state_dict(self) -> dict[str, Any]:
        beliefs = {name: dict(vars(own)) for name, own in self.beliefs.items()}
        return super().state_dict() | {"scale": self.scale, "beliefs": beliefs}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.scale = state["scale"].to(self.scale.device)
        device = self.scale.device
        self.beliefs = {
            name: Beliefs(**{key: value.to(device).clone() for key, value in saved.items()})
            for name, saved in state["beliefs"].items()
        }


def _sparse(model: nn.Module) -> dict[str, GroupedWeight]:
    """The weights that become sparse: all but that of the first convolution."""
    weights = grouped_weights(model)
    stem = next((name for name, weight in weights.items() if weight.is_conv), None)
    return {name: weight for name, weight in weights.items() if name != stem or len(weights) == 1}


def _strength(model: nn.Module, n_data: int) -> float:
    return (1.0 if is_normed(model) else 0.1) * min(1.0, n_data / EXAMPLES)


def _rates(first: float, second: float, begin: int, length: int) -> Schedule:
    """Two constant rates, each of which drops twice."""

    def rate(step: int) -> float:
        highest, at = (first, step / max(1, begin)) if step < begin else (second, (step - begin) / max(1, length))
        return highest * DROP ** sum(at >= drop for drop in DROPS)

    return rate


def _temperature(begin: int, length: int) -> Schedule:
    """Constant and low, then higher and falling."""
    return lambda step: (
        DENSE_TEMPERATURE if step < begin else TEMPERATURE * math.pow(COOLING, EPOCHS * (step - begin) / max(1, length))
    )
