"""Members of an ensemble, trained side by side as one network.

The members stay converted networks of their own, so that each has its active positions, its budget and its moments, and
the rules and optimizers that train one network train all. On small networks a step costs calls, not arithmetic, so
:class:`MemberSteps` takes one step of all members in native code (``kernels/csrc/members.h``), by two calls: one for
the passes and all gradients, one for Adam. What is trained lies in flat buffers, of which the parameters and the
optimizer's moments are slices, so that rules and checkpoints see what they always see.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from gossamer.kernels import library
from gossamer.kernels.native_members import MemberShape, NativeMembers, Trained
from gossamer.layers import GaussianWeight, SparseWeight, sparse_weights
from gossamer.layers.modules import SparseLinear
from gossamer.likelihoods import Gaussian, Weighted
from gossamer.train import Steps, Training
from gossamer.train.capture.flat_weights import flatten
from gossamer.types import Kind, Likelihood, Penalty, Posterior, Task, identity


def can_train_together(network: nn.Module) -> bool:
    """Whether a converted network has Gaussian weights with local noise only, and a budget for each of them."""
    layers = _linear(network)
    plain = any(isinstance(part, nn.Linear) for part in network.modules())
    return not plain and bool(layers) and all(map(_is_gaussian, (layer.weight for layer in layers)))


class Members(nn.Module):
    """Converted multilayer perceptrons of one shape side by side: ``(batch, in) -> (members, batch, out)``."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([network(x) for network in self.networks])

    @property
    def layers(self) -> list[tuple[SparseLinear, ...]]:
        """Layer by layer, the members of each."""
        return list(zip(*map(_linear, self.networks), strict=True))


@dataclass(frozen=True)
class SumOverMembers(Likelihood):
    """The sum of the members' losses, so that the gradient of each is what it is alone."""

    likelihood: Likelihood

    @property
    def kind(self) -> Kind:
        return self.likelihood.kind

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """``(members, batch, out), (batch, …)`` -> the sum over members of their mean losses."""
        n = len(output)
        return n * self.likelihood.loss(output.flatten(0, 1), y.repeat(n, *[1] * (y.dim() - 1)))

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        return self.likelihood.log_predictive(outputs, y)


@dataclass(frozen=True)
class WithoutFolds(Likelihood):
    """The same for members of which each ignores the rows of one fold: member r those of fold r.

    The last columns of the targets are the weight of a row and its fold. Of n members each counts the others' rows
    n/(n - 1) times, so that the mean weight is 1 for all of them.

    Attributes:
        likelihood: What reads the targets without these columns.
        n_folds: How many there are.
        member: The only member whose outputs are given; ``None`` where those of all are, side by side.
    """

    likelihood: Likelihood
    n_folds: int
    member: int | None = None

    @property
    def kind(self) -> Kind:
        return self.likelihood.kind

    def loss(self, output: Tensor, y: Tensor) -> Tensor:
        """``(members, batch, out), (batch, targets + 2)``, or ``(batch, out)`` of one member -> the sum of losses."""
        members = torch.arange(self.n_folds) if self.member is None else torch.tensor([self.member])
        known = y[:, -1] != members.to(y.device).unsqueeze(1)
        weight = len(y) * (y[:, -2] * known * (self.n_folds / (self.n_folds - 1) / len(y)))
        targets = y[:, :-2].expand(len(weight), -1, -1)
        weighted = torch.cat([targets, weight.unsqueeze(-1)], -1).flatten(0, 1)
        return len(weight) * Weighted(self.likelihood).loss(output.reshape(len(weighted), -1), weighted)

    def log_predictive(self, outputs: Tensor, y: Tensor) -> Tensor:
        return Weighted(self.likelihood).log_predictive(outputs, y[:, :-1])


