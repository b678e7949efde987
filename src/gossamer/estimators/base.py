"""What both estimators share: fitting, the inputs that matter, saving and loading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.feature_selection import SelectorMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from gossamer.estimators import files
from gossamer.estimators.draws import Architecture, Draws, held_out_loss, mean_squared_error
from gossamer.estimators.inclusion import MAX_ROWS, inclusion, information
from gossamer.estimators.plan import Fitted, TrainingPlan, check_parameters, method_options, train, train_more
from gossamer.estimators.table import Array, Rows, Scaling, hold_out, merged, task_of
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.types import Likelihood

INPUTS: dict[str, Any] = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
"""Tables that are accepted, for scikit-learn's validation."""


@dataclass(frozen=True)
class Stream:
    """Everything ``partial_fit`` needs to continue."""

    plan: TrainingPlan
    inputs: Scaling
    targets: Scaling
    state: dict[str, Any] | None
    weight: float  # of all rows seen so far


@dataclass(eq=False, repr=False)
class SparseBayesEstimator(SelectorMixin, BaseEstimator):  # type: ignore[misc]
    """The base class of the classifier and the regressor, with the parameters that they share."""

    _likelihood: ClassVar[Likelihood]
    _saved: ClassVar[Sequence[str]] = (
        "n_features_in_",
        "feature_names_in_",
        "n_steps_",
        "loss_curve_",
        "validation_curve_",
    )

    method: str = "ssvi"
    _: KW_ONLY
    hidden: Sequence[int] = (50, 50)
    density: float | None = None
    options: dict[str, Any] | None = None
    max_steps: int = 1000
    batch_size: int = 64
    n_draws: int = 30
    early_stopping: bool = False
    validation_fraction: float = 0.1
    patience: int = 10
    threshold: float = 0.5
    device: str = "cpu"
    random_state: int | np.random.RandomState | None = None
    verbose: int = 0

    def prediction(self, X: Any) -> Prediction:
        """What each draw predicts for the rows of ``X``, with entropies and mutual information.

        Targets of a regression are standardised: zero is the mean of the training targets, one their deviation.
        """
        check_is_fitted(self)
        X = validate_data(self, X, **INPUTS, reset=False)
        return Prediction(self._draws.outputs(self._inputs.apply(X)), self._likelihood)

    def save(self, path: str | Path, *, training: bool = False) -> None:
        """Write the fitted estimator to a safetensors file, without pickle.

        Args:
            path: The file; an existing one is replaced.
            training: Also write what ``partial_fit`` needs to continue, about three times the rest.
        """
        check_is_fitted(self)
        kept = {
            "learnt": {name: getattr(self, name) for name in self._saved if hasattr(self, name)},
            "importances": self.feature_importances_[self._inputs.columns],  # all others are zero
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
        estimator = cls(**parameters)
        for name, value in kept["learnt"].items():
            setattr(estimator, name, value)
        estimator._draws = Draws(**kept["draws"] | {"architecture": Architecture(**kept["draws"]["architecture"])})
        estimator._inputs, estimator._targets = Scaling(**kept["inputs"]), Scaling(**kept["targets"])
        estimator._stream = _stream_from(kept["stream"])
        estimator.feature_importances_ = estimator._spread(kept["importances"])
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags

    def _get_support_mask(self) -> Array:
        check_is_fitted(self)
        mask: Array = self.feature_importances_ >= self.threshold
        return mask

    def _rows(self, X: Any, y: Array, sample_weight: Any) -> Rows:
        """The rows with a positive weight."""
        weight = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counts = np.flatnonzero(weight)
        if not len(counts):
            raise ValueError("Sample weights must contain at least one non-zero number.")
        return Rows(X[counts], y[counts], weight[counts])

    def _fit(self, rows: Rows, n_outputs: int, constant_noise: bool) -> None:
        check_parameters(self.get_params(deep=False))
        rng = check_random_state(self.random_state)
        rows, held, look = merged(rows), None, None
        if self.early_stopping:
            rows, held = hold_out(rows, self.validation_fraction, rng)
        inputs, targets = Scaling.of(rows.x, rows.weight), self._target_scaling(rows, "zero")
        plan = self._plan(rows, inputs, n_outputs, constant_noise, rng)
        if held is not None:
            held = held._replace(y=targets.apply(held.y))
            look = partial(held_out_loss, held, inputs, self._likelihood)
        rows = rows._replace(y=targets.apply(rows.y))
        fitted = train(plan, task_of(rows, inputs, self._likelihood, n_outputs), look, self.patience)
        self._keep(fitted, Stream(plan, inputs, targets, fitted.state, float(rows.weight.sum())), rows, held)

    def _fit_more(self, rows: Rows, n_outputs: int, constant_noise: bool) -> None:
        check_parameters(self.get_params(deep=False))
        rows, stream = merged(rows), getattr(self, "_stream", None)
        if stream is None and hasattr(self, "_draws"):
            raise ValueError("this estimator was saved without its training: partial_fit needs save(…, training=True)")
        if stream is None:
            inputs, targets = Scaling.of(rows.x, rows.weight, "shift"), self._target_scaling(rows, "shift")
            plan = self._plan(rows, inputs, n_outputs, constant_noise, check_random_state(self.random_state))
            stream = Stream(plan, inputs, targets, None, 0.0)
        if rows.y.shape[1] != len(stream.targets.columns):
            raise ValueError(f"y has {rows.y.shape[1]} targets, the first call had {len(stream.targets.columns)}")
        rows = rows._replace(y=stream.targets.apply(rows.y))
        weight = stream.weight + float(rows.weight.sum())
        task = task_of(rows, stream.inputs, self._likelihood, n_outputs, weight)
        fitted = train_more(stream.plan, task, stream.state)
        self._keep(fitted, replace(stream, state=fitted.state, weight=weight), rows, None)

    def _keep(self, fitted: Fitted, stream: Stream, rows: Rows, held: Rows | None) -> None:
        self._draws, self._targets = fitted.draws, stream.targets
        self._stream: Stream | None = stream  # None after loading a file without it
        self._inputs = stream.inputs.only(fitted.draws.columns.numpy())
        self.n_steps_ = fitted.n_steps
        self.loss_curve_ = np.array(fitted.losses)
        self.validation_curve_ = np.array(fitted.looks).reshape(-1, 2)
        sample = rows.take(np.arange(min(MAX_ROWS, len(rows.y))))  # the rows are in random order already
        noise = None if held is None else mean_squared_error(held, stream.inputs, self._likelihood, fitted.draws)
        known = information(fitted.draws, self._inputs.apply(sample.x), sample.weight, self._likelihood, noise)
        self.feature_importances_ = self._spread(inclusion(known, stream.weight, self.n_features_in_))

    def _spread(self, importances: Array) -> Array:
        """Importances of the inputs that the draws read -> of all inputs; the others have 0."""
        everywhere = np.zeros(self.n_features_in_)
        everywhere[self._inputs.columns] = importances
        return everywhere

    def _plan(
        self, rows: Rows, inputs: Scaling, n_outputs: int, constant_noise: bool, rng: np.random.RandomState
    ) -> TrainingPlan:
        n_data, n_means = float(rows.weight.sum()), n_outputs // 2 if constant_noise else n_outputs
        architecture = Architecture(len(inputs.columns), tuple(map(int, self.hidden)), n_means, constant_noise)
        of_numbers = isinstance(self._likelihood, Gaussian)
        options = method_options(
            self.method, self.density, self.options, architecture.n_weights, n_data, of_numbers=of_numbers
        )
        sizes = int(self.max_steps), int(self.batch_size), int(self.n_draws)
        seed = int(rng.randint(np.iinfo(np.int32).max))
        return TrainingPlan(self.method, options, architecture, *sizes, self.device, seed, int(self.verbose))

    def _target_scaling(self, rows: Rows, constant: Literal["zero", "shift"]) -> Scaling:
        """No scaling: targets are the numbers of classes, unless a subclass says otherwise."""
        n = rows.y.shape[1]
        return Scaling(np.arange(n), np.zeros(n), np.ones(n))


def _stream_from(state: dict[str, Any] | None) -> Stream | None:
    if state is None:
        return None
    plan = TrainingPlan(**state["plan"] | {"architecture": Architecture(**state["plan"]["architecture"])})
    return Stream(plan, Scaling(**state["inputs"]), Scaling(**state["targets"]), state["state"], state["weight"])
