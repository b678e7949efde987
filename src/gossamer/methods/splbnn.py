"""Sparse networks by a mixture Gaussian prior (Sun, Song and Liang, JASA 2022): train, prune, refit, best of several.

Every weight has the prior λ N(0, s₁²) + (1 - λ) N(0, s₀²), a wide slab and a narrow spike. The network is trained to
the largest posterior density; with P₀ the probability of the spike given a weight b (section 2.2),

    P₀ = 1 / (1 + exp(c₁ + c₂ b²)),   c₁ = log λ/(1 - λ) + log s₀/s₁,   c₂ = ½ (1/s₀² - 1/s₁²)
    ∂ log p / ∂b = -b [ P₀/s₀² + (1 - P₀)/s₁² ]

Weights with P₀ > ½, those below √(-c₁/c₂), are removed, and the rest is trained further. Of several starts the one with
the largest Laplace approximation of the evidence is kept, with f the mean loss minus the log prior over N, d parameters
and H the Hessian of f (section 2.3):

    log evidence = -N f + d/2 log(2π/N) - ½ Σ log |eigenvalues of H|

Departures: biases and normalisation have the slab as their prior and stay; the spike is switched on after a third of a
start, since with few examples it would remove all initial weights (for CIFAR the authors do the same, at half).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.optim import SGD, Optimizer

from gossamer.distributed import world_size
from gossamer.layers import param_groups, replica, sparse_weights
from gossamer.methods._parts import all_active, apart, first_given
from gossamer.posterior import Last, SingleNetwork, draw
from gossamer.schedules import cyclical
from gossamer.sparsity import Cut
from gossamer.sparsity.clock import Clocked
from gossamer.types import Collector, Method, Penalty, Posterior, Rule, Step, Task

__all__ = ["splbnn"]

SPIKE_FROM, CUT_AT = 1 / 3, 2 / 3  # shares of a start; the paper refits for the last third
MOST = 3_000  # parameters whose Hessian is formed
AT_ONCE = 64  # rows of it


def splbnn(
    task: Task,
    steps: int,
    *,
    starts: int = 1,
    lr: float | None = None,
    momentum: float = 0.9,
    inclusion: float = 1e-5,
    spike_std: float = 0.01,
    slab_std: float | None = None,
) -> Method:
    """Mixture Gaussian prior: maximum a posteriori, pruned by it and refitted; the start with the best evidence.

    Args:
        steps: Length of the training, all starts together.
        starts: How many times to start, each with fresh weights and an equal part of the steps. The paper has 10 for
            its simulated examples and 1 for images. More than one needs a Hessian of all parameters that are left.
        lr: Learning rate of SGD, along a cosine in each start; 0.1, or N s₀² if that is less: beyond it the spike makes
            SGD unstable. The paper has 0.005 for its simulated examples.
        momentum: Momentum of SGD; the paper has none there.
        inclusion: λ, the prior probability of the slab.
        spike_std: s₀.
        slab_std: s₁; ``None`` is the paper's, 0.1 for numbers and 1 for classes.
    """
    if not 1 <= starts <= steps // 3:
        raise ValueError(f"starts must be between 1 and a third of the steps; got {starts} in {steps} steps")
    wide = first_given(slab_std, 0.1 if task.kind == "regression" else 1.0)
    prior = MixturePrior(inclusion, spike_std, wide)
    rate = min(0.1, task.n_data * spike_std**2) if lr is None else lr
    begins = [steps * i // starts for i in range(starts + 1)]
    parts = list(pairwise(begins))
    spike_from = [begin + SPIKE_FROM * (end - begin) for begin, end in parts]
    plain: list[nn.Module] = []  # as it was before the conversion, for the structure of later starts

    def prepare(model: nn.Module) -> nn.Module:
        plain[:] = [replica(model)] if starts > 1 else []
        return all_active(model)

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        if world_size() > 1:
            raise ValueError("splbnn removes weights during training, which DDP cannot follow: train on one device")
        cuts = [begin + max(1, round(CUT_AT * (end - begin))) for begin, end in parts]
        return [
            *(Restart(plain[0], optimizer, begin + 1) for begin in begins[1:-1]),
            *(Cut(model, optimizer, lambda weight: weight.mean.abs() - prior.threshold, at=at) for at in cuts),
        ]

    return Method(
        prepare=prepare,
        optimizer=lambda model: SGD(param_groups(model), lr=rate, momentum=momentum),
        lr=cyclical(rate, steps, starts),
        penalty=MixturePenalty(prior, task.n_data, spike_from, begins),
        rules=rules,
        collector=Last if starts == 1 else lambda: BestEvidence(task, prior, begins[1:]),
        chosen={"slab_std": wide},
        lr_is_given=lr is not None,
    )


@dataclass(frozen=True)
class MixturePrior:
    """The prior of a weight: λ N(0, s₁²) + (1 - λ) N(0, s₀²)."""

    inclusion: float
    spike_std: float
    slab_std: float

    def __post_init__(self) -> None:
        """Reject what is no mixture."""
        if not 0 < self.inclusion < 1 or not 0 < self.spike_std < self.slab_std:
            raise ValueError(
                "inclusion is a probability and the spike narrower than the slab, 0 < spike_std < slab_std; got "
                f"{self.inclusion}, {self.spike_std} and {self.slab_std}"
            )

    @property
    def threshold(self) -> float:
        """The size of a weight that is in the spike as likely as in the slab."""
        odds = math.log((1 - self.inclusion) / self.inclusion * self.slab_std / self.spike_std)
        return math.sqrt(2 * odds / (self.spike_std**-2 - self.slab_std**-2))

    def log_density(self, weights: Tensor) -> Tensor:
        """Logarithm of the density, summed over all weights."""
        slab = math.log(self.inclusion) + _log_normal(weights, self.slab_std)
        spike = math.log1p(-self.inclusion) + _log_normal(weights, self.spike_std)
        # log(eᵃ + eᵇ) = a - log s(a - b), whose second derivative is finite where that of torch.logaddexp is not.
        return (slab - F.logsigmoid(slab - spike)).sum()


@dataclass(frozen=True)
class MixturePenalty(Penalty):
    """Minus the log prior over N; in each start the weights have the slab alone up to a step."""

    prior: MixturePrior
    n_data: int
    spike_from: Sequence[float]  # one step per start
    begins: Sequence[int]

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty at a step, counted from 1."""
        start = sum(step > begin for begin in self.begins[1:-1])
        groups = apart(model, (weight.mean for weight in sparse_weights(model).values()))
        others, weights = (group["params"] for group in groups)
        if step <= self.spike_from[start]:
            weights, others = [], [*weights, *others]
        terms = [self.prior.log_density(weight) for weight in weights]
        terms += [_log_normal(other, self.prior.slab_std).sum() for other in others]
        return -torch.stack(terms).sum() / self.n_data


