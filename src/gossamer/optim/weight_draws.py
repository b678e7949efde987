"""What optimizers with a Gaussian around every parameter share: the parameters are the means, weights are drawn."""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.optim.sampler import Sampler
from gossamer.types import VariationalOptimizer


class DrawingOptimizer(Sampler):
    """``with optimizer.sampled():`` draws weights for a forward and backward pass and restores the means.

    All passes before one ``step()`` share a draw, so gradients may be accumulated, scaled and clipped. Subclasses say
    how wide a draw is, and find its ε in ``state[parameter]["noise"]`` when they advance.
    """

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], generator: torch.Generator | None) -> None:
        self._passes = {"open": 0}  # how many sampled() are open; a dictionary, because wrappers copy attributes
        super().__init__(params, defaults, generator)

    @abstractmethod
    def stds(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """σ of parameters of a group, each in its shape."""

    def std(self, parameter: Tensor) -> Tensor:
        """σ of a parameter of this optimizer."""
        group = next(group for group in self.param_groups if any(parameter is p for p in group["params"]))
        return self.stds(group, [parameter])[0]

    @contextlib.contextmanager
    def sampled(self, train: bool = True) -> Iterator[None]:
        """Weights drawn from q inside the block, the means again afterwards, also after an exception.

        Args:
            train: Whether gradients computed inside are for the next ``step()``. Otherwise each block makes a fresh
                draw and keeps nothing of it.
        """
        if self._passes["open"]:
            yield  # already sampled
            return
        self._follow_schedules()
        means = [(p, p.detach().clone()) for group in self.param_groups for p in group["params"] if p.requires_grad]
        self._passes["open"] += 1
        try:
            self._perturb(train)
            yield
        finally:
            self._passes["open"] -= 1
            with torch.no_grad():
                for parameter, mean in means:
                    parameter.copy_(mean)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, and the draw they belong to."""
        super().zero_grad(set_to_none)
        if not self._passes["open"]:
            self._forget_draw()

    def _drawn_noise(self, params: list[Tensor]) -> list[Tensor]:
        """ε of the draw that the gradients belong to."""
        if self._passes["open"]:
            raise RuntimeError("step() belongs after the block `with optimizer.sampled():`, where the means are back")
        if any("noise" not in self.state[parameter] for parameter in params):
            raise RuntimeError(
                "these gradients are not those of a draw: run the forward and backward pass inside "
                "`with optimizer.sampled():`, then step()"
            )
        return self._buffers(params, "noise")

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad(), self.sampled():
            return closure()

    @torch.no_grad()
    def _perturb(self, train: bool) -> None:
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.requires_grad]
            for parameter, std in zip(params, self.stds(group, params), strict=True):
                state = self.state[parameter]
                noise = state["noise"] if train and "noise" in state else self.noise.like(parameter)
                if train:
                    state["noise"] = noise
                parameter.add_(std * noise)

    def _forget_draw(self, params: list[Tensor] | None = None) -> None:
        for parameter in self.state if params is None else params:
            self.state[parameter].pop("noise", None)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_passes": {"open": 0}}


def sampled(optimizer: Optimizer) -> contextlib.AbstractContextManager[None]:
    """``optimizer.sampled()`` if the optimizer holds a posterior, otherwise a block that does nothing.

    Example:
        >>> with sampled(torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)):
        ...     pass
    """
    return optimizer.sampled() if isinstance(optimizer, VariationalOptimizer) else contextlib.nullcontext()
