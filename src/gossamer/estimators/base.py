"""What both estimators share: fitting, the inputs that matter, saving and loading."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, _num_samples, check_is_fitted, validate_data
from torch import Tensor

from gossamer.data.own.columns import Columns, is_data_frame
from gossamer.estimators import files
from gossamer.estimators.explanation import Explanation, shapley
from gossamer.estimators.importance import (
    ColumnGroup,
    column_importances,
    folds,
    groups_of,
    others_matter,
    packed,
    select,
    unpacked,
)
from gossamer.estimators.plan import N_FOLDS, check_parameters, held_out_noise, plan_of, train, train_folds
from gossamer.estimators.table import Array, Rows, Scaling, merged, targets_of, task_of, without_folds
from gossamer.files.schema import made
from gossamer.posterior import Prediction
from gossamer.posterior.constant import CONSTANTS, MOST_ROWS, NO_BETTER, beats_constant
from gossamer.train.divergence import OnNan
from gossamer.types import Likelihood

INPUTS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
"""Arrays that are accepted, for scikit-learn's validation; of a data frame it checks only the names."""


@dataclass(eq=False, repr=False)
class SparseBayesEstimator(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of the classifier and the regressor, with the parameters that they share."""

    _likelihood: ClassVar[Likelihood]
    _needed: ClassVar[Sequence[str]] = ()  # what a subclass cannot predict without, of all that is learnt

    method: str = "ssvi"
    _: KW_ONLY
    hidden: int | Sequence[int] = (50, 50)
    density: float | None = None
    lr: float | None = None
    kl_weight: float | None = None
    members: int = 3
    options: dict[str, Any] | None = None
    max_steps: int | None = None
    batch_size: int | None = None
    n_draws: int = 30
    fdr: float = 0.1
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0
    on_nan: OnNan = "stop"

    def prediction(self, X: Any) -> Prediction:
        """What each draw predicts for the rows of ``X``, with entropies and mutual information.

        Targets of a regression are standardised: zero is the mean of the training targets, one their deviation.
        """
        check_is_fitted(self)
        return Prediction(self._draws.outputs(self._numbers(X)), self._predictive)

    def inverse_transform(self, X: Any) -> Any:
        """The table with zeros in the columns that were not selected, also where none was."""
        if self.get_support().any():
            return super().inverse_transform(X)
        shape = (_num_samples(X), self.n_features_in_)
        return sparse.csc_matrix(shape) if sparse.issparse(X) else np.zeros(shape)

    def explain(self, X: Any, n_orders: int = 8) -> Explanation:
        """How much each column contributes to the prediction of each row of ``X``, compared with the mean training row.

        The contributions φ are Shapley values of the columns, see :mod:`gossamer.estimators.explanation`. For each row,

            Σ_j φ_j = m(x) - m(mean row)

        where m is ``predict`` of a regressor or ``predict_proba`` of a classifier. They are means over the draws, and
        their standard deviation over the draws comes with them.

        Args:
            X: As for :meth:`fit`.
            n_orders: Random orders in which columns are set, each also backwards: more make contributions more exact if
                columns interact by three or more. Their sum is always exact.
        """
        check_is_fitted(self)
        x = self._numbers(X)
        columns, source = np.unique(self._columns.source[self._inputs.columns], return_inverse=True)

        def samples(x: Array) -> Array:
            values: Array = Prediction(self._draws.outputs(x), self._likelihood).samples.numpy()
            return values

        moments = shapley(samples, x, source, n_orders, np.random.default_rng(0))
        found = [np.zeros((len(x), self.n_features_in_, value.shape[-1])) for value in moments]
        for values, of_read in zip(found, moments, strict=True):
            values[:, columns] = of_read * self._targets.std
        baseline = self._targets.undo(samples(np.zeros_like(x[:1])).mean(axis=0))
        return Explanation(*map(self._in_shape, (*found, baseline[0])))

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to a safetensors file, without pickle; an existing one is replaced."""
        check_is_fitted(self)
        kept = {
            "learnt": {name: getattr(self, name) for name in files.Learnt.__annotations__ if hasattr(self, name)},
            "columns": asdict(self._columns),
            "groups": packed(self.groups_),
            "draws": asdict(self._draws),
            "inputs": asdict(self._inputs),
            "targets": asdict(self._targets),
        }
        files.write(Path(path), type(self).__name__, self.get_params(deep=False), kept)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an estimator that :meth:`save` wrote."""
        parameters, kept = files.read(Path(path), cls.__name__)
        estimator = made(cls, parameters, f"{path}, parameters,", files.FIX)
        if missing := set(cls._needed) - kept.learnt.keys():
            raise ValueError(f"{path}: learnt/{min(missing)} is missing; {files.FIX}")
        for name in files.Learnt.__annotations__.keys() & kept.learnt.keys():
            setattr(estimator, name, kept.learnt[name])  # type: ignore[literal-required]
        estimator.groups_ = unpacked(kept.groups)
        estimator._draws, estimator._inputs, estimator._targets = kept.draws, kept.inputs, kept.targets
        estimator._columns = kept.columns
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _has_constant_noise(self) -> bool:
        """Whether a noise is learnt that does not depend on the inputs."""
        return False

    @property
    def _in_training(self) -> Likelihood:
        """The likelihood, or one with milder gradients."""
        return self._likelihood

    @property
    def _predictive(self) -> Likelihood:
        """The likelihood by which outputs are read."""
        return self._likelihood

    def _get_support_mask(self) -> Array:
        check_is_fitted(self)
        mask = select(self.groups_, self.n_features_in_, self.fdr)
        if not mask.any():
            warnings.warn(
                f"no column is selected at a false discovery rate of {self.fdr}: the columns predict nothing, or there "
                "are too few rows to tell which do; feature_importances_ ranks them, and a larger fdr selects more",
                stacklevel=3,
            )
        return mask

    def _fit(self, rows: Rows, n_outputs: int) -> None:
        """Stage 1 selects columns by their importance, stage 2 trains the members that predict on those columns."""
        check_parameters(self.get_params(deep=False))
        rng = check_random_state(self.random_state)
        rows, inputs, targets = _standardised(self, rows)
        inputs = inputs.only(_selected(self, rows, inputs, n_outputs, rng))
        plan = plan_of(self, "predict", rows, inputs, n_outputs, rng)
        task = task_of(rows, inputs, self._in_training, n_outputs)
        fitted = train(plan, task)
        self.__dict__.pop("conformal_scores_", None)  # it was of the networks before
        self._draws, self._targets = fitted.draws, targets
        self._inputs = inputs.only(fitted.draws.columns.numpy())
        self.loss_curve_, self.n_steps_ = np.array(fitted.losses), len(fitted.losses)
        self.n_samples_seen_ = float(rows.weight.sum())
        if fitted.fall:
            warnings.warn(
                f"training ended after {self.n_steps_} steps while the loss was still falling, by {fitted.fall:.2f} "
                f"nats per row in the last quarter: train longer, as with max_steps={2 * self.n_steps_}",
                ConvergenceWarning,
                stacklevel=3,
            )
        self.held_out_noise_ = np.array(held_out_noise(plan, task, torch.from_numpy(rows.weight)))
        y, every = self._look_back(rows), targets_of(self._likelihood, rows.y)
        if not beats_constant(*y, self._likelihood, every):
            constant = CONSTANTS[self._likelihood.kind]
            logging.getLogger("gossamer").warning(f"{self.method}: {NO_BETTER.format(constant=constant)}")

    def _numbers(self, X: Any) -> Array:
        """The standardised inputs that the draws read."""
        checks = {"skip_check_array": True} if is_data_frame(X) else INPUTS
        means = np.zeros(len(self._columns.source))
        means[self._inputs.columns] = self._inputs.mean
        x: Array = self._inputs.apply(self._columns.apply(validate_data(self, X, **checks, reset=False), means))
        return x

    def _in_shape(self, values: Array) -> Array:
        """Without the last dimension if a subclass has only one target."""
        return values

    def _look_back(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Outputs for some of the rows that were trained on, and their targets."""
        some = rows.take(np.linspace(0, len(rows.y) - 1, min(len(rows.y), MOST_ROWS)).astype(int))
        return self._draws.outputs(self._inputs.apply(some.x)), targets_of(self._likelihood, some.y)

    def _target_scaling(self, rows: Rows) -> Scaling:
        """No scaling: targets are the numbers of classes, unless a subclass says otherwise."""
        n = rows.y.shape[1]
        return Scaling(np.arange(n), np.zeros(n), np.ones(n))


def rows_of(model: SparseBayesEstimator, X: Any, y: Any, sample_weight: Any, **of_targets: Any) -> Rows:
    """The rows with a positive weight, checked, as numbers: how to make these is learnt from them."""
    if is_data_frame(X):
        validate_data(model, X, skip_check_array=True)
        y = _check_y(y, **of_targets, estimator=model)
        check_consistent_length(X, y)
    else:
        X, y = validate_data(model, X, y, **INPUTS, **of_targets)
    weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
    counts = np.flatnonzero(weight)
    if not len(counts):
        raise ValueError("Sample weights must contain at least one non-zero number.")
    X, weight = _safe_indexing(X, counts), weight[counts]
    model._columns = Columns.fit(X, weight)
    return Rows(model._columns.apply(X), y[counts], weight)


def inputs_that_predict(model: SparseBayesEstimator, columns: Columns, rows: Rows, n_outputs: int) -> list[int]:
    """Which inputs stage 1 selects, for networks that are trained elsewhere; ``columns`` made them."""
    model._columns, model.n_features_in_ = columns, columns.n_columns
    rows, inputs, _ = _standardised(model, rows)
    chosen = _selected(model, rows, inputs, n_outputs, check_random_state(model.random_state))
    selected: list[int] = inputs.columns[chosen].tolist()
    return selected


def _standardised(model: SparseBayesEstimator, rows: Rows) -> tuple[Rows, Scaling, Scaling]:
    """The rows with targets as networks predict them, and the scalings of inputs and targets."""
    rows = merged(rows)
    targets = model._target_scaling(rows)
    return rows._replace(y=targets.apply(rows.y)), Scaling.of(rows.x, rows.weight), targets


def _selected(
    model: SparseBayesEstimator, rows: Rows, inputs: Scaling, n_outputs: int, rng: np.random.RandomState
) -> Array:
    """Stage 1: networks that read all columns, each trained without a fold of the rows and tested on it.

    Returns which inputs predict: those selected, or all if the others matter together. That no column is certain to
    matter, or none beside the others, is no evidence that none does.
    """
    every, source = np.arange(len(inputs.columns)), model._columns.source
    if len(rows.y) < N_FOLDS:
        _rank(model, [])
        return every
    fold = folds(rows.y[:, 0], N_FOLDS)
    plan = plan_of(model, "select", rows, inputs, n_outputs, rng)
    task = task_of(rows, inputs, model._in_training, n_outputs)
    draws = train_folds(plan, without_folds(task, rows, fold, model._in_training))
    parts = [rows.take(np.flatnonzero(fold == k)) for k in range(N_FOLDS)]
    _rank(model, groups_of(draws, parts, inputs, source, model._likelihood))
    matters = select(model.groups_, model.n_features_in_, model.fdr)
    selected = np.flatnonzero(matters[source[inputs.columns]])
    return every if others_matter(draws, parts, inputs, selected, model._likelihood) else selected


def _rank(model: SparseBayesEstimator, groups: list[ColumnGroup]) -> None:
    model.groups_ = groups
    model.feature_importances_ = column_importances(groups, model.n_features_in_)