class Restart(Clocked):
    """Begins again at a step with fresh weights; its gradient is that of the old ones, and is dropped.

    ``plain`` has the structure of the network that was converted; its ``reset_parameters`` draw.
    """

    def __init__(self, plain: nn.Module, optimizer: Optimizer, at: int) -> None:
        super().__init__()
        self.plain, self.optimizer, self.at = plain, optimizer, at

    @property
    def acts(self) -> bool:
        return self.index + 1 == self.at

    def __call__(self, step: Step) -> bool:
        """Start again if this is the step."""
        self.index = step.number
        if step.number != self.at:
            return False
        fresh = replica(self.plain)
        for module in fresh.modules():
            reset = getattr(module, "reset_parameters", None)
            if callable(reset):
                reset()
        fresh = all_active(fresh)
        with torch.no_grad():
            step.model.load_state_dict(_state_of(fresh))
        self.optimizer.state.clear()
        return True


class BestEvidence(Collector):
    """Collector that keeps, of the networks at the given steps, the one with the largest evidence.

    Attributes:
        evidences: Logarithm of the evidence of each network so far.
    """

    def __init__(self, task: Task, prior: MixturePrior, at: Sequence[int]) -> None:
        self.task, self.prior, self.at = task, prior, list(at)
        self.evidences: list[float] = []
        self.best: dict[str, Any] = {}

    def observe(self, model: nn.Module, step: int) -> None:
        """Compare the network with the best so far if a start ends here."""
        if step not in self.at:
            return
        self.evidences.append(log_evidence(draw(model, at_mean=True), self.task, self.prior))
        if self.evidences[-1] == max(self.evidences):
            self.best = _state_of(replica(model))

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        if not self.best:
            return SingleNetwork(model)
        twin = replica(model)
        with torch.no_grad():
            twin.load_state_dict(self.best)
        return SingleNetwork(twin)

    def state_dict(self) -> dict[str, Any]:
        return {"evidences": list(self.evidences), "best": dict(self.best)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.evidences, self.best = list(state["evidences"]), dict(state["best"])


def log_evidence(network: nn.Module, task: Task, prior: MixturePrior) -> float:
    """Laplace approximation of log p(training data), over the parameters of a plain network that are not zero.

    In float64, with all training examples at once and the exact Hessian.
    """
    network = replica(network).double().eval()
    parameters = dict(network.named_parameters())
    masks = {name: value != 0 for name, value in parameters.items()}
    theta = torch.cat([value.detach()[masks[name]] for name, value in parameters.items()]).requires_grad_()
    if len(theta) > MOST:
        raise ValueError(
            f"the evidence needs a Hessian of all {len(theta):,} parameters that are left, and more than {MOST:,} are "
            "too many: give starts=1, or a prior that keeps fewer weights (a smaller inclusion, a larger spike_std)"
        )
    n = task.n_data
    f = _objective(network, masks, theta, task, prior) / n
    (gradient,) = torch.autograd.grad(f, theta, create_graph=True)
    unit = torch.eye(len(theta), dtype=theta.dtype, device=theta.device)
    rows = [
        torch.autograd.grad(gradient, theta, some, retain_graph=True, is_grads_batched=True)[0]
        for some in unit.split(AT_ONCE)
    ]
    log_volume = torch.linalg.eigvalsh(torch.cat(rows)).abs().log().sum()
    return float(-n * f.detach() + len(theta) / 2 * math.log(2 * math.pi / n) - 0.5 * log_volume)


def _objective(network: nn.Module, masks: dict[str, Tensor], theta: Tensor, task: Task, prior: MixturePrior) -> Tensor:
    """N f: the loss of all examples minus the log prior; weights have the mixture, the rest the slab."""
    parts = dict(zip(masks, theta.split([int(mask.sum()) for mask in masks.values()]), strict=True))
    dense = {
        name: torch.zeros_like(mask, dtype=theta.dtype).masked_scatter(mask, parts[name])
        for name, mask in masks.items()
    }
    x, y = task.transform(task.train[0].to(theta.device)), task.train[1].to(theta.device)
    y = y.double() if y.is_floating_point() else y
    loss = task.likelihood.loss(functional_call(network, dense, (x.double(),)), y) * task.n_data
    for name, mask in masks.items():
        part = parts[name]
        loss = loss - (prior.log_density(part) if mask.dim() > 1 else _log_normal(part, prior.slab_std).sum())
    return loss


def _state_of(model: nn.Module) -> dict[str, Any]:
    """The state with the positions of every weight, also where all entries are active: it loads whatever was cut."""
    for weight in sparse_weights(model).values():
        weight.support.explicit(weight.mean.device)
    return model.state_dict()


def _log_normal(x: Tensor, std: float) -> Tensor:
    return -0.5 * (x / std).square() - math.log(std * math.sqrt(2 * math.pi))
