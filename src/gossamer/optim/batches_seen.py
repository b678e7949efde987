"""Warnings when the passes of a training contradict the loss and the number of examples that it was given."""

import warnings
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from gossamer.distributed import world_size

__all__ = ["watch_batches"]

FAR = 8  # times: several passes for each batch, or weights of examples, are not yet a mistake
ROUNDING = 1.01
SUMMED = (
    "the loss looks like the sum over a batch of {n} examples, not their mean: its gradient by the outputs is larger "
    "than any mean cross-entropy has. gossamer.Curvature takes the mean, reduction='mean'; a sum makes σ too small"
)
TOO_FEW = (
    "n_data is {n_data}, but a batch has {n} examples: n_data is the number of all training examples, len(dataset)"
)
ANOTHER_NUMBER = (
    "n_data is {n_data}, but the loop passes over {n} examples between two short batches: n_data is the number of "
    "all training examples, len(dataset). σ² is proportional to 1/n_data"
)


def watch_batches(model: nn.Module, n_data: int, *, is_scaled: bool) -> list[RemovableHandle]:
    """Look at the batches of a training and the gradient of its first outputs, and warn once of each contradiction."""
    sizes, outputs = _Sizes(n_data), _Outputs()
    sizes.handle = model.register_forward_pre_hook(sizes)
    if not is_scaled:
        outputs.handle = model.register_forward_hook(outputs)
    return [hook.handle for hook in (sizes, outputs) if hook.handle is not None]


class _Hook:
    """A hook of a network in training that removes itself when it has seen enough; a copy does nothing."""

    handle: RemovableHandle | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"handle": None}

    def __call__(self, model: nn.Module, args: tuple[Any, ...], output: Any = None) -> None:
        if torch.compiler.is_compiling() or self.handle is None or not (torch.is_grad_enabled() and model.training):
            return
        if self.ends(args, output):
            self.handle.remove()

    def ends(self, args: tuple[Any, ...], output: Any) -> bool:
        """Look at a pass; whether that was enough."""
        raise NotImplementedError


class _Sizes(_Hook):
    """The sizes of batches: an epoch ends where one is shorter, unless the loader drops it."""

    def __init__(self, n_data: int) -> None:
        self.n_data, self.largest, self.since, self.before = n_data, 0, 0, 0

    def ends(self, args: tuple[Any, ...], output: Any) -> bool:
        if not args or not isinstance(args[0], Tensor) or not args[0].dim():
            return True
        n = len(args[0])
        if n > self.n_data:
            warnings.warn(TOO_FEW.format(n_data=self.n_data, n=n), stacklevel=3)
            return True
        self.largest, self.since = max(self.largest, n), self.since + n
        if n == self.largest:
            return False
        epoch, self.since, before = self.since * world_size(), 0, self.before
        self.before = epoch
        if epoch == before and not self.n_data / FAR < epoch < self.n_data * FAR:
            warnings.warn(ANOTHER_NUMBER.format(n_data=self.n_data, n=epoch), stacklevel=3)
        return epoch == before  # two of equal length are no chance


class _Outputs(_Hook):
    """The gradient of the first outputs ``(batch, classes)``."""

    def ends(self, args: tuple[Any, ...], output: Any) -> bool:
        if not isinstance(output, Tensor) or not output.requires_grad:
            return False
        if output.dim() == 2 and min(output.shape) > 1:
            output.register_hook(_check_mean)
        return True


def _check_mean(grad: Tensor) -> None:
    """Rows of a cross-entropy's gradient, p - y over the batch size, sum to zero and have absolute sums up to 2."""
    n, size = len(grad), float(grad.abs().sum())
    is_cross_entropy = float(grad.sum(1).abs().max()) < 1e-3 * float(grad.abs().max())
    if is_cross_entropy and 2 * ROUNDING < size <= 2 * n * ROUNDING:
        warnings.warn(SUMMED.format(n=n), stacklevel=2)
