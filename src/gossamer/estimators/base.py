"""What both estimators share: fitting, the inputs that matter, saving and loading."""

import logging
import warnings
from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import _safe_indexing, check_consistent_length, check_random_state
from sklearn.utils.validation import _check_sample_weight, _check_y, _num_samples, check_is_fitted, validate_data
from torch import Tensor

from gossamer.data.own.columns import Columns, is_data_frame
from gossamer.estimators import files
from gossamer.estimators.draws import Architecture, held_out_loss
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
from gossamer.estimators.plan import (
    Fitted,
    Look,
    Stage,
    Stream,
    TrainingPlan,
    check_parameters,
    has_one_rate,
    method_options,
    rate_for_numbers,
    recipe_of,
    train,
    train_folds,
    train_more,
    widths,
)
from gossamer.estimators.table import Array, Rows, Scaling, hold_out, merged, targets_of, task_of, without_folds
from gossamer.files.schema import made
from gossamer.posterior import Prediction
from gossamer.posterior.constant import CONSTANTS, MOST_ROWS, NO_BETTER, beats_constant
from gossamer.train.divergence import OnNan
from gossamer.types import Likelihood, Task

INPUTS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32], "ensure_all_finite": "allow-nan"}
"""Arrays that are accepted, for scikit-learn's validation; of a data frame it checks only the names."""
N_FOLDS = 3  # networks of stage 1
N_TEST_DRAWS = 5  # of each


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
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
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
        moments = shapley(self._samples, x, source, n_orders, np.random.default_rng(0))
        found = [np.zeros((len(x), self.n_features_in_, value.shape[-1])) for value in moments]
        for values, of_read in zip(found, moments, strict=True):
            values[:, columns] = of_read * self._targets.std
        baseline = self._targets.undo(self._samples(np.zeros_like(x[:1])).mean(axis=0))
        return Explanation(*map(self._in_shape, (*found, baseline[0])))

    def save(self, path: str | Path, *, training: bool = False) -> None:
        """Write the fitted estimator to a safetensors file, without pickle.

        Args:
            path: The file; an existing one is replaced.
            training: Also write what ``partial_fit`` needs to continue, about three times the rest.
        """
        check_is_fitted(self)
        kept = {
            "learnt": {name: getattr(self, name) for name in files.Learnt.__annotations__ if hasattr(self, name)},
            "columns": asdict(self._columns),
            "groups": packed(self.groups_),
            "draws": asdict(self._draws),
            "inputs": asdict(self._inputs),
            "targets": asdict(self._targets),
            "stream": asdict(self._stream) if training and self._stream else None,
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
        estimator._stream, estimator._columns = kept.stream, kept.columns
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    @property
    def _has_one_rate(self) -> bool:
        return has_one_rate(self.method, self.options, self._likelihood)

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

    def _checked(self, X: Any, y: Any, *, reset: bool, **of_targets: Any) -> tuple[Any, Array]:
        """A table and its targets; an array has become one of numbers, a data frame is as it was."""
        if not is_data_frame(X):
            checked: tuple[Any, Array] = validate_data(self, X, y, **INPUTS, **of_targets, reset=reset)
            return checked
        validate_data(self, X, skip_check_array=True, reset=reset)
        y = _check_y(y, **of_targets, estimator=self)
        check_consistent_length(X, y)
        return X, y

    def _rows(self, X: Any, y: Array, sample_weight: Any, *, reset: bool) -> Rows:
        """The rows with a positive weight, as numbers; ``reset`` learns from them how to make numbers."""
        weight = _check_sample_weight(sample_weight, y, dtype=np.float64, ensure_non_negative=True)
        counts = np.flatnonzero(weight)
        if not len(counts):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        X, weight = _safe_indexing(X, counts), weight[counts]
        if reset:
            self._columns = Columns.fit(X, weight)
        return Rows(self._columns.apply(X), y[counts], weight)

    def _numbers(self, X: Any) -> Array:
        """The standardised inputs that the draws read."""
        checks = {"skip_check_array": True} if is_data_frame(X) else INPUTS
        means = np.zeros(len(self._columns.source))
        means[self._inputs.columns] = self._inputs.mean
        return self._inputs.apply(self._columns.apply(validate_data(self, X, **checks, reset=False), means))

    def _samples(self, x: Array) -> Array:
        """What each draw predicts for standardised inputs, ``(draws, rows, targets or classes)``."""
        samples: Array = Prediction(self._draws.outputs(x), self._likelihood).samples.numpy()
        return samples

    def _in_shape(self, values: Array) -> Array:
        """Without the last dimension if a subclass has only one target."""
        return values

    def _fit(self, rows: Rows, n_outputs: int) -> None:
        """Stage 1 selects columns by their importance, stage 2 trains the members that predict on those columns."""
        check_parameters(self.get_params(deep=False))
        rng = check_random_state(self.random_state)
        rows, held = merged(rows), None
        if self.early_stopping:
            rows, held = hold_out(rows, self.validation_fraction, rng)
            if len(self._columns.missing):
                self._columns = self._columns.with_medians_of(rows.x, rows.weight)
                rows, held = (part._replace(x=self._columns.fill_again(part.x)) for part in (rows, held))
        inputs, targets = Scaling.of(rows.x, rows.weight), self._target_scaling(rows, "zero")
        rows = rows._replace(y=targets.apply(rows.y))
        held = None if held is None else held._replace(y=targets.apply(held.y))
        inputs = inputs.only(self._select(rows, held, inputs, n_outputs, rng))
        plan, task = self._plan("predict", rows, inputs, n_outputs, rng), self._task(rows, inputs, n_outputs)
        fitted = train(plan, task, self._look(held, inputs), self.patience)
        if fitted.fall:
            warnings.warn(
                f"training ended after {fitted.n_steps} steps while the loss was still falling, by {fitted.fall:.2f} "
                f"nats per row in the last quarter: train longer, as with max_steps={2 * fitted.n_steps}",
                ConvergenceWarning,
                stacklevel=3,
            )
        self._keep(fitted, Stream(plan, inputs, targets, fitted.states, float(rows.weight.sum())))
        y, every = self._look_back(rows), targets_of(self._likelihood, rows.y)
        if not beats_constant(*y, self._likelihood, every):
            constant = CONSTANTS[self._likelihood.kind]
            logging.getLogger("gossamer").warning(f"{self.method}: {NO_BETTER.format(constant=constant)}")

    def _look_back(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Outputs for some of the rows that were trained on, and their targets."""
        some = rows.take(np.linspace(0, len(rows.y) - 1, min(len(rows.y), MOST_ROWS)).astype(int))
        return self._draws.outputs(self._inputs.apply(some.x)), targets_of(self._likelihood, some.y)

    def _select(
        self, rows: Rows, held: Rows | None, inputs: Scaling, n_outputs: int, rng: np.random.RandomState
    ) -> Array:
        """Stage 1: networks that read all columns, each trained without a fold of the rows and tested on it.

        Returns which inputs predict: those selected, or all if the others matter together. That no column is certain to
        matter, or none beside the others, is no evidence that none does.
        """
        every = np.arange(len(inputs.columns))
        if len(rows.y) < N_FOLDS:
            self._rank([])
            return every
        fold = folds(rows.y[:, 0], N_FOLDS)
        plan = self._plan("select", rows, inputs, n_outputs, rng)
        task = without_folds(self._task(rows, inputs, n_outputs), rows, fold, self._in_training)
        draws = train_folds(plan, task, self._look(held, inputs), self.patience)
        parts = [rows.take(np.flatnonzero(fold == k)) for k in range(N_FOLDS)]
        self._rank(groups_of(draws, parts, inputs, self._columns.source, self._likelihood))
        matters = select(self.groups_, self.n_features_in_, self.fdr)
        selected = np.flatnonzero(matters[self._columns.source[inputs.columns]])
        return every if others_matter(draws, parts, inputs, selected, self._likelihood) else selected

    def _rank(self, groups: list[ColumnGroup]) -> None:
        self.groups_ = groups
        self.feature_importances_ = column_importances(groups, self.n_features_in_)

    def _fit_more(self, rows: Rows, n_outputs: int) -> None:
        check_parameters(self.get_params(deep=False))
        rows, stream = merged(rows), getattr(self, "_stream", None)
        if stream is None and hasattr(self, "_draws"):
            raise ValueError("this estimator was saved without its training: partial_fit needs save(…, training=True)")
        if stream is None:
            inputs, targets = Scaling.of(rows.x, rows.weight, "shift"), self._target_scaling(rows, "shift")
            rng = check_random_state(self.random_state)
            plan = self._plan("stream", rows, inputs, n_outputs, rng)
            stream = Stream(plan, inputs, targets, [], 0.0, selects=True)
        if rows.y.shape[1] != len(stream.targets.columns):
            raise ValueError(f"y has {rows.y.shape[1]} targets, the first call had {len(stream.targets.columns)}")
        rows = rows._replace(y=stream.targets.apply(rows.y))
        weight = stream.weight + float(rows.weight.sum())
        task = self._task(rows, stream.inputs, n_outputs, weight)
        if stream.selects:  # by the networks as they were before they learnt these rows
            known = [self._draws] if stream.states else []
            self._rank(groups_of(known, [rows], stream.inputs, self._columns.source, self._likelihood))
        fitted = train_more(stream.plan, task, stream.states)
        self._keep(fitted, replace(stream, states=fitted.states, weight=weight))
        self._look_back(rows)

    def _task(self, rows: Rows, inputs: Scaling, n_outputs: int, total: float | None = None) -> Task:
        return task_of(rows, inputs, self._in_training, n_outputs, total)

    def _look(self, held: Rows | None, inputs: Scaling) -> Look | None:
        return None if held is None else partial(held_out_loss, held, inputs, self._likelihood)

    def _keep(self, fitted: Fitted, stream: Stream) -> None:
        self._draws, self._targets = fitted.draws, stream.targets
        self.__dict__.pop("conformal_scores_", None)  # it was of the networks before
        self._stream: Stream | None = stream  # None after loading a file without it
        self._inputs = stream.inputs.only(fitted.draws.columns.numpy())
        self.n_steps_, self.n_samples_seen_ = fitted.n_steps, stream.weight
        self.loss_curve_ = np.array(fitted.losses)
        self.validation_curve_ = np.array(fitted.looks).reshape(-1, 2)

    def _plan(
        self, stage: Stage, rows: Rows, inputs: Scaling, n_outputs: int, rng: np.random.RandomState
    ) -> TrainingPlan:
        n_data, constant_noise = float(rows.weight.sum()), self._has_constant_noise
        n_means = n_outputs // 2 if constant_noise else n_outputs
        architecture = Architecture(len(inputs.columns), widths(self.hidden), n_means, constant_noise)
        recipe = recipe_of(stage, self._has_one_rate, self._likelihood.kind == "regression")
        batch_size = recipe.batch_size(n_data) if self.batch_size is None else int(self.batch_size)
        given = {"density": self.density, "lr": self.lr, "kl_weight": self.kl_weight}
        options = method_options(self.method, given, self.options, recipe, architecture.n_weights, n_data)
        rate = rate_for_numbers(self.method, options, self._likelihood)
        return TrainingPlan(
            self.method,
            options if rate is None else options | {"lr": rate},
            architecture,
            recipe.steps(n_data, batch_size) if self.max_steps is None else int(self.max_steps),
            # A network of stage 1 ignores a fold of each batch.
            round(batch_size * N_FOLDS / (N_FOLDS - 1)) if stage == "select" else batch_size,
            N_TEST_DRAWS * N_FOLDS if stage == "select" else int(self.n_draws),
            self.device,
            int(rng.randint(np.iinfo(np.int32).max)),
            N_FOLDS if stage == "select" else int(self.members),
            int(self.verbose),
            recipe.rounds if self.max_steps is None else 1,
            self.on_nan,
            lowers=rate is not None,
        )

    def _target_scaling(self, rows: Rows, constant: Literal["zero", "shift"]) -> Scaling:
        """No scaling: targets are the numbers of classes, unless a subclass says otherwise."""
        n = rows.y.shape[1]
        return Scaling(np.arange(n), np.zeros(n), np.ones(n))


def inputs_that_predict(estimator: SparseBayesEstimator, columns: Columns, rows: Rows, n_outputs: int) -> list[int]:
    """Which inputs stage 1 selects, for networks that are trained elsewhere; ``columns`` made them."""
    estimator._columns, estimator.n_features_in_ = columns, columns.n_columns
    rows = merged(rows)
    inputs, targets = Scaling.of(rows.x, rows.weight), estimator._target_scaling(rows, "zero")
    rng = check_random_state(estimator.random_state)
    rows = rows._replace(y=targets.apply(rows.y))
    selected: list[int] = inputs.columns[estimator._select(rows, None, inputs, n_outputs, rng)].tolist()
    return selected
