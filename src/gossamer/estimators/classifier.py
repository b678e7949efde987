"""Classes of rows of a table, with probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import validate_data

from gossamer.estimators.base import SparseBayesEstimator
from gossamer.estimators.table import Array, Rows
from gossamer.likelihoods import Categorical

__all__ = ["SparseBayesClassifier"]


class SparseBayesClassifier(ClassifierMixin, SparseBayesEstimator):
    """A"""

    _likelihood = Categorical()
    _learnt = (*SparseBayesEstimator._learnt, "classes_")

    def __init__(
        self,
        method: str = "ssvi",
        *,
        hidden: Sequence[int] = (64,),
        density: float | None = None,
        options: dict[str, Any] | None = None,
        max_steps: int = 1000,
        batch_size: int = 64,
        n_draws: int = 30,
        class_weight: dict[Any, float] | Literal["balanced"] | None = None,
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
        self.class_weight = class_weight

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32])
        check_classification_targets(y)
        rows = self._rows(X, y, sample_weight)
        self.classes_ = np.unique(rows.y)
        if len(self.classes_) < 2:
            raise ValueError(
                "SparseBayesClassifier needs samples of at least 2 classes in the data, but the data contains only one "
                f"class: {self.classes_[0]!r}"
            )
        self._fit(self._encoded(rows), len(self.classes_), constant_noise=False)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        first = not hasattr(self, "classes_")
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=[np.float64, np.float32], reset=first)
        check_classification_targets(y)
        if first:
            if classes is None:
                raise ValueError("classes must be passed on the first call to partial_fit.")
            self.classes_ = np.unique(classes)
        rows = self._rows(X, y, sample_weight)
        strange = np.setdiff1d(rows.y, self.classes_)
        if len(strange):
            raise ValueError(f"y holds classes that the first call of partial_fit was not told of: {strange}")
        self._fit_more(self._encoded(rows), len(self.classes_), constant_noise=False)
        return self

    def _encoded(self, rows: Rows) -> Rows:
        index = np.searchsorted(self.classes_, rows.y)
        if self.class_weight == "balanced":
            mass = np.bincount(index, rows.weight, len(self.classes_))
            of_class = mass.sum() / (len(mass) * np.where(mass > 0, mass, 1))
        else:
            of_class = compute_class_weight(self.class_weight, classes=self.classes_, y=rows.y)
        return Rows(rows.x, index[:, None].astype(np.float64), rows.weight * of_class[index])

    def predict_proba(self, X: Any) -> Array:
        probs: Array = self.prediction(X).probs.numpy()
        return probs

    def predict(self, X: Any) -> Array:
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels
