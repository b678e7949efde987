"""Other initial weights for a network that was given without the function that built it."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

KS_LIMIT = 2.7  # of the Kolmogorov-Smirnov statistic times √(n/2): two samples of one law exceed it once in a million
REPEATS, NUMBERS = 3, 2**22  # random numbers of float32 come from 2²⁴ values, so that some are drawn a few times
EQUAL = 1e-3  # singular values that differ by less than this share of them are those of an orthogonal weight

HOW = (
    "give fit the function that builds the network (build=…), or let all members start from the given weights "
    "(fresh=False)"
)


@torch.no_grad()
def renew(network: nn.Module) -> None:
    """Draw the weights of a network again, in place, by ``reset_parameters`` of its layers: torch's usual law.

    Where the given weights visibly follow another law (pretrained, scaled, orthogonal, biases of gates set by hand), or
    a module with random parameters cannot reset them, that is a ``ValueError``. Layers of a few weights tell little
    about their law: whoever sets their weights should give the function that builds the network instead.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layer = nn.Linear(20, 30)
        >>> before = layer.weight.clone()
        >>> renew(layer)
        >>> torch.equal(layer.weight, before), bool(layer.weight.abs().max() < 20**-0.5)
        (False, True)
        >>> _ = nn.init.orthogonal_(layer.weight)
        >>> renew(layer)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        ValueError: 'weight' does not follow the law by which its layer draws weights: ...
    """
    for name, module in network.named_modules():
        given = {
            f"{name}.{own}".strip("."): (parameter, parameter.clone())
            for own, parameter in module.named_parameters(recurse=False)
            if parameter.requires_grad
        }
        # What torch's layers have in common is this name alone: no base class declares it.
        reset = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
        elif not all(_is_constant(before) for _, before in given.values()):
            raise ValueError(f"{name or type(module).__name__!r} cannot draw other initial weights: {HOW}")
        for full, (parameter, before) in given.items():
            if not _same_law(before, parameter):
                raise ValueError(f"{full!r} does not follow the law by which its layer draws weights: {HOW}")


def _is_constant(values: Tensor) -> bool:
    return bool((values == values.flatten()[:1]).all())


def _same_law(one: Tensor, other: Tensor) -> bool:
    """Whether two draws of a parameter may have one law: entries, the most frequent value, and singular values."""
    if _is_constant(one) or _is_constant(other):
        return torch.equal(one, other)
    a, b = one.flatten().double().sort().values, other.flatten().double().sort().values
    everywhere, n = torch.cat([a, b]), len(a)
    gap = (torch.searchsorted(a, everywhere, right=True) - torch.searchsorted(b, everywhere, right=True)).abs().max()
    repeats = [int(values.unique_consecutive(return_counts=True)[1].max()) for values in (a, b)]
    return (
        float(gap) / n * math.sqrt(n / 2) < KS_LIMIT
        and abs(repeats[0] - repeats[1]) <= REPEATS + n / NUMBERS
        and _is_orthogonal(one) == _is_orthogonal(other)
    )


def _is_orthogonal(weight: Tensor) -> bool:
    """Whether all singular values of the weight as a matrix are equal."""
    matrix = weight.flatten(1) if weight.dim() > 1 else weight[None]
    if min(matrix.shape) < 2:
        return False
    gram = (matrix @ matrix.T if matrix.shape[0] <= matrix.shape[1] else matrix.T @ matrix).double()
    size = gram.diagonal().mean()
    return bool((gram - size * torch.eye(len(gram), dtype=gram.dtype, device=gram.device)).abs().max() < EQUAL * size)
