"""Training steps on a GPU: forward, backward and optimizer as CUDA graphs, with dense working weights.

Between two updates of the subspace a step is two replays and a few small copies. Learning rates and the weight of the
KL are numbers on the device; an update of the subspace rewrites everything in place, so nothing is captured again.
Batches of another size and noise-free passes get graphs of their own when they first occur.

Several ranks average what a pass leaves in one message between the graphs. It is the same message whether a rank has
graphs or not, so one that cannot capture something goes on without, and nobody waits for it.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed import Message, world_size
from gossamer.layers import sparse_weights
from gossamer.train.capture.flat_weights import FlatWeights, copy_gradients
from gossamer.train.capture.graphs import Graph, OnDevice, undone
from gossamer.train.steps import Evaluate, Steps
from gossamer.types import Penalty, Task

NO_KL = "its penalty is not the KL of Gaussian weights"
FAILURES = (RuntimeError, ValueError, torch.cuda.CudaError)


class CaptureError(RuntimeError):
    """These steps cannot be captured; the same training runs eagerly instead."""


class CapturedSteps(Steps):
    """The steps of a training as graphs.

    Args:
        model: The converted network (or a plain one), on its GPU.
        optimizer: SGD, Adam or AdamW over its parameters.
        task: Its transform and likelihood are used.
        penalty: A :class:`gossamer.layers.WeightedKL`, or :data:`gossamer.types.no_penalty`.
        dtype: Precision of activations and working weights.
        captures: ``False`` runs the same functions eagerly: on a CPU, or to debug what a graph hides.
        compiles: Whether the pass through the network is compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        task: Task,
        penalty: Penalty,
        dtype: torch.dtype,
        *,
        captures: bool = True,
        compiles: bool = True,
    ) -> None:
        super().__init__(model, optimizer)
        self.task, self.penalty, self.dtype, self.captures = task, penalty, dtype, captures
        self.device = next(model.parameters()).device
        with capturing():
            self.working = FlatWeights(model, dtype) if sparse_weights(model) else None
            self.on_device = OnDevice(optimizer)
        weights = [] if self.working is None else self.working.weights
        flat = {id(parameter) for weight in weights for parameter in weight.parameters()}
        self.leaves = [] if self.working is None else self.working.leaves
        self.rest = [p for p in model.parameters() if id(p) not in flat and p.requires_grad]
        self.rest_grads = [torch.zeros_like(parameter) for parameter in self.rest]
        self.scale = torch.zeros((), device=self.device)
        self.values = torch.zeros(2, device=self.device)  # nll, penalty
        self._share = torch.ones((), device=self.device)  # of several ranks: what the loss is multiplied by
        gradients = [] if self.working is None else self.working.gradients
        self.message = Message([*gradients, *self.rest_grads, self.values]) if world_size() > 1 else None
        self.compiles = compiles and importlib.util.find_spec("triton") is not None
        self._compile()
        self._full_batch = 0
        self._gradients: dict[tuple[torch.Size, bool], _Pass] = {}
        self._graphs: dict[str, Graph] = {}

    def _compile(self) -> None:
        compiled: Any = partial(torch.compile, dynamic=False) if self.compiles else lambda function: function
        self._loss, self._eager_loss = compiled(self._loss_of), self._loss_of
        if self.working is not None:
            self._differentiate, self._write = compiled(self.working.differentiate), compiled(self.working.write)
            self._learn = compiled(self.working.learn)

    def set_rates(self, rates: Sequence[float]) -> None:
        self.on_device.set_rates(rates)

    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Evaluate]:
        """As for all steps.

        Raises:
            CaptureError: If a new graph cannot be captured, and no other rank takes part; the network is then as it was
                before.
        """
        message, working = self.message, self.working
        with capturing():
            scale = self.penalty.scale(number)
            if scale is None:
                raise ValueError(NO_KL)
            self.scale.fill_(scale)
            if self.message is not None:
                self._share.fill_(self.weight)
            if working is not None:
                if scale and working.has_curvature:
                    raise ValueError("a KL beside gossamer.Curvature, which has the prior in it, is not captured")
                working.set_rate(self._is_noisy())
            forward_backward = self._pass_for(x, y)
        forward_backward.run(x, y)
        if message is not None:

            def take_average() -> None:
                message.unpack()
                if working is not None and working.has_curvature:
                    self._learn()

            message.average()
            learnt = [] if working is None else working.learnt
            self._replay("average", take_average, lambda: [*message.tensors, *learnt])
        if working is not None:
            working.count_pass(self._is_noisy())
        nll, penalty = self.values.clone()
        return nll, penalty, _no_loss

    def apply(self) -> None:
        """The optimizer's step; the working weights follow."""
        dense = [] if self.working is None else self.working.dense
        self._replay("apply", self._step, lambda: [*self.model.parameters(), *self.on_device.state(), *dense])

    def refresh(self) -> None:
        if self.working is not None:
            self.working.refresh()

    def restore_options(self, groups: Sequence[dict[str, Any]]) -> None:
        for group, options in zip(groups, self.on_device.options, strict=True):
            group.update(options)

    def close(self) -> None:
        self._gradients.clear()
        self._graphs.clear()
        self.on_device.release()
        if self.working is not None:
            self.working.close()

    def _is_noisy(self) -> bool:
        return self.working is None or self.working.weights[0].is_noisy

    def _pass_for(self, x: Tensor, y: Tensor) -> _Pass:
        key = (x.shape, self._is_noisy())
        if key not in self._gradients:
            self._full_batch = max(self._full_batch, len(y))
            with self._or_without_graphs():
                self._gradients[key] = _Pass(self, x, y, compiles=len(y) == self._full_batch)
        if key not in self._gradients:
            self._gradients[key] = _Pass(self, x, y, compiles=False)
        return self._gradients[key]

    def _replay(self, name: str, function: Callable[[], None], state: Callable[[], Iterable[Tensor]]) -> None:
        """Run a part of the step, as a graph that is captured when it is first needed; ``state`` is what it changes."""
        if self.captures and name not in self._graphs:
            with self._or_without_graphs():
                self._graphs[name] = Graph(function, state())
        if self.captures:
            self._graphs[name].replay()
        else:
            function()

    @contextmanager
    def _or_without_graphs(self) -> Iterator[None]:
        """A block that captures. If it fails, one process raises; one of several ranks goes on without graphs."""
        try:
            yield
        except FAILURES as error:
            if self.message is None or not self.captures:
                raise
            go_on_without_graphs(error)
            self.captures = self.compiles = False
            self._gradients.clear()
            self._graphs.clear()
            self._compile()
            if self.working is not None:
                self.working.forget_noise()

    def _loss_of(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.task.transform(x)
        if x.dim() == 4:
            x = x.contiguous(memory_format=torch.channels_last)
        with torch.autocast(self.device.type, self.dtype, enabled=self.dtype != torch.float32):
            output = self.model(x)
        return self.task.likelihood.loss(output.float(), y)

    def _backward(self, x: Tensor, y: Tensor, loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        for tensor in [*self.leaves, *self.rest]:
            tensor.grad = None
        nll = loss(x, y) if self.message is None else self._share * loss(x, y)
        nll.backward()
        with torch.no_grad():
            copy_gradients(self.rest, self.rest_grads)
            self.values[0].copy_(nll.detach())
            if self.working is not None:
                self.working.collect()
                self.values[1].copy_(self._differentiate(self.scale, alone=self.message is None))
            if self.message is not None:
                self.message.pack()

    def _step(self) -> None:
        for parameter, grad in zip(self.rest, self.rest_grads, strict=True):
            parameter.grad = grad
        self.on_device.optimizer.step()
        if self.working is not None and not self.working.draws_weights:  # drawn ones are written before a pass
            self._write()


class _Pass:
    """Forward and backward pass for batches of one size."""

    def __init__(self, steps: CapturedSteps, x: Tensor, y: Tensor, compiles: bool) -> None:
        self.steps, self.x, self.y = steps, x.clone(), y.clone()
        loss = steps._loss if compiles else steps._eager_loss
        working, noise, noisy = steps.working, None, steps._is_noisy()
        if working is not None and steps.captures and not working.draws_weights:
            with undone(steps.model.buffers()):
                noise = working.prepare_noise(lambda: steps._eager_loss(self.x, self.y))

        def run() -> None:
            if noise is not None:
                noise.normal_()
            if working is not None and working.draws_weights:
                working.draw(noisy)
                steps._write()
            steps._backward(self.x, self.y, loss)

        self._run = run
        # Shapes never change: let cuDNN find the fastest.
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            self.graph = Graph(run, steps.model.buffers()) if steps.captures else None
        self.leaf_grads = [leaf.grad for leaf in steps.leaves]

    def run(self, x: Tensor, y: Tensor) -> None:
        self.x.copy_(x)
        self.y.copy_(y)
        if self.graph is None:
            self._run()
            return
        self.graph.replay()
        for leaf, grad in zip(self.steps.leaves, self.leaf_grads, strict=True):
            leaf.grad = grad  # each graph has its own; the subspace reads them from the leaves


@contextmanager
def capturing() -> Iterator[None]:
    """Turns errors inside into a :class:`CaptureError` with the first line of their message."""
    try:
        yield
    except FAILURES as error:
        raise CaptureError(_first_line(error)) from error


def go_on_without_graphs(error: Exception) -> None:
    """Say why one of several ranks captures nothing: it must go on sending the messages that the others wait for."""
    logging.getLogger("gossamer").warning(f"this rank takes its steps without CUDA graphs: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]


def _no_loss() -> Tensor:
    raise ValueError("a rule that evaluates the loss again cannot act on captured steps")
