"""How much of a training is captured: whole steps, their passes through the network alone, or nothing.

Passes are captured alone where :class:`gossamer.train.capture.CapturedSteps` cannot take whole steps: weights without a
working copy, penalties other than the KL of Gaussian weights, optimizers other than SGD and Adam, rules that change
shapes. A graph knows its tensors by their place in memory, so it is captured again when a rule has moved one.

Several ranks average the gradients in one message after a pass, whether it was a graph or not.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from gossamer.distributed import Message, is_bf16, on_any_rank, world_size
from gossamer.layers import CurvatureWeight, SparseLayer, sparse_weights
from gossamer.train.capture.graphs import Graph
from gossamer.train.capture.steps import NO_KL, CapturedSteps, CaptureError, capturing, go_on_without_graphs
from gossamer.train.steps import EagerSteps, Evaluate, Steps
from gossamer.types import Penalty, Rule

if TYPE_CHECKING:
    from gossamer.train.loop import Training

NO_GPU = "the network is not on a GPU"
FIRST, AS_OFTEN = 20, 5  # after so many graphs, one that has served fewer steps than this on average is not worth it


def captured_steps(training: Training) -> Steps:
    """Captured steps, on all ranks or on none: those of several send other messages than plain steps do.

    Raises:
        CaptureError: If they cannot be captured.
    """
    steps, failure = None, "another rank cannot capture its steps"
    try:
        steps = _on_this_rank(training)
    except CaptureError as error:
        failure = str(error)
    if any(on_any_rank([steps is None], training.fabric.device)) or steps is None:
        if steps is not None:
            steps.close()
        raise CaptureError(failure)
    return steps


def _on_this_rank(training: Training) -> Steps:
    model, optimizer, penalty, fabric = training.model, training.inner_optimizer, training.penalty, training.fabric
    reason = why_not(model, optimizer, penalty, training.rules)
    if reason is not None and fabric.device.type != "cuda":
        raise CaptureError(reason)
    if reason is not None:
        logging.getLogger("gossamer").warning(f"only the passes of training steps are CUDA graphs: {reason}")
        return CapturedPasses(training.eager)
    return CapturedSteps(model, optimizer, training.task, penalty, torch.bfloat16 if is_bf16(fabric) else torch.float32)


def why_not(model: nn.Module, optimizer: Optimizer, penalty: Penalty, rules: Sequence[Rule]) -> str | None:
    """Why this training cannot be captured; ``None`` if it can. Training that cannot be captured runs eagerly.

    The passes of such a training may still be captured, by :class:`gossamer.train.capture.CapturedPasses`. A missing
    GPU is reported last, so that on a CPU the other reasons are still visible.
    """
    owned = {layer.weight for layer in model.modules() if isinstance(layer, SparseLayer)}
    if set(sparse_weights(model).values()) - owned:
        return "recurrent layers are not captured"
    if any(isinstance(weight, CurvatureWeight) and weight.learner is None for weight in owned):
        return "its standard deviations do not learn, gossamer.Curvature is missing"
    if not penalty.is_gaussian:
        return NO_KL
    for rule in rules:
        if not rule.capturable:
            return f"{type(rule).__name__} as it is set changes shapes or evaluates the loss again"
    if type(optimizer) not in (SGD, Adam, AdamW):
        return f"{type(optimizer).__name__} steps are not captured, those of SGD, Adam and AdamW are"
    parameter = next(model.parameters(), None)
    return None if parameter is not None and parameter.is_cuda else NO_GPU


class CapturedPasses(Steps):
    """The steps of a training, their passes through the network as graphs; rules and optimizer stay eager.

    Args:
        plain: The same steps without graphs.
        captures: ``False`` runs the same functions eagerly, to debug what a graph hides.
    """

    def __init__(self, plain: EagerSteps, *, captures: bool = True) -> None:
        super().__init__(plain.model, plain.optimizer)
        self.plain, self.captures, self.alone = plain, captures, world_size() == 1
        self.penalty = plain.penalty
        self.scale = torch.zeros((), device=next(self.model.parameters()).device)
        self.share = torch.ones_like(self.scale)  # the weight of the batch, on the device
        # The wrapper of several ranks would send messages of its own.
        self.objective = plain.objective if self.alone else plain.again
        self.backward = plain.backward if self.alone else Tensor.backward
        self._passes: dict[tuple[Any, ...], _Pass] = {}
        self._places: list[tuple[Any, ...]] = []
        self._n_steps = self._n_captured = 0

    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Evaluate]:
        """As for all steps.

        Raises:
            CaptureError: If a new graph cannot be captured, and no other rank takes part; the network is then as it was
                before.
        """
        if any(weight.probe is not None for weight in sparse_weights(self.model).values()):
            self.plain.weight = self.weight
            return self.plain.gradients(x, y, number)  # a rule is to see dense gradients
        self._n_steps += 1
        self._follow()
        scale = self.penalty.scale(number)
        self.scale.fill_(0.0 if scale is None else scale)
        if not self.alone:
            self.share.fill_(self.weight)
        self.optimizer.zero_grad()
        with self.plain.drawn():
            values = self._pass_for(x, y).run(x, y)
            if scale is None:  # not a number times a function of the network
                penalty = self.penalty(self.model, number).to(values)
                self.backward(penalty)
                values[1] = penalty.detach()
            if not self.alone:
                self._average(values)
        nll, penalty = values.clone()
        return nll, penalty, lambda: self.share * self.plain.again(x, y)() + self.penalty(self.model, number)

    def _average(self, values: Tensor) -> None:
        grads = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        message = Message([*grads, values])
        message.average()
        message.unpack()

    def close(self) -> None:
        self._passes.clear()

    def _follow(self) -> None:
        """Forget the graphs if a tensor has another place or shape."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        places = [(tensor.data_ptr(), tensor.shape, tensor.requires_grad) for tensor in tensors]
        if places != self._places:
            self._passes.clear()
            self._places = places

    def _pass_for(self, x: Tensor, y: Tensor) -> _Pass:
        noisy = tuple(weight.is_noisy for weight in sparse_weights(self.model).values())
        key = (len(y), noisy, self.model.training)
        if key not in self._passes:
            self._n_captured += 1
            try:
                with capturing():
                    is_often = self._n_captured > FIRST and self._n_steps < AS_OFTEN * self._n_captured
                    if is_often and (self.alone or self.captures):
                        raise CaptureError("the rules of this method move its weights in almost every step")
                    self._passes[key] = _Pass(self, x, y)
            except CaptureError as error:
                if self.alone or not self.captures:
                    raise
                go_on_without_graphs(error)
                self.captures, self._passes = False, {key: _Pass(self, x, y)}
        return self._passes[key]


