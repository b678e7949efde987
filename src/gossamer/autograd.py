"""``torch.autograd.Function`` at a third of the price of a call."""

from __future__ import annotations

from typing import Any

import torch
from torch._functorch.utils import unwrap_dead_wrappers

__all__ = ["Function"]


class Function(torch.autograd.Function):
    """A function with ``setup_context``, without the search for default arguments of ``forward`` in every call.

    For that search torch has Python inspect the signature each time, which takes twice as long as the rest of a call on
    a small tensor. ``forward`` must have no defaults, therefore.

    Example:
        >>> class Double(Function):
        ...     @staticmethod
        ...     def forward(x):
        ...         return 2 * x
        ...     @staticmethod
        ...     def setup_context(ctx, inputs, output):
        ...         pass
        ...     @staticmethod
        ...     def backward(ctx, grad):
        ...         return 2 * grad
        >>> Double.apply(torch.ones(2, requires_grad=True)).sum().item()
        4.0
    """

    def __init_subclass__(cls) -> None:
        """Refuse defaults, which nobody would fill in."""
        super().__init_subclass__()
        if cls.forward.__defaults__ or cls.forward.__kwdefaults__:
            raise TypeError(f"{cls.__name__}.forward must have no defaults: give every argument in the call")

    @classmethod
    def apply(cls, *args: Any) -> Any:
        """As torch's."""
        if torch._C._are_functorch_transforms_active():
            return super().apply(*args)  # type: ignore[no-untyped-call]
        # Compilers do not come here: they know what to do for the name of this method.
        return super(torch.autograd.Function, cls).apply(*unwrap_dead_wrappers(args))  # type: ignore[misc]
