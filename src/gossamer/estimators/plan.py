"""What an estimator trains and how: its parameters checked, options suited to tables, and the training itself.

Parameters are checked when an estimator is fitted, since scikit-learn sets them without asking.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from lightning_fabric import Fabric
from torch import Tensor

from gossamer import methods
from gossamer.estimators.draws import Architecture, Draws
from gossamer.names import unknown
from gossamer.progress import Progress
from gossamer.runs.settings import check_type, options_of
from gossamer.train import Batches, Training
from gossamer.types import Method, Split, Task

# These were chosen by held-out log density and by the variables found, on scikit-learn's small data sets and on
# simulated tables. They have few rows: with the KL weight of 0.02 that works best on digits, a network of this size
# memorises the noise; and in a wide table a tenth of the weights is more than the rows can inform. With standard
# deviations from curvature the held-out log density was worse on seven of nine tables, and sun3 lost its variables.
KL_WEIGHT = 1.0
MAX_DENSITY = 0.1
MIN_ACTIVE = 500
# The loss of a regression has the curvature 1/noise², which grows while the noise is learnt: a table that is predicted
# well is steeper than any image. At the rates that suit classes, methods without a step size per weight diverge there,
# often without reaching infinity. These rates were chosen by held-out log density on three tables: two noisy ones and
# one whose noise is a thirtieth of the target. Colder samplers were less stable, and overconfident.
# A cold start of em_mcmc was worse on a fourth (diabetes, three folds and seeds: mean R² 0.41; with noise always 0.45).
FOR_NUMBERS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.003},
    "rigl": {"lr": 0.003},
    "cv_adam": {"lr": 0.03},
    "cv_sghmc": {"lr": 0.003, "temperature": 1.0},
    "em_mcmc": {"lr": 0.003, "temperature": 1.0, "cold": 0.0},
}
OF_CURVATURE = {"temperature", "optimizer", "average"}  # options that mean nothing with the KL in the loss
WITH_RATES = {"optimizer", "preset", "mode"}  # options that bring a rate of their own

N_LOOKS = 50  # at the held-out rows, over a whole training
STREAM_FLOOR = 0.1  # of the largest rate: a schedule that ends at zero would leave a stream nothing to learn with

Look = Callable[[Draws], float]
"""The loss of draws on held-out rows."""


@dataclass(frozen=True)
class TrainingPlan:
    """What to train, how long and where: what stays the same from one call of ``partial_fit`` to the next."""

    method: str
    options: dict[str, Any]
    architecture: Architecture
    steps: int
    batch_size: int
    n_draws: int
    device: str
    seed: int
    verbose: int = 0


@dataclass
class Fitted:
    """The outcome of a training: draws as of step ``n_steps``, the state to continue from, and the losses."""

    draws: Draws
    n_steps: int
    state: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    looks: list[tuple[int, float]] = field(default_factory=list)


def train(plan: TrainingPlan, task: Task, look: Look | None = None, patience: int = 10) -> Fitted:
    """Train from the beginning.

    With a ``look`` at held-out rows the draws are those with the lowest loss there, and training ends after
    ``patience`` looks in a row without a lower one.
    """
    with _own_randomness(plan.device):
        training = _start(plan, task, methods.build(plan.method, task, plan.steps, **plan.options))
        return _run(plan, training, plan.steps, look, patience)


def train_more(plan: TrainingPlan, task: Task, state: dict[str, Any] | None) -> Fitted:
    """One pass over the rows of ``task``, from ``state`` if there is one.

    The schedules run over the steps of the plan, as in :func:`train`; after them the learning rate stays at a tenth of
    its largest value.
    """
    method = methods.build(plan.method, task, plan.steps, **plan.options)
    with _own_randomness(plan.device):
        training = _start(plan, task, method)
        lr = training.method.lr
        floor = STREAM_FLOOR * max(map(lr, range(plan.steps)))
        training.method = replace(training.method, lr=lambda step: max(floor, lr(step)))
        if state is not None:
            training.load_state_dict(state)
        first = training.step
        training.batches = _Pass(training.batches, first)
        return _run(plan, training, first + training.batches.per_epoch)


def method_options(
    method: str,
    density: float | None,
    options: Mapping[str, Any] | None,
    n_weights: int,
    n_data: float,
    *,
    of_numbers: bool = False,
) -> dict[str, Any]:
    """Options of a method: those given, then those for tables; an unknown one is an error that names the nearest."""
    known = options_of(method)
    # A search over a numpy grid passes numpy's numbers.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in (options or {}).items()}
    if density is not None:
        if "density" not in known:
            raise ValueError(f"method {method!r} takes no density: leave density=None. Its options: {', '.join(known)}")
        if "density" in given:
            raise ValueError("density is given twice, as a parameter and among the options: give it once")
        given = {"density": density} | given
    for name, value in given.items():
        if name not in known:
            raise ValueError(unknown(f"option of {method}", name, known))
        check_type(f"option {name} of {method}", value, known[name][0])
    for_tables: dict[str, Any] = {"density": default_density(n_weights, n_data)}
    if "kl_weight" in known:
        by_curvature = given.get("std", "curvature" if OF_CURVATURE & given.keys() else "gradient") == "curvature"
        for_tables |= {"temperature": KL_WEIGHT} if by_curvature else {"std": "gradient", "kl_weight": KL_WEIGHT}
    if of_numbers and not WITH_RATES & given.keys():
        for_tables |= FOR_NUMBERS.get(method, {})
    return {name: value for name, value in for_tables.items() if name in known and name not in given} | given


def default_density(n_weights: int, n_data: float) -> float:
    """A tenth, or as many active weights as a quarter of the rows, but at least 500."""
    return min(MAX_DENSITY, max(MIN_ACTIVE, n_data / 4) / n_weights)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Reject parameters of an estimator that cannot work."""
    hidden, device = parameters["hidden"], parameters["device"]
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"hidden must be the widths of the hidden layers, as (64,) or (); got {hidden!r}")
    counts = {name: parameters[name] for name in ("max_steps", "batch_size", "n_draws", "patience")}
    for name, value in (counts | {f"hidden[{i}]": width for i, width in enumerate(hidden)}).items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        _require(whole and value >= 1, name, "a whole number, at least 1", value)
    share, threshold = parameters["validation_fraction"], parameters["threshold"]
    inside = isinstance(share, Real) and 0 < float(share) < 1
    _require(inside, "validation_fraction", "a number between 0 and 1", share)
    inside = isinstance(threshold, Real) and 0 <= float(threshold) <= 1
    _require(inside, "threshold", "a number from 0 to 1", threshold)
    noise = parameters.get("noise", "constant")  # of a regressor
    _require(noise in ("constant", "varying"), "noise", "'constant' or 'varying'", noise)
    _require(device in ("auto", "cpu", "cuda"), "device", "'auto', 'cpu' or 'cuda'", device)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch sees no CUDA device: use device='cpu'")


