"""How much of a training is captured: whole steps, their passes through the network alone, or nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from gossamer.distributed import is_bf16, on_any_rank
from gossamer.layers import CurvatureWeight, SparseLayer, sparse_weights
from gossamer.train.capture.passes import CapturedPasses
from gossamer.train.capture.steps import NO_KL, CapturedSteps, CaptureError
from gossamer.train.steps import Steps
from gossamer.types import Penalty, Rule

if TYPE_CHECKING:
    from gossamer.train.loop import Training

NO_GPU = "the network is not on a GPU"


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
