"""Numbers for rows of a table, with standard deviations and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.validation import validate_data

from gossamer.estimators.base import SparseBayesEstimator
from gossamer.estimators.table import Array, Rows, Scaling
from gossamer.likelihoods import Gaussian

__all__ = ["SparseBayesRegressor"]


class SparseBayesRegressor(RegressorMixin, SparseBayesEstimator):
    """A"""

    _likelihood = Gaussian()
    _learnt = (*SparseBayesEstimator._learnt, "_y_ndim")

    def __init__(
        self,
        method: str = "ssvi",
        *,
        hidden: Sequence[int] = (64,),
        density: float | None = None,
        options: dict[str, Any] | None = None,
        noise: Literal["constant", "varying"] = "constant",
        max_steps: int = 1000,
        batch_size: int = 64,
        n_draws: int = 30,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        threshold: float = 0.5,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(
            method, hidden, density, options, max_steps, batch_size, n_draws, early_stopping, validation_fraction,
            patience, threshold, device, random_state, verbose,
        )
        self.noise = noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        rows = self._validated(X, y, sample_weight, reset=True)
        self._fit(rows, 2 * rows.y.shape[1], self.noise == "constant")
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        rows = self._validated(X, y, sample_weight, reset=not hasattr(self, "_y_ndim"))
        self._fit_more(rows, 2 * rows.y.shape[1], self.noise == "constant")
        return self

    def _validated(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Rows:
        kinds = {"accept_sparse": "csr", "dtype": [np.float64, np.float32]}
        X, y = validate_data(self, X, y, **kinds, multi_output=True, y_numeric=True, reset=reset)
        if reset:
            self._y_ndim = y.ndim
        return self._rows(X, y.reshape(len(y), -1).astype(np.float64), sample_weight)

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        prediction = self.prediction(X)
        mean = self._in_units(prediction.mean.numpy())
        if not return_std:
            return mean
        return mean, self._shaped(prediction.std.numpy() * self._targets.std)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        low, high = self.prediction(X).interval(level)
        return self._in_units(low.numpy()), self._in_units(high.numpy())

    def _target_scaling(self, rows: Rows, constant: Literal["zero", "shift"]) -> Scaling:
        return Scaling.of(rows.y, rows.weight, constant)

    def _in_units(self, y: Array) -> Array:
        return self._shaped(self._targets.undo(y))

    def _shaped(self, y: Array) -> Array:
        return y.ravel() if self._y_ndim == 1 else y

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