class _Pass:
    """Forward and backward pass for batches of one size."""

    def __init__(self, steps: CapturedPasses, x: Tensor, y: Tensor) -> None:
        self.parameters = [parameter for parameter in steps.model.parameters() if parameter.requires_grad]
        layout = torch.channels_last if x.dim() == 4 and steps.captures else torch.preserve_format
        self.x, self.y = x.clone(memory_format=layout), y.clone()
        self.learning = [w for w in sparse_weights(steps.model).values() if isinstance(w, CurvatureWeight)]
        with_penalty = steps.penalty.scale(1) is not None
        self.values = torch.zeros(2, device=steps.scale.device)

        def run() -> None:
            for parameter in self.parameters:
                parameter.grad = None
            for weight in self.learning:
                weight.estimates.clear()
            nll = steps.objective(self.x, self.y)()
            nll = nll if steps.alone else steps.share * nll
            penalty = steps.scale * steps.penalty.unscaled(steps.model) if with_penalty else torch.zeros_like(nll)
            steps.backward(nll + penalty)
            with torch.no_grad():
                self.values[0].copy_(nll)
                self.values[1].copy_(penalty)

        self._run = run
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):  # shapes never change
            self.graph = Graph(run, steps.model.buffers()) if steps.captures else None
        self.grads = [parameter.grad for parameter in self.parameters]
        self.estimates = [None if w.estimates.leaf is None else w.estimates.leaf.grad for w in self.learning]

    def run(self, x: Tensor, y: Tensor) -> Tensor:
        """The pass of a batch, into the gradients that the optimizer reads; returns nll and penalty."""
        self.x.copy_(x)
        self.y.copy_(y)
        if self.graph is None:
            self._run()
        else:
            self.graph.replay()
            for parameter, grad in zip(self.parameters, self.grads, strict=True):
                parameter.grad = grad  # zero_grad() has let go of them
            for weight, estimate in zip(self.learning, self.estimates, strict=True):
                weight.estimates.put(estimate, weight.mean)  # and so has whoever learns from it
        return self.values