class OfMembers(Posterior):
    """Draws of single networks from a posterior of :class:`Members`: as many of each member, in turn."""

    def __init__(self, posterior: Posterior, members: int) -> None:
        self.posterior, self.members = posterior, members
        self.model = posterior.model

    def draws(self, n: int) -> Iterator[nn.Module]:
        together = self.posterior.draws(-(-n // self.members))
        return islice((network for drawn in together for network in drawn.networks), n)  # type: ignore[union-attr]


def _linear(network: nn.Module) -> list[SparseLinear]:
    return [part for part in network.modules() if isinstance(part, SparseLinear)]


def _is_gaussian(weight: SparseWeight) -> bool:
    local = isinstance(weight, GaussianWeight) and weight.noise == "local" and weight.mode == "default"
    return local and not weight.support.shares_budget


MOST = 2**24  # entries of all layers of all members, active or not: before a move there are dense gradients of them


def native_steps(training: Training) -> Steps:
    """Steps in native code, where that is possible: Adam on Gaussian weights, on a CPU.

    The network is one of :class:`gossamer.estimators.draws.Architecture`, or several of them as :class:`Members`.
    """
    if not _is_possible(training):
        return training.eager
    model = training.model if isinstance(training.model, Members) else Members([training.model])
    return MemberSteps(model, training.inner_optimizer, training.task, training.penalty)


class MemberSteps(Steps):
    """The steps of :class:`Members` with Gaussian weights.

    ``optimizer`` is Adam, in any state, with the parameter groups of :func:`gossamer.param_groups`; ``penalty`` is a
    weighted KL. Of the task its transform and likelihood are used.
    """

    def __init__(self, model: Members, optimizer: Optimizer, task: Task, penalty: Penalty) -> None:
        super().__init__(model, optimizer)
        self.transform, self.penalty = task.transform, penalty
        self.weights: list[Any] = list(sparse_weights(model).values())
        held = {id(parameter) for weight in self.weights for parameter in weight.parameters()}
        rest = [parameter for parameter in model.parameters() if id(parameter) not in held]
        vectors = [weight.mean for weight in self.weights], [weight.raw_std for weight in self.weights], rest
        moments = map(self._moments, optimizer.param_groups)
        groups = [Trained(*flatten(own), *state) for own, state in zip(vectors, moments, strict=True)]
        lengths = [weight.support.n_active for weight in self.weights]
        priors = [weight.prior_std for weight in self.weights]
        self.native = NativeMembers(_shape_of(model, held, task), lengths, priors, groups)
        self.seed = torch.zeros((), dtype=torch.int64)
        self.refresh()

    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
        x = x if self.transform is identity else self.transform(x).flatten(1)
        seed, noisy = int(self.seed.random_()), self.weights[0].is_noisy
        losses = self.native.gradients(x, y, self.penalty.scale(number) or 0.0, seed, noisy=noisy)
        for i, weight in enumerate(self.weights):
            if weight.probe is not None:  # before a move of the subspace, which looks for the dense gradients there
                weight.probe.grad = self.native.dense_gradient(i)
        return losses[0], losses[1], _no_loss

    def refresh(self) -> None:
        self.native.place([weight.support.position for weight in self.weights])

    def apply(self) -> None:
        self.native.adam(self.optimizer.param_groups)

    def _moments(self, group: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Adam's step and moments of a group, flat; the states of its parameters become slices of them."""
        states = [self.optimizer.state[parameter] for parameter in group["params"]]
        step = torch.as_tensor(states[0].get("step", 0.0), dtype=torch.float32).clone()
        moments = []
        for name in ("exp_avg", "exp_avg_sq"):
            old = [state.get(name, torch.zeros_like(p)) for state, p in zip(states, group["params"], strict=True)]
            moments.append(torch.cat(old))
            for state, part in zip(states, moments[-1].split([len(one) for one in old]), strict=True):
                state.update({"step": step, name: part})
        return step, moments[0], moments[1]


def _is_possible(training: Training) -> bool:
    model, optimizer, likelihood = training.model, training.inner_optimizer, training.task.likelihood
    weights = list(sparse_weights(model).values())
    if sum(weight.support.size for weight in weights) > MOST or type(optimizer) is not Adam:
        return False
    if not isinstance(model, Members) and not can_train_together(model):
        return False
    if not library.LIBRARY or training.fabric.device.type != "cpu" or _inner(likelihood) is None:
        return False
    groups = optimizer.param_groups
    plain = not any(group["amsgrad"] or group["maximize"] for group in groups)
    named = [group.get("name") for group in groups] == ["means", "stds", "rest"]
    gaussian = all(type(weight) is GaussianWeight and weight.mean.requires_grad for weight in weights)
    # A rollback loads a state, which these steps hold the vectors of.
    waits = training.recovery.on_nan == "stop" and all(rule.capturable for rule in training.rules)
    return plain and named and gaussian and waits


def _inner(likelihood: Likelihood) -> Likelihood | None:
    """The likelihood of one row, if native code knows it."""
    inner = likelihood.likelihood if isinstance(likelihood, SumOverMembers | WithoutFolds) else likelihood
    inner = inner.likelihood if isinstance(inner, Weighted) else inner
    return inner if inner.is_native else None


def _shape_of(model: Members, held: set[int], task: Task) -> MemberShape:
    """The networks, and where the parameters that are no weights lie in one of them."""
    named = {name: p for name, p in model.networks[0].named_parameters() if id(p) not in held}
    sizes = [len(parameter) for parameter in named.values()]
    starts = dict(zip(named, (sum(sizes[:i]) for i in range(len(sizes))), strict=True))
    noise, y, inner = starts.pop("raw_noise", None), task.train[1], _inner(task.likelihood)
    shapes = [layers[0].weight.support.shape for layers in model.layers]
    return MemberShape(
        members=len(model.networks),
        widths=(shapes[0][1], *(shape[0] for shape in shapes)),
        biases=tuple(starts.values()),
        others=sum(sizes),
        noise=noise,
        has_classes=task.kind == "classification",
        columns=y.shape[1] if y.dim() > 1 else 1,
        folded=isinstance(task.likelihood, WithoutFolds),
        reach=inner.reach if isinstance(inner, Gaussian) else math.inf,
    )


def _no_loss() -> Tensor:
    raise ValueError("a rule that evaluates the loss again cannot act on steps in native code")
