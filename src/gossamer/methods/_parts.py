"""Parts that several methods share."""

import inspect
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Protocol, get_type_hints, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import SGD

from gossamer.layers import param_groups, sparse_weights
from gossamer.optim import Sampler
from gossamer.posterior import Last, Refresh, Snapshots, ends_of_cycles
from gossamer.schedules import cosine, cyclical, phases
from gossamer.sparsity.convert import sparsify
from gossamer.types import Method, Penalty, Schedule, Task


def with_options_of(
    parent: Callable[..., Method], *without: str, **defaults: Any
) -> Callable[[Callable[..., Method]], Callable[..., Method]]:
    """Give a function of ``(task, steps, *, …, **options)`` the options of another method, and their descriptions.

    ``without`` names options that it does not have, ``defaults`` are its own values for some of the others.
    """

    def give(function: Callable[..., Method]) -> Callable[..., Method]:
        own = inspect.signature(function)
        kept = [item for item in own.parameters.values() if item.kind is not item.VAR_KEYWORD]
        hints, others = get_type_hints(parent, include_extras=True), inspect.signature(parent).parameters.values()
        taken = [
            item.replace(annotation=hints[item.name], default=defaults.get(item.name, item.default))
            for item in others
            if item.name not in own.parameters and item.name not in without
        ]
        signature = own.replace(parameters=[*kept, *taken])

        @wraps(function)
        def method(*given: Any, **options: Any) -> Method:
            bound = signature.bind(*given, **options)
            bound.apply_defaults()
            return function(*bound.args, **bound.kwargs)

        method.__signature__ = signature  # type: ignore[attr-defined]
        method.__annotations__ = function.__annotations__ | {item.name: item.annotation for item in taken}
        described = dict(re.findall(r"^    (\w+)(:.*(?:\n {8}.*)*)", inspect.getdoc(parent) or "", re.MULTILINE))
        lines = [f"    {item.name}{described[item.name]}" for item in taken if item.name in described]
        own_doc = inspect.getdoc(function) or ""
        method.__doc__ = "\n".join([own_doc, *([] if "\nArgs:" in own_doc else ["", "Args:"]), *lines])
        return method

    return give


def by_sgd(
    steps: int,
    *,
    lr: float | None,
    momentum: float,
    weight_decay: float,
    usual: float = 0.1,
    nesterov: bool = False,
    **parts: Any,
) -> Method:
    """A method that trains point weights by SGD along a cosine; ``parts`` are what else a :class:`Method` has."""
    rate = usual if lr is None else lr
    return Method(
        optimizer=lambda model: SGD(
            param_groups(model, weight_decay), lr=rate, momentum=momentum, nesterov=nesterov and momentum > 0
        ),
        lr=cosine(rate, steps),
        collector=Last,
        lr_is_given=lr is not None,
        **parts,
    )


def in_cycles(
    task: Task,
    steps: int,
    *,
    sampler: Callable[..., Sampler],
    lr: float | None = None,
    temperature: float = 1.0,
    cycles: int = 4,
    per_cycle: int = 3,
    hot: float = 0.1,
    refresh_batchnorm: bool = False,
) -> Method:
    """Cyclical MCMC (Zhang et al., ICLR 2020, Algorithm 1) on the plain network; its posterior is a set of snapshots.

    In each cycle the learning rate falls along half a cosine. While it is high the sampler goes to another mode without
    noise; in the last part it samples there, and some of its networks are kept.

    Args:
        lr: Learning rate at the start of each cycle, l₀; 0.5.
        temperature: T in the hot part; 1 samples the posterior, the released code has 1/N.
        cycles: Number of cycles of the learning rate.
        per_cycle: Snapshots per cycle, a fiftieth of the cycle apart, the last at its end.
        hot: Share of each cycle, at its end, that has noise; before it the temperature is 0.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
    """
    at = ends_of_cycles(steps, cycles, per_cycle)
    rate = 0.5 if lr is None else lr
    return Method(
        optimizer=lambda model: sampler(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=phases(0.0, temperature, steps, cycles, hot) if hot != 1 else temperature,
            generator=noise_of_all_ranks(),
        ),
        lr=cyclical(rate, steps, cycles),
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
        lr_is_given=lr is not None,
    )


def all_active(model: nn.Module) -> nn.Module:
    """The network with sparse layers whose entries are all active, at its own weights."""
    return sparsify(model, density=1.0, keep_dense=(), init="pretrained")


