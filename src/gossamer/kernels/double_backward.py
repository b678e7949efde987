"""Gradients that can be differentiated again: those of the reference kernel, which any other one equals."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

__all__ = ["gradients_again"]


def gradients_again(
    compute: Callable[..., Sequence[Tensor]],
    leaves: Sequence[Tensor | None],
    grads: Sequence[Tensor | None],
    wanted: Sequence[bool],
) -> tuple[Tensor | None, ...]:
    """The wanted ones among the gradients of Σ ⟨output, grad⟩ for the leaves, as functions of leaves and ``grads``.

    A ``grad`` that is ``None`` or missing is one of zeros, and a gradient that is not wanted is ``None``.

    Example:
        >>> x = torch.tensor(3.0, requires_grad=True)
        >>> (slope,) = gradients_again(lambda x: [x**3], [x], [torch.tensor(1.0)], [True])
        >>> slope, *torch.autograd.grad(slope, x)
        (tensor(27., grad_fn=<MulBackward0>), tensor(18.))
    """
    with torch.enable_grad():
        outputs = compute(*leaves)
        given = [(y, grad.view_as(y)) for y, grad in zip(outputs, grads, strict=False) if grad is not None]
        if not given:
            return (None,) * len(leaves)
        targets = {i: leaf for i, leaf in enumerate(leaves) if leaf is not None and wanted[i]}
        found = torch.autograd.grad(
            [y for y, _ in given],
            list(targets.values()),
            [grad for _, grad in given],
            create_graph=True,
            allow_unused=True,
        )
    by_index = dict(zip(targets, found, strict=True))
    return tuple(by_index.get(i) for i in range(len(leaves)))
