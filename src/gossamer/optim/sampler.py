"""What the optimizers share: rates that may be schedules, noise, weights that are drawn, states shaped as parameters.

The loss L is a mean over ``n_data`` examples, as usual in torch: with a weight decay d and N examples the target is
exp(-N · (L + d/2 · ‖w‖²) / temperature).

Every state tensor has the shape of its parameter and is zero for a weight that was never stepped. That is what
:class:`gossamer.Subspace` writes where it activates an entry, so the entry starts afresh.
"""

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from gossamer.types import Schedule, VariationalOptimizer

Each = float | list[Tensor]
"""A value for each of a list of parameters: one number for all, or one tensor each, in their shapes."""

NO_SETTINGS = {"self", "params", "generator", "__class__"}

Limits = dict[str, tuple[float, bool, float]]
# Smallest value, whether it is itself allowed, and the upper bound, which is excluded.
LIMITS: Limits = {
    "lr": (0, True, math.inf),
    "temperature": (0, True, math.inf),
    "momentum": (0, True, 1),
    "gradient_weight": (0, False, math.inf),
    "weight_decay": (0, True, math.inf),
    "scale_lr": (0, True, math.inf),
    "global_scale": (0, False, math.inf),
    "n_data": (0, False, math.inf),
}


class Sampler(Optimizer, ABC):
    """A ``torch.optim.Optimizer`` with noise; subclasses write :meth:`advance`.

    Each of its numbers can be a function of the step (counted from 0, per group); the group then holds the value of
    the last step. ``optimizer.state[p]["extra_decay"]``, a tensor in the shape of ``p``, adds a weight decay per entry.
    """

    limits: ClassVar[Limits] = LIMITS
    takes_extra_decay: ClassVar[bool] = True

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], generator: torch.Generator | None) -> None:
        self.noise = Noise(generator)
        self._schedules: list[dict[str, Schedule]] = []  # not in the groups: a function has no place in a checkpoint
        self._default_schedules = {name: value for name, value in defaults.items() if callable(value)}
        first = {name: schedule(0) for name, schedule in self._default_schedules.items()}
        super().__init__(params, {**defaults, **first, "step": 0})

    @abstractmethod
    def advance(self, group: dict[str, Any], params: list[Tensor], grads: list[Tensor]) -> None:
        """One step of a group's parameters that have a gradient."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, which may have its own numbers or functions of the step."""
        given = dict(param_group)
        schedules = {name: value for name, value in self._default_schedules.items() if name not in given}
        schedules |= {name: value for name, value in given.items() if name in self.limits and callable(value)}
        super().add_param_group(given | {name: schedule(0) for name, schedule in schedules.items()})
        try:
            self._complete(self.param_groups[-1], schedules)
        except ValueError:
            self.param_groups.pop()
            raise
        self._schedules.append(schedules)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else self._evaluate(closure)
        self._follow_schedules()
        for group in self.param_groups:
            params = [parameter for parameter in group["params"] if parameter.grad is not None]
            grads = [self._checked_gradient(parameter) for parameter in params]
            if params:
                self.advance(group, params, grads)
            group["step"] += 1
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.noise.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.noise.load_state_dict(state_dict.get("generator", {}))

    def __getstate__(self) -> dict[str, Any]:
        own = ("noise", "_schedules", "_default_schedules")
        return {**super().__getstate__(), **{name: self.__dict__[name] for name in own}}

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        """Check a new group, and fill in values that follow from others."""
        check_settings(group, self.limits)
        if any(parameter.is_complex() for parameter in group["params"]):
            raise ValueError(f"{type(self).__name__} takes real parameters; give torch.view_as_real of complex ones")

    def _evaluate(self, closure: Callable[[], Any]) -> Any:
        with torch.enable_grad():
            return closure()

    def _follow_schedules(self) -> None:
        for group, schedules in zip(self.param_groups, self._schedules, strict=True):
            if schedules:
                group.update({name: schedule(group["step"]) for name, schedule in schedules.items()})
                check_settings(group, self.limits)

    def _checked_gradient(self, parameter: Tensor) -> Tensor:
        grad = parameter.grad
        assert grad is not None
        if grad.layout != torch.strided:
            raise RuntimeError(
                f"{type(self).__name__} takes dense gradients, got one of layout {grad.layout}: build the embedding "
                "with sparse=False. gossamer.sparsify makes weights sparse whose gradients are dense vectors"
            )
        return grad

    def _buffers(
        self, params: list[Tensor], name: str, start: Callable[[Tensor], Tensor] = torch.zeros_like
    ) -> list[Tensor]:
        """The state tensor ``name`` of each parameter, created on first use."""
        for parameter in params:
            if name not in self.state[parameter]:
                self.state[parameter][name] = start(parameter)
        return [self.state[parameter][name] for parameter in params]

    def _decay(self, group: dict[str, Any], params: list[Tensor]) -> Each:
        """The weight decay d of each parameter: that of its group and its own extra decay."""
        common: float = group["weight_decay"]
        extra = [self.state[parameter].get("extra_decay") for parameter in params]
        if all(own is None for own in extra):
            return common
        pairs = zip(params, extra, strict=True)
        return [torch.full_like(parameter, common) if own is None else own + common for parameter, own in pairs]


class DrawingOptimizer(Sampler):
    """``with optimizer.sampled():`` draws weights for a pass from Gaussians around the parameters, and restores these.

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


class Noise:
    """Random numbers, standard normal ones above all, from a generator or from torch's global one.

    A generator serves tensors on every device: each other device gets its own generator, seeded from the given one.
    Ranks whose generators are in the same state draw the same numbers.
    """

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        self._elsewhere: dict[str, torch.Generator] = {}

    def like(self, tensor: Tensor) -> Tensor:
        """Independent N(0, 1) in the shape, precision and device of ``tensor``."""
        noise = torch.empty_like(tensor, memory_format=torch.preserve_format)
        return noise.normal_(generator=self._generator_on(tensor.device))

    def uniform(self) -> float:
        """A number between 0 and 1."""
        device = "cpu" if self.generator is None else self.generator.device
        return float(torch.rand((), generator=self.generator, device=device))

    def state_dict(self) -> dict[str, Tensor]:
        """States of the generators by device; empty without a generator."""
        if self.generator is None:
            return {}
        own = {device: generator.get_state() for device, generator in self._elsewhere.items()}
        return {"given": self.generator.get_state(), **own}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Continue from ``state_dict``."""
        if not state:
            return
        if self.generator is None:
            raise ValueError(
                "this state was saved with a generator, and this optimizer has none: build it with generator="
            )
        self.generator.set_state(state["given"].cpu())
        self._elsewhere.clear()
        for name, saved in state.items():
            # The state of a GPU may be read on a machine without one, where nothing will be drawn on it.
            if name != "given" and (name == "cpu" or torch.cuda.is_available()):
                self._elsewhere[name] = torch.Generator(name)
                self._elsewhere[name].set_state(saved.cpu())

    def _generator_on(self, device: torch.device) -> torch.Generator | None:
        if self.generator is None or self.generator.device == device:
            return self.generator
        name = str(device)
        if name not in self._elsewhere:
            seed = torch.randint(2**62, (), generator=self.generator, device=self.generator.device)
            self._elsewhere[name] = torch.Generator(device).manual_seed(int(seed))
        return self._elsewhere[name]


def settings(arguments: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an optimizer's ``__init__``, its ``locals()``, that its groups hold as settings."""
    return {name: value for name, value in arguments.items() if name not in NO_SETTINGS}


def pulls(params: list[Tensor], grads: list[Tensor], decay: Each) -> tuple[Tensor, ...]:
    """The gradients of the loss with its weight decay, g + d w."""
    return torch._foreach_add(torch._foreach_mul(params, decay), grads)


def times(number: float, values: Each) -> Each:
    """The product of a number with a value for each parameter."""
    return number * values if isinstance(values, float) else list(torch._foreach_mul(values, number))


def scale_(tensors: list[Tensor], factor: float) -> None:
    """Multiply in place: torch's own in-place product of lists rounds the factor to the precision of the tensors."""
    torch._foreach_copy_(tensors, torch._foreach_mul(tensors, factor))


def check_settings(group: dict[str, Any], limits: Limits) -> None:
    """Reject numbers out of range, by name."""
    for name, (low, is_low_allowed, high) in limits.items():
        value: Any = group.get(name)
        if name not in group or (name == "global_scale" and value is None):
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not (is_number and (low <= value if is_low_allowed else low < value) and value < high):
            range_ = f"{'[' if is_low_allowed else '('}{low:g}, {high:g})"
            raise ValueError(
                f"{name} must be a number in {range_}, or a function of the step that gives one; got {value!r}"
            )
    if group.get("mode", "default") not in ("default", "reference"):
        raise ValueError(f"mode must be 'default' or 'reference'; got {group['mode']!r}")
