"""A training from its beginning to its end, and what is done with the network that is trained."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from gossamer.distributed import OneProcess
from gossamer.posterior import LEAST_HELD_OUT, Calibration, calibrate
from gossamer.posterior.constant import learnt_nothing
from gossamer.train.divergence import OnNan
from gossamer.train.loop import Training
from gossamer.train.members import Build
from gossamer.types import Likelihood, Method, Posterior, Task

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["calibrate_held_out", "fit", "objection_to"]

Record = Callable[[int, dict[str, Tensor]], None]

WIDTHS = (0.0, 0.1, 0.3, 1.0)  # of the posterior, as factors of its variances
N_DRAWS, MOST_HELD_OUT = 10, 1000  # of a calibration: its cost is some 30,000 examples, forward


def fit(
    method: Method,
    model: nn.Module,
    task: Task,
    steps: int,
    fabric: OneProcess | Fabric | None = None,
    record: Record | None = None,
    *,
    batch_size: int = 64,
    seed: int = 0,
    on_nan: OnNan = "stop",
    build: Build | None = None,
    calibrate: bool = True,
) -> Posterior:
    """Train ``model`` (a plain network, converted in place) by ``method`` and return its posterior.

    Args:
        method: From :func:`gossamer.methods.build`, or your own.
        model: A plain network.
        task: Data and likelihood.
        steps: How many optimizer steps. A method whose members do not share them takes them for each.
        fabric: Device and precision, a :class:`gossamer.distributed.OneProcess` or a
            ``lightning_fabric.Fabric``; ``None`` is the CPU in float32.
        record: Called after each step with its number and its ``loss``, ``nll`` and ``penalty`` as tensors.
        batch_size: Examples per step.
        seed: Seed of the order of the examples, the first active weights and all noise. torch's own random state stays
            as it is.
        on_nan: What to do where inputs, the loss or a gradient are not finite. ``"stop"`` raises: on the CPU before a
            step by such inputs or such a loss, on a GPU up to 50 steps later, because each look makes it wait.
            ``"skip"`` takes the step with the next batch, ``"rollback"`` goes back to the weights of up to 50 steps
            before and goes on with the batches that follow; both look before every step.
        build: Builds the plain network anew, with weights from torch's random state: the other members of an ensemble
            start from what it returns. Without it they start from the weights that ``reset_parameters`` of the layers
            draws, and it is an error if those have another law than the given ones.
        calibrate: Fit the width of the posterior, and for classes a temperature of its logits, on the held-out examples
            of the task, if there are at least 500 (:func:`calibrate_held_out`).

    Example:
        >>> from gossamer import methods
        >>> from gossamer.data import digits
        >>> from gossamer.models import mlp
        >>> task = digits.load()
        >>> posterior = fit(methods.build("ssvi", task, steps=20), mlp(64), task, steps=20)
        >>> len(list(posterior.draws(3)))
        3
    """
    options: dict[str, Any] = {"batch_size": batch_size, "seed": seed, "on_nan": on_nan, "build": build}
    training = Training(method, model, task, steps, fabric, **options)
    for values in training.run():
        if record is not None:
            record(training.step, values)
    if calibrate:
        calibrate_held_out(training)
    posterior = training.posterior()
    if warning := objection_to(training, posterior):
        logging.getLogger("gossamer").warning(warning)
    return posterior


def calibrate_held_out(training: Training, least: int = LEAST_HELD_OUT) -> Calibration | None:
    """Fit the width of the posterior and a temperature of its logits on held-out examples, if there are ``least``.

    The widths to choose from are zero, a tenth, a third and all of the variances; :meth:`Training.posterior` has
    what was found from then on. A mixture is calibrated as a whole.
    """
    x, y = training.task.val
    likelihood = training.task.likelihood
    if not training.method.calibrates or len(y) < least or not isinstance(likelihood, Likelihood):
        return None
    training.calibration = None
    posterior, logits = training.posterior(), likelihood.kind == "classification"
    if not logits and posterior.at_width(1.0) is posterior:
        return None
    rows = torch.linspace(0, len(y) - 1, min(len(y), MOST_HELD_OUT)).long()
    generator = torch.Generator().manual_seed(training.seed)
    held_out = training.task.transform(x[rows]), y[rows]
    options: dict[str, Any] = {"n_draws": N_DRAWS, "widths": WIDTHS, "logits": logits, "generator": generator}
    training.calibration = calibrate(posterior, *held_out, likelihood=likelihood, **options)
    return training.calibration


def objection_to(training: Training, posterior: Posterior) -> str | None:
    """A warning if the trained posterior is no better than a constant; otherwise ``None``.

    Where the losses of the last steps are below that of the best constant, nothing more is computed.
    """
    likelihood, y = training.task.likelihood, training.task.train[1]
    constant = likelihood.constant(y) if isinstance(likelihood, Likelihood) else None
    if constant is None or training.fabric.global_rank > 0 or not training.step:
        return None
    alike = constant.expand(len(y), -1, *y.shape[1:] if constant.dim() > 2 else ())
    if training.watch.mean() <= float(likelihood.loss(alike, y)):
        return None
    return learnt_nothing(posterior, training.task)