def _require(holds: bool, name: str, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {what}; got {value!r}")


def _start(plan: TrainingPlan, task: Task, method: Method) -> Training:
    torch.manual_seed(plan.seed)
    fabric = Fabric(accelerator=plan.device, devices=1)
    network = plan.architecture.build()
    return Training(method, network, task, plan.steps, fabric, batch_size=plan.batch_size, seed=plan.seed)


def _run(plan: TrainingPlan, training: Training, last: int, look: Look | None = None, patience: int = 1) -> Fitted:
    losses: list[Tensor] = []
    looks: list[tuple[int, float]] = []
    best: Fitted | None = None
    with Progress(plan.method, last, start=training.step, quiet=not plan.verbose) as progress:
        for values in training.run(last):
            step = training.step
            losses.append(values["loss"])
            if look is not None and (step % max(1, plan.steps // N_LOOKS) == 0 or step == last):
                draws = Draws.of(training.posterior(), plan.n_draws, plan.architecture)
                looks.append((step, look(draws)))
                if best is None or looks[-1][1] < min(loss for _, loss in looks[:-1]):
                    best = Fitted(draws, step)
            progress.update(step, partial(_words, step, last, losses[-1], looks))
            if best is not None and sum(at > best.n_steps for at, _ in looks) >= patience:
                break
    fitted = best or Fitted(Draws.of(training.posterior(), plan.n_draws, plan.architecture), training.step)
    fitted.state, fitted.losses, fitted.looks = _on_cpu(training.state_dict()), torch.stack(losses).tolist(), looks
    if not all(value.isfinite().all() for value in fitted.draws.values.values()):
        first = int((~torch.tensor(fitted.losses).isfinite()).int().argmax()) + 1
        raise ValueError(
            f"the training by {plan.method!r} diverged, first at step {first} of {len(fitted.losses)}: give a smaller "
            "learning rate, as in options={'lr': 0.001}"
        )
    return fitted


def _words(step: int, last: int, loss: Tensor, looks: list[tuple[int, float]]) -> str:
    held_out = f"  held out {looks[-1][1]:.3f}" if looks else ""
    return f"step {step}/{last}  loss {float(loss):.3f}{held_out}"


def _on_cpu(state: Any) -> Any:
    """Tensors moved to the CPU: an estimator may be read where there is no other device."""
    if isinstance(state, Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: _on_cpu(value) for key, value in state.items()}
    if isinstance(state, list | tuple):
        return type(state)(map(_on_cpu, state))
    return state


class _Pass(Batches):
    """The batches of one pass that starts at step ``first`` of a training."""

    def __init__(self, batches: Batches, first: int) -> None:
        self.__dict__.update(batches.__dict__)
        self.first = first

    def __getitem__(self, step: int) -> Split:
        return super().__getitem__(step - self.first)


@contextlib.contextmanager
def _own_randomness(device: str) -> Iterator[None]:
    """Leave the random state of the caller as it was."""
    uses_gpu = device != "cpu" and torch.cuda.is_available()
    with torch.random.fork_rng([torch.cuda.current_device()] if uses_gpu else []):
        yield
