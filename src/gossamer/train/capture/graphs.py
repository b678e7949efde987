"""CUDA graphs: a function of static tensors, and an optimizer whose step can be one."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

N_WARMUPS = 3  # compilation, tuning and first allocations must happen before the capture
FLAGS = ("lr", "fused", "foreach", "capturable")


class Graph:
    """``function()`` captured once on the current device; :meth:`replay` runs it again on the same memory.

    The function reads and writes tensors that keep their place in memory, and every replay draws new random numbers.
    ``state`` are the tensors that it changes; they are restored after the warm-up runs.
    """

    def __init__(self, function: Callable[[], None], state: Iterable[Tensor]) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream), undone(state):  # in this order: restoring waits for the warm-up runs
            for _ in range(N_WARMUPS):
                function()
        torch.cuda.current_stream().wait_stream(stream)
        self._graph = torch.cuda.CUDAGraph()
        noise = torch.cuda.get_rng_state()
        try:
            # Other threads, such as the one by which NCCL watches its messages, may use the device meanwhile.
            with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
                function()
        except Exception:
            _end_capture_of_noise(noise)
            raise

    def replay(self) -> None:
        """Run the function once more."""
        self._graph.replay()


def _end_capture_of_noise(noise: Tensor) -> None:
    """After a capture that failed the generator would refuse to draw outside a graph: give it a state of its own."""
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(torch.Generator(generator.device).graphsafe_get_state())
    torch.cuda.set_rng_state(noise)


@contextmanager
def undone(tensors: Iterable[Tensor]) -> Iterator[None]:
    """A block that leaves ``tensors`` and the random states as they were before it."""
    pairs = [(tensor, tensor.detach().clone()) for tensor in tensors]
    cuda = torch.cuda.get_rng_state() if torch.cuda.is_available() else None
    cpu = torch.get_rng_state()
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, copy in pairs:
                tensor.detach().copy_(copy)
        torch.set_rng_state(cpu)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda)


class OnDevice:
    """Prepares an optimizer for capture: rates are tensors on the device, state exists before the first step.

    :meth:`release` restores its options.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer = optimizer
        self.options = [{flag: group[flag] for flag in FLAGS if flag in group} for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            device = group["params"][0].device
            group["lr"] = torch.tensor(float(group["lr"]), device=device)
            group["fused"], group["foreach"] = True, False
            if "capturable" in group:
                group["capturable"] = device.type == "cuda"
            for parameter in group["params"]:
                _start(optimizer, parameter, group)

    def set_rates(self, rates: Sequence[float]) -> None:
        """Learning rates of the parameter groups for the coming steps."""
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"].fill_(rate)

    def state(self) -> list[Tensor]:
        """All tensors that a step changes, except the parameters."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def release(self) -> None:
        """Restore the options."""
        for group, options in zip(self.optimizer.param_groups, self.options, strict=True):
            group.update(options)


def _start(optimizer: Optimizer, parameter: Tensor, group: dict[str, Any]) -> None:
    """Create the state with which the first step does what it would do without one."""
    state = optimizer.state[parameter]
    names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * bool(group.get("amsgrad"))
    if isinstance(optimizer, SGD):
        names = ["momentum_buffer"] if group["momentum"] else []
        if group["momentum"] and group["dampening"]:  # the first gradient is not damped
            raise ValueError("SGD with dampening cannot be captured")
    else:  # a checkpoint loads it to the CPU, where a fused kernel would not find it
        state["step"] = torch.as_tensor(state.get("step", 0.0), dtype=torch.float32).to(parameter.device)
    for name in names:
        if state.get(name) is None:
            state[name] = torch.zeros_like(parameter)
