"""How an estimator is trained: by a stage that selects columns and one that predicts, or by passes over new rows."""

from __future__ import annotations

import logging
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing, check_random_state
from sklearn.utils.validation import _check_sample_weight

from gossamer.data.own.columns import Columns
from gossamer.estimators.importance import ColumnGroup, column_importances, folds, groups_of, others_matter, select
from gossamer.estimators.plan import (
    N_FOLDS,
    check_parameters,
    held_out_noise,
    plan_of,
    train,
    train_folds,
)
from gossamer.estimators.table import Array, Rows, Scaling, merged, targets_of, task_of, without_folds
from gossamer.posterior.constant import CONSTANTS, NO_BETTER, beats_constant

if TYPE_CHECKING:
    from gossamer.estimators.base import SparseBayesEstimator


def fit(model: SparseBayesEstimator, rows: Rows, n_outputs: int) -> None:
    """Stage 1 selects columns by their importance, stage 2 trains the members that predict on those columns."""
    check_parameters(model.get_params(deep=False))
    rng, rows = check_random_state(model.random_state), merged(rows)
    inputs, targets = Scaling.of(rows.x, rows.weight), model._target_scaling(rows)
    rows = rows._replace(y=targets.apply(rows.y))
    inputs = inputs.only(_select(model, rows, inputs, n_outputs, rng))
    plan = plan_of(model, "predict", rows, inputs, n_outputs, rng)
    task = task_of(rows, inputs, model._in_training, n_outputs)
    fitted = train(plan, task)
    model.__dict__.pop("conformal_scores_", None)  # it was of the networks before
    model._draws, model._targets = fitted.draws, targets
    model._inputs = inputs.only(fitted.draws.columns.numpy())
    model.loss_curve_, model.n_steps_ = np.array(fitted.losses), len(fitted.losses)
    model.n_samples_seen_ = float(rows.weight.sum())
    if fitted.fall:
        warnings.warn(
            f"training ended after {model.n_steps_} steps while the loss was still falling, by {fitted.fall:.2f} "
            f"nats per row in the last quarter: train longer, as with max_steps={2 * model.n_steps_}",
            ConvergenceWarning,
            stacklevel=3,
        )
    weight = torch.from_numpy(rows.weight)
    model.held_out_noise_ = np.array(held_out_noise(plan, task, weight))
    y, every = model._look_back(rows), targets_of(model._likelihood, rows.y)
    if not beats_constant(*y, model._likelihood, every):
        constant = CONSTANTS[model._likelihood.kind]
        logging.getLogger("gossamer").warning(f"{model.method}: {NO_BETTER.format(constant=constant)}")


def rows_of(model: SparseBayesEstimator, X: Any, y: Array, sample_weight: Any) -> Rows:
    """The rows with a positive weight, as numbers: how to make these is learnt from them."""
    weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    counts = np.flatnonzero(weight)
    if not len(counts):
        raise ValueError("Sample weights must contain at least one non-zero number.")
    X, weight = _safe_indexing(X, counts), weight[counts]
    model._columns = Columns.fit(X, weight)
    return Rows(model._columns.apply(X), y[counts], weight)


def _select(
    model: SparseBayesEstimator,
    rows: Rows,
    inputs: Scaling,
    n_outputs: int,
    rng: np.random.RandomState,
) -> Array:
    """Stage 1: networks that read all columns, each trained without a fold of the rows and tested on it.

    Returns which inputs predict: those selected, or all if the others matter together. That no column is certain to
    matter, or none beside the others, is no evidence that none does.
    """
    every = np.arange(len(inputs.columns))
    if len(rows.y) < N_FOLDS:
        _rank(model, [])
        return every
    fold = folds(rows.y[:, 0], N_FOLDS)
    plan = plan_of(model, "select", rows, inputs, n_outputs, rng)
    task = task_of(rows, inputs, model._in_training, n_outputs)
    task = without_folds(task, rows, fold, model._in_training)
    draws = train_folds(plan, task)
    parts = [rows.take(np.flatnonzero(fold == k)) for k in range(N_FOLDS)]
    _rank(model, groups_of(draws, parts, inputs, model._columns.source, model._likelihood))
    matters = select(model.groups_, model.n_features_in_, model.fdr)
    selected = np.flatnonzero(matters[model._columns.source[inputs.columns]])
    return every if others_matter(draws, parts, inputs, selected, model._likelihood) else selected


def _rank(model: SparseBayesEstimator, groups: list[ColumnGroup]) -> None:
    model.groups_ = groups
    model.feature_importances_ = column_importances(groups, model.n_features_in_)


def inputs_that_predict(model: SparseBayesEstimator, columns: Columns, rows: Rows, n_outputs: int) -> list[int]:
    """Which inputs stage 1 selects, for networks that are trained elsewhere; ``columns`` made them."""
    model._columns, model.n_features_in_ = columns, columns.n_columns
    rows = merged(rows)
    inputs, targets = Scaling.of(rows.x, rows.weight), model._target_scaling(rows)
    rng = check_random_state(model.random_state)
    rows = rows._replace(y=targets.apply(rows.y))
    selected: list[int] = inputs.columns[_select(model, rows, inputs, n_outputs, rng)].tolist()
    return selected
