"""What a training loop asks of a converted network: its KL, and its parameters in groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.layers.gaussian import GaussianWeight
from gossamer.layers.weight import SparseWeight, sparse_weights
from gossamer.types import Schedule

__all__ = ["WeightedKL", "kl", "param_groups"]


def kl(model: nn.Module) -> Tensor:
    """KL(q ‖ prior) of all active weights, summed, in nats; tied weights count once.

    Divide by the number of training examples when the loss is a mean over examples: then the objective is the negative
    ELBO per example and does not depend on the batch size.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(100, 10), density=0.1)
        >>> bool(gossamer.kl(model) > 0)
        True
    """
    terms = [weight.kl() for weight in _converted(model).values() if isinstance(weight, GaussianWeight)]
    return torch.stack(terms).sum() if terms else torch.zeros(())


@dataclass(frozen=True)
class WeightedKL:
    """The penalty ``weight(step) · KL / N``: mean loss plus penalty is the negative ELBO per example at weight 1.

    Example:
        >>> WeightedKL(lambda step: 0.5, n_data=100).scale(7)
        0.005
    """

    weight: Schedule
    n_data: int

    def scale(self, step: int) -> float:
        """The factor of the KL at a step."""
        return self.weight(step) / self.n_data

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty of a converted network at a step."""
        return kl(model) * self.scale(step)


def param_groups(model: nn.Module, weight_decay: float = 0.0, std_lr: float | None = None) -> list[dict[str, Any]]:
    """Parameter groups for any ``torch.optim`` optimizer: means, stds, the rest.

    The stds get no weight decay: it would pull ``softplus(raw_std)`` towards log 2. The prior already pulls Gaussian
    means towards zero, so ``weight_decay`` is zero unless you ask for it.

    Args:
        model: A converted network.
        weight_decay: For the means and the rest.
        std_lr: Learning rate of the stds; ``None`` takes the optimizer's. Adam needs no rate of its own here. For SGD
            the gradient of a mean loss with respect to log σ is of order 1/N, so a natural-gradient step takes
            ``lr * n_data / 2`` (the Fisher information of log σ is 2).

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(100, 10), density=0.1)
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model, weight_decay=5e-4), lr=0.01, momentum=0.9)
        >>> [(group["name"], group["weight_decay"]) for group in optimizer.param_groups]
        [('means', 0.0005), ('stds', 0.0), ('rest', 0.0005)]
    """
    if std_lr is not None and not std_lr >= 0:  # torch checks the rate of the optimizer only
        raise ValueError(f"std_lr must not be negative, got {std_lr}")
    weights = _converted(model).values()
    means = [weight.mean for weight in weights]
    stds = [weight.raw_std for weight in weights if isinstance(weight, GaussianWeight)]
    taken = {id(parameter) for parameter in [*means, *stds]}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups: list[dict[str, Any]] = [
        {"name": "means", "params": means, "weight_decay": weight_decay},
        {"name": "stds", "params": stds, "weight_decay": 0.0} | ({} if std_lr is None else {"lr": std_lr}),
        {"name": "rest", "params": rest, "weight_decay": weight_decay},
    ]
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return [group for group in groups if group["params"]]


def _converted(model: nn.Module) -> dict[str, SparseWeight]:
    weights = sparse_weights(model)
    if not weights:
        raise ValueError("this model has no sparse weights: convert it with gossamer.bayesianize(model) first")
    return weights