def apart(model: nn.Module, chosen: Iterable[nn.Parameter]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Two groups for an optimizer: all other parameters of a network, and the chosen ones."""
    own = dict.fromkeys(chosen)
    return {"params": [other for other in model.parameters() if other not in own]}, {"params": list(own)}


def is_normed(network: nn.Module) -> bool:
    """Whether a network has batch normalisation."""
    return any(isinstance(module, _BatchNorm) for module in network.modules())


def update_period_for(steps: int, update_period: int | None, usual: int = 100) -> int:
    """The given period; by default the paper's ``usual`` one, but at most a fiftieth of the training."""
    return min(usual, max(1, steps // 50)) if update_period is None else whole("update_period", update_period)


def whole(name: str, value: int) -> int:
    """A number of steps between two of something, which is at least 1."""
    if value < 1:
        raise ValueError(f"{name} is a number of steps, at least 1, or None; got {value}")
    return value


def noise_of_all_ranks() -> torch.Generator:
    """A generator for noise on the weights: the same on every rank, or their networks would diverge.

    A method's optimizer is built while all ranks are in the same random state.
    """
    return torch.Generator().manual_seed(int(torch.randint(2**62, ())))


def refresh_of(task: Task, is_wanted: bool = True) -> Refresh | None:
    """Recomputes batch-norm statistics of a draw from the training data of ``task``, if that is wanted.

    The data are augmented as in training: the layers after a normalisation were trained with the statistics of
    augmented data and do worse with others, even though the data to predict are not augmented.
    """
    return None if not is_wanted else Refresh(task.train[0], partial(_as_in_training, task.augment, task.transform))


def _as_in_training(augment: Callable[[Tensor], Tensor], transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    return transform(augment(x))


@runtime_checkable
class HasKL(Protocol):
    """A weight that knows how far it is from its prior."""

    def kl(self) -> Tensor:
        """KL(q ‖ prior), summed over its entries, in nats."""


@dataclass(frozen=True)
class OwnKL(Penalty):
    """``β(step) · KL / N`` for weights with a divergence of their own.

    Mean loss plus penalty is the negative ELBO per example at β = 1. ``rise`` goes from 0 to 1 over the training, and β
    with it to the given one, or to min(1, ``most`` · N/W) with W weights. At β = 1 a network with many more weights
    than examples loses all of them: on digits (N = 959) an MLP with 84,480 weights was at chance. The papers' networks
    for MNIST have up to 4 weights per example, and β = 1 here too.
    """

    beta: float | None
    n_data: int
    rise: Schedule
    most: float = 4.0  # weights per example at which β is still 1

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty of a converted network at a step."""
        return self.unscaled(model) * self.scale(step)

    def scale(self, step: int) -> float:
        return self.rise(step)

    def unscaled(self, model: nn.Module) -> Tensor:
        """``β · KL / N`` with the final β."""
        terms = [weight.kl() for weight in sparse_weights(model).values() if isinstance(weight, HasKL)]
        return torch.stack(terms).sum() * (self.kl_weight(model) / self.n_data)

    def chosen(self, model: nn.Module, steps: int) -> dict[str, float]:
        return {"kl_weight": self.kl_weight(model) * self.rise(steps)}

    def kl_weight(self, model: nn.Module) -> float:
        """The final β."""
        if self.beta is not None:
            return self.beta
        size = sum(weight.support.size for weight in sparse_weights(model).values())
        return min(1.0, self.most * self.n_data / size)


def replace_layers(model: nn.Module, replacements: Mapping[int, nn.Module]) -> nn.Module:
    """Put modules in the place of others, by ``id``; returns the network, or what replaced it."""
    for module in list(model.modules()):
        if id(module) not in replacements:
            for name, child in list(module.named_children()):
                setattr(module, name, replacements.get(id(child), child))
    return replacements.get(id(model), model)


def given(**options: Any) -> dict[str, Any]:
    """The options that are not ``None``."""
    return {name: value for name, value in options.items() if value is not None}


def only_with(what: str, **options: Any) -> None:
    """Refuse options that mean something only with another one."""
    if found := given(**options):
        raise ValueError(f"{' and '.join(found)} can only be given with {what}")


def first_given(*values: float | None) -> float:
    """The first value that is not ``None``."""
    return next(value for value in values if value is not None)
