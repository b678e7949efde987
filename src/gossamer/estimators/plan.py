"""What an estimator trains and how: its parameters checked, options suited to tables, and the training itself.

Parameters are checked when an estimator is fitted, since scikit-learn sets them without asking.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from gossamer import methods
from gossamer._text.names import unknown
from gossamer._text.terminal import Progress
from gossamer.distributed import OneProcess, OwnNoise
from gossamer.estimators.draws import Architecture, Draws
from gossamer.estimators.importance import folds
from gossamer.estimators.members import (
    Members,
    OfMembers,
    SumOverMembers,
    WithoutFolds,
    can_train_together,
    native_steps,
)
from gossamer.estimators.table import Rows, Scaling
from gossamer.evaluate import predict_inputs
from gossamer.files.schema import check_type
from gossamer.likelihoods import Gaussian, RuleOfSuccession
from gossamer.posterior import Mixture, Snapshots
from gossamer.train import Training
from gossamer.train.divergence import DivergenceError, OnNan
from gossamer.train.members import fall_at_the_end
from gossamer.types import Likelihood, Method, Schedule, Task

Stage = Literal["select", "predict"]
"""What networks are trained for: to tell which columns matter, or to predict by those that do."""


LONG = 5000  # rows of a long table
MANY_STEPS = 10_000  # from which on a table has only its least epochs
LEAST_ACTIVE = 100  # weights: with fewer, ReLU units of one sign may be all that is left


@dataclass(frozen=True)
class Recipe:
    """Settings of one stage, where the user gives none."""

    kl_weight: float
    max_density: float
    min_active: int  # weights that may be active in a wide table, or so many for each row
    active_per_row: float
    min_steps: int
    epochs: float = 0.0  # at least
    more_epochs: float = 0.0  # so many, while their steps are fewer than ``MANY_STEPS``
    batch: int = 64  # rows per step
    long_batch: int = 64  # the same for a table of more than ``LONG`` rows
    rounds: int = 1  # at most so often all the steps, while the loss falls

    def density(self, n_weights: int, n_data: float) -> float:
        """Share of active weights: in a wide table as many as its rows can inform, in a tiny network not too few."""
        share = min(self.max_density, max(self.min_active, self.active_per_row * n_data) / n_weights)
        return min(1.0, max(share, LEAST_ACTIVE / n_weights))

    def batch_size(self, n_data: float) -> int:
        """Rows per step."""
        return self.long_batch if n_data > LONG else self.batch

    def steps(self, n_data: float, batch_size: int) -> int:
        """Optimizer steps: the minimum, or the epochs that a long table needs."""
        epoch = n_data / batch_size
        return round(max(self.min_steps, self.epochs * epoch, min(MANY_STEPS, self.more_epochs * epoch)))


# These were chosen by held-out log density and by the variables found, on scikit-learn's small data sets and on
# simulated tables. They have few rows: with the KL weight of 0.02 that works best on digits, a network of this size
# memorises the noise; and in a wide table a tenth of the weights is more than the rows can inform. With standard
# deviations from curvature the held-out log density was worse on seven of nine tables, and sun3 lost its variables.
SELECT = Recipe(kl_weight=1.0, max_density=0.1, min_active=500, active_per_row=0.25, min_steps=500)
# What predicts numbers was compared on held-out rows of the UCI sets and diabetes, and on noisy simulations (Friedman
# with noise 5, a linear one of R² 0.2), two to eight splits each. Standard deviations from curvature at T = 0.5 and 1
# had a worse log density on both simulations. Half the steps in batches of 256 were worse than 2,000 of 64 on yacht,
# boston and the simulations. Protein, with 45,000 rows, needed sixty epochs rather than twenty, and those rather than
# three; power and kin8nm gained by twice their steps, boston lost. Where there is little noise, what is learnt of it
# shrinks for long: four rounds had a better log density and coverage than one on yacht and energy. Rounds at half the
# rate of the one before were shorter and as good as at the full rate, and better on naval.
PREDICT_NUMBERS = Recipe(
    kl_weight=0.5,
    max_density=0.3,
    min_active=1500,
    active_per_row=0.75,
    min_steps=2000,
    epochs=20,
    more_epochs=100,
    long_batch=256,
    rounds=4,
)
# With one rate for all weights (``Method.one_rate``), the noise of small batches heats what is sampled; and without a
# KL, to train until the noise is learnt is to learn the noise by heart.
PREDICT_BY_ONE_RATE = replace(PREDICT_NUMBERS, batch=256, min_steps=1000, more_epochs=0, rounds=1)
PREDICT_CLASSES = replace(SELECT, min_steps=2000, epochs=10)
# Held-out log density was better by 0.1 nats with it on energy and concrete, and by 1 on naval.
REACH = 5.0  # noise stds from its mean at which a target pulls no harder, in training
# Noise that varies can be tiny where the network is wrong; a constant one shows a training that diverges.
VARYING = Gaussian(reach=REACH)
# Networks know the rows they were trained on: on concrete the errors of others are 1.7 times as large. But none is
# taken to be larger than the std of the target.
UNKNOWN = 2.0
OF_CURVATURE = {"temperature", "optimizer", "average", "prior"}  # options that mean nothing with the KL in the loss
WITH_THRESHOLD = {"hard_threshold", "preset"}  # options that say what is pruned

N_FOLDS = 3  # networks of stage 1, and of :func:`held_out_noise`
N_TEST_DRAWS, N_HELD_OUT_DRAWS = 5, 20  # of each
WITHIN_90 = 1.645  # stds of a normal distribution, on either side of its mean


@dataclass(frozen=True)
class TrainingPlan:
    """What to train, how long and where."""

    method: str
    options: dict[str, Any]
    architecture: Architecture
    steps: int
    batch_size: int
    n_draws: int
    device: str
    seed: int
    members: int = 1
    verbose: int = 0
    rounds: int = 1  # at most so often all the steps, while the loss falls
    on_nan: OnNan = "stop"
    lowers: bool = False  # whether the rate is not the user's, and is lowered to what the loss bears


@dataclass
class Fitted:
    """The outcome of a training: draws as of its end, the losses, and by how much these still fell."""

    draws: Draws
    losses: list[float]
    fall: float  # see :func:`fall_at_the_end`


def train(plan: TrainingPlan, task: Task) -> Fitted:
    """Train from the beginning.

    What still learns at the end gets another round: all schedules begin again, at half the rate and with the weights of
    the last one. A round that diverges does not count.
    """
    trainings = _start(plan, task)
    fitted = _run(plan, trainings)
    for number in range(1, plan.rounds):
        if not fitted.fall:
            break
        before, trainings = trainings, _start(plan, task)
        for training, last in zip(trainings, before, strict=True):
            training.method = replace(training.method, lr=_slower(training.method.lr, 2**number))
            training.model.load_state_dict(last.model.state_dict())
        try:
            more = _run(plan, trainings)
        except DivergenceError:
            break
        fitted = replace(more, losses=fitted.losses + more.losses)
    return fitted


def train_folds(plan: TrainingPlan, task: Task) -> list[Draws]:
    """Draws of each member, trained as by :func:`train`; its likelihood hides a fold from each."""
    trainings = _start(plan, task)
    draws = _run(plan, trainings).draws
    n = len(draws) // plan.members
    in_turn = len(trainings) == 1 < plan.members
    return [
        draws.take(slice(i, None, plan.members) if in_turn else slice(i * n, (i + 1) * n)) for i in range(plan.members)
    ]


def held_out_noise(plan: TrainingPlan, task: Task, weight: Tensor) -> list[float]:
    """The noise std of each target at which 90 % of rows that networks have not seen are in their 90 % intervals.

    Empty where networks do not know their rows by heart: those that do have learnt too little noise. ``weight`` says
    how often each row of ``task`` counts, ``(rows,)``; the first columns of its targets are numbers.
    """
    (x, y), n = task.train, plan.architecture.n_outputs
    may_know_all = plan.architecture.constant_noise and N_FOLDS <= len(y) < plan.architecture.n_weights
    if not may_know_all or not has_one_rate(plan.method, plan.options, VARYING):
        return []
    fold, square = torch.from_numpy(folds(y[:, 0].numpy(), N_FOLDS)), torch.ones(len(y), n)
    for number in range(N_FOLDS):
        known, alone = fold != number, replace(plan, members=1, seed=plan.seed + number)
        part = task._replace(train=(x[known], y[known]), total_weight=float(weight[known].sum()))
        trainings = _start(alone, part)
        try:
            deque(trainings[0].run(), maxlen=0)
        except DivergenceError as error:
            logging.getLogger("gossamer").warning(f"noise of held-out rows, fold {number} is left out: {error}")
            continue
        found = predict_inputs(_mixture(alone, trainings), task, x[~known], N_HELD_OUT_DRAWS, seed=plan.seed)
        square[~known] = ((y[~known, :n] - found.mean) / WITHIN_90).square() - found.epistemic_std.square()
    order = square.argsort(0)
    rank = (weight[order].cumsum(0) < 0.9 * weight.sum()).sum(0, keepdim=True)
    noise: list[float] = square.gather(0, order.gather(0, rank))[0].clamp_min(0).sqrt().tolist()
    return noise


def plan_of(
    model: Any, stage: Stage, rows: Rows, inputs: Scaling, n_outputs: int, rng: np.random.RandomState
) -> TrainingPlan:
    """How a stage of an estimator is trained on these rows."""
    n_data, constant_noise = float(rows.weight.sum()), model._has_constant_noise
    n_means = n_outputs // 2 if constant_noise else n_outputs
    architecture = Architecture(len(inputs.columns), widths(model.hidden), n_means, constant_noise)
    one_rate = has_one_rate(model.method, model.options, model._likelihood)
    recipe = recipe_of(stage, one_rate, model._likelihood.kind == "regression")
    batch_size = recipe.batch_size(n_data) if model.batch_size is None else int(model.batch_size)
    given = {"density": model.density, "lr": model.lr, "kl_weight": model.kl_weight}
    options = method_options(model.method, given, model.options, recipe, architecture.n_weights, n_data)
    rate = rate_for_numbers(model.method, options, model._likelihood)
    return TrainingPlan(
        model.method,
        options if rate is None else options | {"lr": rate},
        architecture,
        recipe.steps(n_data, batch_size) if model.max_steps is None else int(model.max_steps),
        # A network of stage 1 ignores a fold of each batch.
        round(batch_size * N_FOLDS / (N_FOLDS - 1)) if stage == "select" else batch_size,
        N_TEST_DRAWS * N_FOLDS if stage == "select" else int(model.n_draws),
        model.device,
        int(rng.randint(np.iinfo(np.int32).max)),
        N_FOLDS if stage == "select" else int(model.members),
        int(model.verbose),
        recipe.rounds if model.max_steps is None else 1,
        model.on_nan,
        lowers=rate is not None,
    )


def recipe_of(stage: Stage, one_rate: bool, of_numbers: bool) -> Recipe:
    """The settings of a stage."""
    if stage == "select":
        return SELECT
    if not of_numbers:
        return PREDICT_CLASSES
    return PREDICT_BY_ONE_RATE if one_rate else PREDICT_NUMBERS


def predictive(
    likelihood: Likelihood, n_rows: float, largest_errors: Sequence[float], noise: Sequence[float] = ()
) -> RuleOfSuccession:
    """What reads the outputs for standardised numbers, by the largest error of each among ``n_rows`` known rows."""
    if len(noise) and isinstance(likelihood, Gaussian):
        likelihood = replace(likelihood, least=tuple(noise))
    return RuleOfSuccession(likelihood, n_rows, tuple(min(1.0, UNKNOWN * error) for error in largest_errors))


def has_one_rate(method: str, options: Mapping[str, Any] | None, likelihood: Likelihood) -> bool:
    """Whether a method says that it has one rate for all weights, with the options given."""
    return _example(method, given_options(method, {}, options), likelihood).one_rate


def rate_for_numbers(method: str, options: Mapping[str, Any], likelihood: Likelihood) -> float | None:
    """The rate of a regression by one rate for all weights; ``None`` for methods that keep theirs or were given one."""
    example = _example(method, options, likelihood)
    is_free = example.one_rate and not example.lr_is_given and "lr" in methods.options_of(method)
    if likelihood.kind != "regression" or not is_free:
        return None
    return example.share_for_numbers * max(map(example.lr, range(MANY_STEPS)))


def _example(method: str, options: Mapping[str, Any], likelihood: Likelihood) -> Method:
    row = torch.zeros(1, 1), torch.zeros(1, 1)
    return methods.build(method, Task(row, row, row, likelihood, n_outputs=1), MANY_STEPS, **options)


def method_options(
    method: str,
    parameters: Mapping[str, Any],
    options: Mapping[str, Any] | None,
    recipe: Recipe,
    n_weights: int,
    n_data: float,
) -> dict[str, Any]:
    """Options of a method: those given, then those for tables."""
    known, given = methods.options_of(method), given_options(method, parameters, options)
    for_tables: dict[str, Any] = {} if WITH_THRESHOLD & given.keys() else {"density": recipe.density(n_weights, n_data)}
    if "kl_weight" in known:
        by_curvature = given.get("std", "curvature" if OF_CURVATURE & given.keys() else "gradient") == "curvature"
        beta = recipe.kl_weight
        for_tables |= {"temperature": beta} if by_curvature else {"std": "gradient", "kl_weight": beta}
    return {name: value for name, value in for_tables.items() if name in known and name not in given} | given


def given_options(method: str, parameters: Mapping[str, Any], options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options of a method that were given, checked: an unknown one is an error that names the nearest.

    ``parameters`` are the options that are arguments of an estimator, too, with ``None`` for those left out.
    """
    known = methods.options_of(method)
    given = dict(options or {})
    for name, value in parameters.items():
        if value is None:
            continue
        if name not in known:
            raise ValueError(f"method {method!r} takes no {name}: leave {name}=None. Its options: {', '.join(known)}")
        if name in given:
            raise ValueError(f"{name} is given twice, as a parameter and among the options: give it once")
        given[name] = value
    # A search over a numpy grid passes numpy's numbers.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}
    for name, value in given.items():
        if name not in known:
            raise ValueError(unknown(f"option of {method}", name, known))
        check_type(f"option {name} of {method}", value, known[name][0])
    return given


