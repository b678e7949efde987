"""Masked Bayesian networks (Kong, Yang, Lee, Ohn, Baek and Kim, ICML 2023).

Each hidden layer l of width p has a mask m ∈ {0, 1}ᵖ of its units or channels, m · f(x). With s = Σ m and N examples

    p(m) ∝ Π_l exp(-(λ log N)⁵ s_l²) / C(p_l, s_l),   w ~ Cauchy(0, scale),   U(w, m) = -log p(y | w, m) - log p(w)

Weights and masks take turns. Weights move by HMC on all data, or by SGLD on batches. A move of the masks is a death or
a birth (½ each) of n units of all layers, n uniform on {1, 2, 3}, drawn without replacement: in a birth all inactive
units are equally likely, in a death an active unit j has the weight exp(-|∂U/∂m_j|/2), so that units of little effect
die. With Q, the probability of that set, it is accepted with probability

    min(1, p(m′)/p(m) · exp(U(w, m) - U(w, m′)) · Q(m′ → m)/Q(m → m′))

which leaves the posterior as it is. With SGLD, U is N times the mean over the batch, as in the paper. The weights of an
inactive unit follow the prior alone; what is kept of a network does not contain them.

Departures: the given network is the wide one, of whose units 4/5 are active first, where the paper widens it by a
quarter. Masks move from the middle of the burn-in on: before anything is learnt no unit has an effect, and most would
die. A layer keeps one unit at least. The noise of a regression is a parameter of the network.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.optim import Optimizer

from gossamer.compaction.masks import governed, without_masks
from gossamer.compaction.operations import POINTWISE_MODULES
from gossamer.layers.modules import Masked
from gossamer.methods._birth_death import BirthDeath
from gossamer.methods._parts import noise_of_all_ranks, refresh_of, replace_layers, whole
from gossamer.optim import HMC, SGLD
from gossamer.posterior import Snapshots
from gossamer.posterior.mixture import pack
from gossamer.sparsity.moves import after_steps
from gossamer.types import Method, Penalty, Posterior, Rule, Schedule, Step, Task, identity

__all__ = ["mbnn"]

HMC_WORK = 3e6  # parameters times examples, up to which a trajectory takes well under a second
FIRST_STEP = 0.01  # of HMC, over N
BURN_IN = 400  # trajectories, or half of them if that is less
MOVES_PER_TRAJECTORY = 10
STEPS, PERIOD = 100_000, 10  # of the paper's trainings by SGLD, and between two of its moves
BY_HMC = {"optimizer": "HMC", "lr": None}  # whose step size learns
LAST = 0.3  # the largest share of the learning rate that is left for the second half


# The paper has 0.05 and 0.1 for 50,000 images, 0.1 and 1 for tables of 500 rows: these are the same for all N.
LOG_COST = 0.54  # λ log N
PRECISION = 0.004  # 2/(N scale²), the weight decay to which the prior amounts near zero


def mbnn(
    task: Task,
    steps: int,
    *,
    sampler: Literal["hmc", "sgld"] | None = None,
    strength: float | None = None,
    prior_scale: float | None = None,
    start: float = 0.8,
    lr: float | None = None,
    temperature: float = 0.1,
    leapfrog: int = 20,
    update_period: int | None = None,
    samples: int | None = None,
    refresh_batchnorm: bool = False,
) -> Method:
    """Masked Bayesian network: its units are born and die by Metropolis moves; its posterior is a set of snapshots.

    Args:
        steps: Length of the training; with HMC, in trajectories.
        sampler: How the weights are drawn: ``"hmc"`` takes ``leapfrog`` gradients of all examples per step, in float32
            whatever the precision of the training; ``"sgld"`` one of a batch. ``None`` is HMC for small networks and
            tables.
        strength: λ, how much units cost; ``None`` is 0.54/log N, which is the paper's 0.05 for CIFAR.
        prior_scale: Scale of the Cauchy prior of the weights; ``None`` is √(500/N): the paper's 0.1 for CIFAR and 1 for
            tables of 500 rows.
        start: Share of the units that are active at the start, chosen at random.
        lr: Learning rate of SGLD; 0.5. In half of the training a cosine leads to a hundredth of it, and in trainings of
            less than 100,000 steps to more, up to 0.3 of it: units die until the end, and the others must learn to
            replace them.
        temperature: T of SGLD. 1 samples the posterior, the released code has 1/N and, in the second half, a hundredth
            of it. At 1 a network with many more weights than examples is mostly noise.
        leapfrog: Steps of a trajectory of HMC.
        update_period: Steps between two moves of the masks with SGLD; ``None`` is the paper's 10 in a training of
            100,000 steps, and less in shorter ones. HMC has ten moves after each trajectory.
        samples: How many networks are kept, evenly over the second half; with HMC, after the first 400 trajectories.
            ``None`` is 5 with SGLD and 20 with HMC, as in the paper.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    if not 0 < start <= 1:
        raise ValueError(f"start is the share of units that are active first, in (0, 1]; got {start}")
    n_data = task.n_data
    prior = Cauchy(math.sqrt(2 / (PRECISION * n_data)) if prior_scale is None else prior_scale, n_data)
    cost = math.pow(LOG_COST if strength is None else strength * math.log(n_data), 5)
    rate = 0.5 if lr is None else lr
    usual = max(1, min(PERIOD, PERIOD * steps // STEPS))
    period = usual if update_period is None else whole("update_period", update_period)

    def by(kind: str) -> Method:
        burn_in = steps // 2 if kind == "sgld" else min(BURN_IN, steps // 2)
        kept = _evenly(steps - burn_in, steps, samples, usual=5 if kind == "sgld" else 20)

        def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
            chain = BirthDeath(masks_of(model), n_data, cost, noise_of_all_ranks())
            if kind == "sgld":
                return [AfterBatches(model, chain, optimizer, burn_in // 2, period)]
            return [AfterTrajectories(model, chain, task, prior, leapfrog, burn_in)]

        return Method(
            prepare=partial(with_masks, example=task.transform(task.train[0][:2]), start=start),
            optimizer=lambda model: SGLD(
                model.parameters(), rate, n_data=n_data, temperature=temperature, generator=noise_of_all_ranks()
            ),
            lr=_falling(rate, min(LAST, 0.01 * STEPS / steps), steps // 2),
            penalty=prior,
            rules=rules,
            collector=lambda: MaskedSnapshots(kept, refresh_of(task, refresh_batchnorm)),
            chosen={
                "sampler": kind,
                "strength": LOG_COST / math.log(max(2, n_data)) if strength is None else strength,
                "prior_scale": prior.width,
                "samples": len(kept),
                **({"update_period": period} if kind == "sgld" else BY_HMC),
            },
            one_rate=kind == "sgld",  # HMC finds its own step size
            lr_is_given=lr is not None,
        )

    def suited(network: nn.Module) -> Method:
        work = n_data * sum(parameter.numel() for parameter in network.parameters())
        return by("hmc" if work <= HMC_WORK and task.augment is identity else "sgld")

    return replace(by("sgld"), adapt=suited) if sampler is None else by(sampler)


@dataclass(frozen=True)
class Cauchy(Penalty):
    """-log p(w)/N for weights and biases of linear layers and convolutions, Cauchy(0, width) each, up to a constant.

    Example:
        >>> layer = nn.Linear(1, 1, bias=False)
        >>> _ = layer.weight.data.fill_(0.2)
        >>> Cauchy(width=0.1, n_data=10)(layer, 1) == torch.tensor(5.0).log() / 10
        tensor(True)
    """

    width: float
    n_data: int

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty of a network; it does not depend on the step."""
        layers = (module for module in model.modules() if isinstance(module, nn.Linear | _ConvNd))
        weights = dict.fromkeys(p for layer in layers for p in layer.parameters(recurse=False))
        return torch.stack([(w / self.width).square().log1p().sum() for w in weights]).sum() / self.n_data


class AfterBatches(Rule):
    """A move of the masks after every so many steps of the optimizer, by the loss of the same batch."""

    def __init__(self, model: nn.Module, chain: BirthDeath, optimizer: Optimizer, begin: int, period: int) -> None:
        self.chain, self.begin, self.period, self.layers = chain, begin, period, governed(model)
        self._loss: Callable[[], Tensor] | None = None
        after_steps(optimizer, self._move)

    def __call__(self, step: Step) -> bool:
        """Remember the batch; its gradient is not spent."""
        is_due = step.number > self.begin and step.number % self.period == 0
        self._loss = step.loss if is_due else None
        return False

    def _move(self) -> None:
        loss, self._loss = self._loss, None
        if loss is not None:
            self.chain.move(loss)

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        """By layer: weights of inactive units, whose likelihood has no gradient."""
        return {name: (layer.n_dead(), 0) for name, layer in self.layers.items()}

    def state_dict(self) -> dict[str, Any]:
        return self.chain.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chain.load_state_dict(state)


class AfterTrajectories(Rule):
    """A trajectory of HMC on all examples instead of the optimizer's step, then moves of the masks.

    The step size learns over the first ``adapting`` trajectories.
    """

    def __init__(
        self, model: nn.Module, chain: BirthDeath, task: Task, prior: Penalty, leapfrog: int, adapting: int
    ) -> None:
        self.model, self.chain, self.task, self.prior, self.layers = model, chain, task, prior, governed(model)
        self.examples: tuple[Tensor, Tensor] | None = None
        self.weights = HMC(
            [parameter for parameter in model.parameters() if parameter.requires_grad],
            lambda: task.n_data * self.loss(),
            FIRST_STEP / task.n_data,
            leapfrog=leapfrog,
            adapting=adapting,
            generator=noise_of_all_ranks(),
        )

    def __call__(self, step: Step) -> bool:
        """Weights, then masks; the gradient of the batch is not used."""
        self.weights.step()
        for _ in range(MOVES_PER_TRAJECTORY if step.number > self.weights.adapting // 2 else 0):
            self.chain.move(self.loss)
        return True

    def loss(self) -> Tensor:
        """The mean loss of all examples, plus the prior."""
        if self.examples is None:
            (x, y), device = self.task.train, next(self.model.parameters()).device
            self.examples = self.task.transform(x.to(device)), y.to(device)
        inputs, targets = self.examples
        return self.task.likelihood.loss(self.model(inputs), targets) + self.prior(self.model, 1)

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        return {name: (layer.n_dead(), 0) for name, layer in self.layers.items()}

    def state_dict(self) -> dict[str, Any]:
        return {"masks": self.chain.state_dict(), "weights": self.weights.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.chain.load_state_dict(state["masks"])
        self.weights.load_state_dict(state["weights"])


class MaskedSnapshots(Snapshots):
    """Snapshots in which zero weights take the place of masks and of what they switch off, and are not stored."""

    def observe(self, model: nn.Module, step: int) -> None:
        if step in self.at:
            self.kept.append(pack(without_masks(model)))

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        return super().posterior(without_masks(model), optimizer)


def masks_of(model: nn.Module) -> list[Masked]:
    """The masked activations of a network."""
    return [module for module in model.modules() if isinstance(module, Masked)]


def with_masks(model: nn.Module, example: Tensor, start: float = 1.0) -> nn.Module:
    """The network with a mask on each activation between its linear layers and convolutions, found by one pass."""
    found: dict[nn.Module, tuple[int, int]] = {}
    dim = 0  # before the first layer
    calls = _calls(model, example)
    last = max((i for i, (module, _) in enumerate(calls) if isinstance(module, nn.Linear | _ConvNd)), default=0)
    for module, shape in calls[:last]:
        if isinstance(module, nn.Linear | _ConvNd):
            dim = 1 if isinstance(module, _ConvNd) else -1
        elif module in found:
            raise ValueError(f"an activation ({module}) is called in several places: give each place its own module")
        elif dim:
            found[module] = (shape[dim], dim)
    if not found:
        raise ValueError(
            "mbnn masks the activations between linear layers and convolutions, and found none: write them as modules, "
            "such as nn.ReLU()"
        )
    masked: dict[int, nn.Module] = {}
    for activation, (width, where) in found.items():
        is_on = torch.randperm(width) < max(1, round(start * width))
        device = next(model.parameters()).device
        masked[id(activation)] = Masked(activation, is_on.to(device, torch.float32), where)
    return replace_layers(model, masked)


def _calls(model: nn.Module, example: Tensor) -> list[tuple[nn.Module, torch.Size]]:
    """Layers and activations in the order in which they run, with the shapes of their outputs."""
    calls: list[tuple[nn.Module, torch.Size]] = []
    modes = {module: module.training for module in model.modules()}
    hooks = [
        module.register_forward_hook(lambda module, _, output: calls.append((module, output.shape)))
        for module in modes
        if isinstance(module, (nn.Linear, _ConvNd, *POINTWISE_MODULES))
    ]
    with torch.no_grad():
        model.eval()(example.to(next(model.parameters()).device))
    for hook in hooks:
        hook.remove()
    for module, mode in modes.items():
        module.training = mode
    return calls


def _evenly(length: int, steps: int, samples: int | None, usual: int) -> list[int]:
    """The steps after which networks are kept, evenly over the last ``length``, by default at most ``usual``."""
    samples = min(usual, length) if samples is None else samples
    if not 1 <= samples <= length:
        raise ValueError(f"samples are kept in the last {length} steps, at most one per step; got {samples}")
    return [steps - length * i // samples for i in range(samples)]


def _falling(lr: float, share: float, until: int) -> Schedule:
    """A cosine from ``lr`` to a share of it, which then stays."""
    return lambda step: lr * (share + (1 - share) * (1 + math.cos(math.pi * min(1.0, step / max(1, until)))) / 2)
