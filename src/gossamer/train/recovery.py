"""What a training does where inputs, a loss or a gradient are not finite: stop, leave the batch out, or go back."""

from __future__ import annotations

import copy
import logging
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_args

import torch
from torch import Tensor, nn

from gossamer.distributed import on_any_rank
from gossamer.train.divergence import PERIOD, DivergenceError, OnNan, most_grown
from gossamer.types import Split

if TYPE_CHECKING:
    from gossamer.train.loop import Training

__all__ = ["Recovery", "bad_rows", "first_not_finite"]

MAX_ATTEMPTS = 10  # to take a step by other batches


class NotFiniteError(Exception):
    """A step was refused: something is not finite."""


class Recovery:
    """Takes steps with other batches where something is not finite and ``on_nan`` says to go on.

    Attributes:
        shift: How many batches were left out.
    """

    def __init__(self, on_nan: OnNan) -> None:
        if on_nan not in get_args(OnNan):
            raise ValueError(f"on_nan must be 'stop', 'skip' or 'rollback'; got {on_nan!r}")
        self.on_nan = on_nan
        self.shift = 0
        self._good: dict[str, Any] | None = None  # where a rollback goes back to

    def advance(self, training: Training) -> dict[str, Tensor]:
        """One step of a training, and before it those that a rollback has to take again."""
        target, n_refused = training.step + 1, 0
        while True:
            buffers = self._keep(training)
            try:
                values = training.take()
            except NotFiniteError as refusal:
                n_refused += 1
                error = DivergenceError(f"training diverged at step {training.step + 1}: {refusal}")
                if self.on_nan == "stop" or n_refused == MAX_ATTEMPTS:
                    raise error from None
                logging.getLogger("gossamer").warning(f"{error} ({self.on_nan} goes on with other batches)")
                self._leave_out(training, buffers)
            else:
                if training.step == target:
                    return values

    def forget(self) -> None:
        """Do not go back to any step before this one."""
        self._good = None

    def _keep(self, training: Training) -> list[tuple[Tensor, Tensor]]:
        """Keep what a refused step would have changed: all state, or what a pass may change, such as statistics."""
        if self.on_nan == "rollback" and (self._good is None or training.step % PERIOD == 0):
            self._good = copy.deepcopy(training.state_dict())
        if self.on_nan != "skip":
            return []
        return [(buffer, buffer.clone()) for buffer in training.model.buffers() if buffer.is_floating_point()]

    def _leave_out(self, training: Training, buffers: list[tuple[Tensor, Tensor]]) -> None:
        """Go on with other batches: after the present one, or after all of those that a rollback undoes."""
        training.optimizer.zero_grad()
        for buffer, before in buffers:
            buffer.copy_(before)
        failed, shift = training.step + 1, self.shift
        if self._good is not None:
            training.load_state_dict(copy.deepcopy(self._good))
            training.updates.append({"step": failed, "rolled_back": training.step})
        self.shift = shift + failed - training.step

    def check_inputs(self, x: Tensor) -> None:
        """Refuse a batch with inputs that are not finite, on all ranks."""
        if x.is_cuda and self.on_nan == "stop":
            return  # the losses will tell, without a wait in every step
        (is_bad,) = on_any_rank([bool(rows := bad_rows(x))], x.device)
        if is_bad:
            what = f"inputs are not finite, in rows {rows[:5]} of its batch of {len(x)}"
            raise NotFiniteError(f"{what}. Fix the data, or skip such batches: on_nan='skip'")

    def check_loss(self, training: Training, batch: Split, loss: Tensor) -> None:
        """Refuse a loss that is not finite and, where a step can be taken again, such a gradient, on all ranks."""
        if loss.is_cuda and self.on_nan == "stop":
            return  # as above; to agree with other ranks would be a wait, too
        (is_bad,) = on_any_rank([self._rejects(training.model, loss)], loss.device)
        if is_bad:
            where = first_not_finite(training.model, training.eager.objective(*batch))
            raise NotFiniteError(
                f"a loss of {float(loss):.3g}; {where}; {most_grown(training.model, training.watch.sizes)}. Give a "
                f"smaller learning rate (lr is {training.lr:.3g} here), or on_nan='skip' or 'rollback' to train on"
            )

    def _rejects(self, model: nn.Module, loss: Tensor) -> bool:
        if self.on_nan == "stop":
            return not math.isfinite(float(loss))
        grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        largest = torch.nn.utils.get_total_norm(grads, math.inf) if grads else loss.new_zeros(())
        return not bool(torch.isfinite(loss) & torch.isfinite(largest.to(loss.device)))


def bad_rows(x: Tensor) -> list[int]:
    """The rows of a batch with numbers that are not finite.

    Example:
        >>> bad_rows(torch.tensor([[1.0, 2.0], [torch.nan, 0.0], [3.0, torch.inf]]))
        [1, 2]
    """
    if not x.is_floating_point() or math.isfinite(float(x.detach().sum())) or bool(torch.isfinite(x).all()):
        return []  # one that is not finite makes the sum so; a sum that overflows says nothing
    rows: list[int] = (~torch.isfinite(x)).flatten(1).any(1).nonzero().flatten().tolist()
    return rows


@torch.no_grad()
def first_not_finite(model: nn.Module, evaluate: Callable[[], Tensor]) -> str:
    """Which part of a network is the first to return a number that is not finite, when its loss is evaluated again.

    Example:
        >>> network = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> _ = nn.init.constant_(network[2].bias, torch.inf)
        >>> first_not_finite(network, lambda: network(torch.ones(1, 2)).sum())
        'the first layer with an output that is not finite is 2'
    """
    names: list[str] = []

    def look(name: str, output: Any) -> None:
        if isinstance(output, Tensor) and output.is_floating_point() and not bool(torch.isfinite(output).all()):
            names.append(name)

    hooks = [
        part.register_forward_hook(lambda part, inputs, output, name=name: look(name, output))
        for name, part in model.named_modules()
        if name
    ]
    try:
        evaluate()
    finally:
        for hook in hooks:
            hook.remove()
    if names:
        return f"the first layer with an output that is not finite is {names[0]}"
    bad = [n for n, p in model.named_parameters() if p.grad is not None and not bool(torch.isfinite(p.grad).all())]
    return f"the gradient of {bad[0]} is not finite" if bad else "the outputs of all layers are finite"
