"""Which backward passes count: those whose sum the gradient of a weight's mean is."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


class GradientSum:
    """Follows the backward passes whose sum ``mean.grad`` holds, for what is summed beside it.

    Autograd adds every pass to ``.grad`` until it is cleared (``zero_grad``, with or without ``set_to_none``). A pass
    that finds it empty starts anew, and ``clear`` is called to drop what earlier passes left behind.
    """

    def __init__(self, mean: nn.Parameter, clear: Callable[[], object]) -> None:
        self.mean, self.clear = mean, clear
        self._number: int | None = None  # the pass under way, by autograd's count
        self._version: int | None = None  # of mean.grad after the last pass
        self._hooks: list[RemovableHandle] = []

    def attach(self, *leaves: Tensor | None) -> None:
        """Follow the passes that reach the mean or one of the leaves."""
        self._hooks = [
            self.mean.register_hook(self.entered),  # type: ignore[no-untyped-call]
            self.mean.register_post_accumulate_grad_hook(self._left),  # type: ignore[no-untyped-call]
            *(leaf.register_hook(self.entered) for leaf in leaves if leaf is not None),
        ]

    def detach(self) -> None:
        """Follow no further pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def entered(self, grad: Tensor) -> None:
        """At the first call of a pass, before it has added anything: start anew if ``mean.grad`` was cleared."""
        number = torch._C._current_graph_task_id()
        if number == self._number:
            return
        self._number, held = number, self.mean.grad
        # An unchanged version tells an untouched gradient of zeros from one that was zeroed.
        if held is None or (held._version != self._version and not bool(held.any())):
            self.clear()

    def _left(self, mean: Tensor) -> None:
        self._version = None if mean.grad is None else mean.grad._version
