"""What was left open is chosen by the data: a table is trained as :mod:`gossamer.estimators` train it.

Estimators are imported here only where there is a table: they need scikit-learn.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import methods, models
from gossamer.data.own.columns import Columns
from gossamer.data.own.record import columns_of, task_of
from gossamer.data.uci import Standardize
from gossamer.lab.runs.settings import USUAL, Settings, with_defaults
from gossamer.likelihoods import Gaussian
from gossamer.models.small import OF_TABLES
from gossamer.posterior.constant import MOST_ROWS
from gossamer.types import Method, Task


def is_table(task: Task) -> bool:
    """Whether inputs are rows of numbers, standardised column by column."""
    return isinstance(task.transform, Standardize) and task.test[0].dim() == 2


def prepared(settings: Settings) -> tuple[Settings, Task]:
    """Settings and data of a new run, with everything chosen that was left open."""
    task = settings.load_task()
    if is_table(task) and task.record is not None:
        task = with_inputs(task, {"selected": _selected(task)})
    return suited(settings, task), task


def with_inputs(task: Task, record: Mapping[str, Any]) -> Task:
    """The task whose networks read the inputs that were selected once, if any were."""
    if task.record is None or "selected" not in record:
        return task
    return task_of({**task.record, "selected": record["selected"]}, task.train, task.val, task.test)


def suited(settings: Settings, task: Task) -> Settings:
    """The settings with what was left open: the recipe of the estimators for tables, defaults for everything else."""
    if not settings.is_open:
        return settings
    usual, options = dict[str, Any](USUAL), settings.options
    if is_table(task):
        usual, options = _by_recipe(settings, task)
    elif task.record is not None and len(task.input_shape) == 3 and settings.model is None:
        usual["model"] = "pooled_conv_net"  # images of any size, in minutes on a CPU; a twentieth of it is too little
        options = {**({"density": 0.2} if "density" in methods.options_of(settings.method) else {}), **options}
    chosen = {name: value for name, value in usual.items() if getattr(settings, name) is None}
    return replace(settings, **chosen, options=with_defaults(settings.method, options))


def _by_recipe(settings: Settings, task: Task) -> tuple[dict[str, Any], dict[str, Any]]:
    from gossamer.estimators import SparseBayesRegressor
    from gossamer.estimators.plan import has_one_rate, method_options, recipe_of

    one_rate = has_one_rate(settings.method, settings.options, task.likelihood)
    recipe, n = recipe_of("predict", one_rate, task.has_numbers), task.n_data
    model = settings.model or ("table_one_noise" if one_rate and task.has_numbers else "table")
    network = models.build(model, task.input_shape, task.n_outputs)
    n_weights = sum(parameter.numel() for parameter in network.parameters() if parameter.dim() > 1)
    options = method_options(settings.method, {}, settings.options, recipe, n_weights, n)
    options = _members(settings.method, SparseBayesRegressor.members) | options
    batch_size = settings.batch_size or recipe.batch_size(n)
    epochs = -(-recipe.steps(n, batch_size) // -(-n // batch_size))
    rounds = recipe.rounds if settings.epochs is None else 1
    return {"model": model, "batch_size": batch_size, "epochs": epochs, "rounds": rounds}, options


def _members(method: str, count: int) -> dict[str, int]:
    """The option for so many members of a method that has one by default: others have members of their own, or none."""
    return {"members": count} if methods.options_of(method).get("members", (int, 0))[1] == 1 else {}


def _selected(task: Task) -> list[int]:
    """The inputs that predict the target: data handling, which is the same for all methods and seeds."""
    from gossamer.estimators import SparseBayesClassifier, SparseBayesRegressor
    from gossamer.estimators.base import inputs_that_predict
    from gossamer.estimators.table import Rows

    record, (x, y) = task.record or {}, task.train
    columns = columns_of(record) if "columns" in record else Columns(x.shape[1])
    kind = SparseBayesRegressor if task.has_numbers else SparseBayesClassifier
    rows = Rows(x.double().numpy(), y.reshape(len(y), -1).double().numpy(), np.ones(len(y)))
    return inputs_that_predict(kind(random_state=0), columns, rows, task.n_outputs)


def method_and_task(
    settings: Settings, task: Task, steps: int, network: nn.Module
) -> tuple[Method, Task, dict[str, Any]]:
    """What trains, on which task, and how steps are taken: on tables with rates and noise that suit them."""
    if not is_table(task):
        return methods.build(settings.method, task, steps, **settings.options), task, {}
    from gossamer.estimators.members import native_steps
    from gossamer.estimators.plan import VARYING, rate_for_numbers

    rate = rate_for_numbers(settings.method, settings.options, task.likelihood)
    options = settings.options if rate is None else {**settings.options, "lr": rate}
    method = methods.build(settings.method, task, steps, **options).suited_to(network)
    method = method if rate is None else replace(method, lr_is_given=False)
    if task.has_numbers and not method.one_rate:
        task = task._replace(likelihood=VARYING)
    is_ours = settings.model in ("table", "table_one_noise")
    native = is_ours and not settings.is_on_gpu() and settings.ranks == 1
    return method, task, {"steps_by": native_steps} if native else {}


def with_errors(task: Task, largest: float, noise: list[float]) -> Task:
    """The task whose predictions leave room for rows like none of the training, by the largest error of those."""
    from gossamer.estimators.plan import predictive

    return task._replace(likelihood=predictive(task.likelihood, task.n_data, [largest], noise))


def noise_of(settings: Settings, task: Task) -> list[float]:
    """The least noise of a table of numbers, as the estimators find it by rows that are held out."""
    if settings.model != "table_one_noise" or not is_table(task):
        return []
    from gossamer.estimators.draws import Architecture
    from gossamer.estimators.plan import TrainingPlan, held_out_noise, rate_for_numbers

    rate, batch = rate_for_numbers(settings.method, settings.options, task.likelihood), settings.batch_size or 1
    options = settings.options | ({} if rate is None else {"lr": rate}) | _members(settings.method, 1)
    steps = (settings.epochs or 1) * -(-task.n_data // batch)
    network = Architecture(math.prod(task.input_shape), OF_TABLES, task.n_outputs // 2, constant_noise=True)
    how = settings.method, options, network, steps, batch, settings.n_draws, "cpu", settings.seed
    return held_out_noise(TrainingPlan(*how, lowers=rate is not None), task, torch.ones(task.n_data))


def largest_error(task: Task, predict: Any) -> float | None:
    """The largest error among some of the training rows, of a table of numbers whose noise is learnt."""
    if not is_table(task) or task.likelihood != Gaussian():
        return None
    x, y = task.train
    rows = torch.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).long()
    errors: Tensor = (predict(x[rows]).mean - y[rows]).abs()
    return float(errors.max())