def widths(hidden: Any) -> tuple[int, ...]:
    """Widths of the hidden layers, given as a sequence or, of one layer, as a number."""
    return (int(hidden),) if isinstance(hidden, Integral) else tuple(map(int, hidden))


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Reject parameters of an estimator that cannot work."""
    hidden, device = parameters["hidden"], parameters["device"]
    hidden = [hidden] if isinstance(hidden, Integral) else hidden
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"hidden must be the widths of the hidden layers, as 64, (64,) or (); got {hidden!r}")
    counts = {name: parameters[name] for name in ("n_draws", "members")}
    counts |= {name: parameters[name] for name in ("max_steps", "batch_size") if parameters[name] is not None}
    for name, value in (counts | {f"hidden[{i}]": width for i, width in enumerate(hidden)}).items():
        whole = isinstance(value, Integral) and not isinstance(value, bool)
        _require(whole and value >= 1, name, "a whole number, at least 1", value)
    fdr = parameters["fdr"]
    inside = isinstance(fdr, Real) and 0 < float(fdr) <= 1
    _require(inside, "fdr", "a number above 0, at most 1", fdr)
    noise = parameters.get("noise")  # of a regressor
    _require(noise in (None, "constant", "varying"), "noise", "'constant', 'varying' or None", noise)
    on_nan = parameters["on_nan"]
    _require(on_nan in get_args(OnNan), "on_nan", "'stop', 'skip' or 'rollback'", on_nan)
    _require(device in ("auto", "cpu", "cuda"), "device", "'auto', 'cpu' or 'cuda'", device)
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch sees no CUDA device: use device='cpu'")


def _require(holds: bool, name: str, what: str, value: Any) -> None:
    if not holds:
        raise ValueError(f"{name} must be {what}; got {value!r}")


def _start(plan: TrainingPlan, task: Task) -> list[Training]:
    """One training of all members side by side where their weights allow it, otherwise one for each."""
    place = OneProcess(plan.device)
    noise = OwnNoise(plan.seed, place.device)
    with noise:
        networks = [plan.architecture.build() for _ in range(plan.members)]

    def method_for(data: Task) -> Method:
        built = methods.build(plan.method, data, plan.steps, **plan.options).suited_to(networks[0])
        if not built.shares_steps and built.members > 1:
            raise ValueError(f"an estimator trains the members itself: give it members={built.members}, not the method")
        return replace(built, lr_is_given=False) if plan.lowers else built

    # By its own task: some methods look at the data before they train, or at all of them at once.
    folded = isinstance(task.likelihood, WithoutFolds)
    hidden = [replace(task.likelihood, member=i) if folded else task.likelihood for i in range(plan.members)]  # type: ignore[type-var]
    tasks = [task._replace(likelihood=likelihood) for likelihood in hidden]
    own = [method_for(part) for part in tasks]
    with noise:
        networks = [method.prepare(network) for method, network in zip(own, networks, strict=True)]
    start = partial(Training, steps=plan.steps, fabric=place)
    start = partial(start, batch_size=plan.batch_size, on_nan=plan.on_nan)
    if not can_train_together(networks[0]):
        # For members of its own.
        anew = [lambda method=method: method.prepare(plan.architecture.build()) for method in own]
        own = [replace(method, prepare=lambda network: network) for method in own]
        trainings = [
            start(*parts, seed=plan.seed + i, build=anew[i])
            for i, parts in enumerate(zip(own, networks, tasks, strict=True))
        ]
        for training in trainings:  # they take their steps in turn, and share one stream of noise
            training.noise = trainings[-1].noise
        return trainings
    together = task if folded else task._replace(likelihood=SumOverMembers(task.likelihood))
    parts = replace(method_for(task), prepare=lambda members: members), Members(networks), together
    training = start(*parts, seed=plan.seed, steps_by=native_steps)
    if training.fabric.device.type == "cpu":  # one call for all of the many small tensors
        for group in training.optimizer.param_groups:
            group.update({"fused": True} if "fused" in group else {})
    return [training]


def _slower(lr: Schedule, factor: float) -> Schedule:
    return lambda step: lr(step) / factor


def _mixture(plan: TrainingPlan, trainings: Sequence[Training]) -> Mixture:
    alike, posteriors = plan.members, [(training.model, training.posterior()) for training in trainings]
    return Mixture([OfMembers(one, alike) if isinstance(model, Members) else one for model, one in posteriors])


def _draw(plan: TrainingPlan, trainings: Sequence[Training]) -> Draws:
    with trainings[0].noise:
        return Draws.of(_mixture(plan, trainings), plan.n_draws, plan.architecture)


def _run(plan: TrainingPlan, trainings: Sequence[Training]) -> Fitted:
    """Train the members step by step together, so that losses are those of the mixture."""
    losses: list[Tensor] = []  # by step (loss, nll), the sums over all members; read late, as reading makes a GPU wait
    with Progress(plan.method, plan.steps, quiet=not plan.verbose) as progress:
        for step, values in enumerate(zip(*(training.run() for training in trainings), strict=True), 1):
            losses.append(torch.stack([sum(one[name] for one in values) for name in ("loss", "nll")]))
            progress.update(step, partial(_words, step, plan.steps, losses[-1] / plan.members))
    draws = _draw(plan, trainings)
    of_steps, nlls = (torch.stack(losses) / plan.members).T.tolist()
    # A cyclical rate, of what is kept during a training, makes the loss rise and fall, whatever the steps.
    may_fall = not isinstance(trainings[0].collector, Snapshots)
    return Fitted(draws, of_steps, fall_at_the_end(nlls) if may_fall else 0.0)


def _words(step: int, last: int, losses: Tensor) -> str:
    return f"step {step}/{last}  loss {float(losses[0]):.3f}"
