"""A classifier of the rows of a table, with probabilities."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import ClassifierMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets

from gossamer.conformal import threshold
from gossamer.estimators.base import SparseBayesEstimator, rows_of
from gossamer.estimators.table import Array, Rows
from gossamer.likelihoods import Categorical


@dataclass(eq=False, repr=False)
class SparseBayesClassifier(ClassifierMixin, SparseBayesEstimator):  # type: ignore[misc]
    """A sparse Bayesian network that predicts classes, how certain they are, and which inputs matter.

    Inputs are standardised by the training rows. Probabilities are means over ``n_draws`` networks, which are drawn
    once, at the end of training: predictions are deterministic.

    Args:
        method: Any name of :func:`gossamer.methods.names`.
        hidden: Widths of the hidden layers, or the width of one; ``()`` is a linear model.
        density: Share of active weights, if the method takes one. ``None`` is a tenth, or less for a wide table: a
            quarter as many weights as rows, but at least 500.
        lr: Learning rate, if the method takes one; ``None`` is the method's default.
        kl_weight: β of the KL, if the method has one; ``None`` is 1 (the ELBO).
        members: Networks that are trained to predict, on the selected columns or, where the others matter together,
            on all; their mixture predicts.
        options: Other options of the method by name, as in ``{"removal": "snr_abs"}``.
        max_steps: Optimizer steps of each stage; ``None`` is 500 to select, and to predict 2,000 or ten
            epochs if that is more.
        batch_size: Rows per step; ``None`` is 64.
        n_draws: Networks kept for prediction; a method without a posterior has one.
        class_weight: Weights of the classes, or ``"balanced"``; they multiply the sample weights.
        fdr: The false discovery rate: which share of the selected columns may be wrong. 1 selects all columns.
        device: Where to train, ``"cpu"``, ``"cuda"`` or ``"auto"``; predictions are made on the CPU, in float64.
        random_state: Seed of the order of the rows, the first active weights, all noise and the draws.
        verbose: 1 shows progress on standard error.
        on_nan: What to do if the loss or a gradient becomes infinite or NaN: ``"stop"``, ``"skip"`` the batch, or
            ``"rollback"`` to the weights of up to 50 steps before.

    Attributes:
        classes_: The classes, sorted.
        feature_importances_: By how much R² on unknown rows falls without each column, or without its group; see
            :mod:`gossamer.estimators.importance`.
        groups_: The columns that were tested, in groups of nearly equal ones, each a
            :class:`gossamer.estimators.importance.ColumnGroup` with its importance and p-value; the most important
            first.
        n_steps_: Steps after which the kept networks were drawn.
        n_samples_seen_: Rows that they were trained on, or the sum of their weights.
        loss_curve_: Loss of each step, ``(steps,)``.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if they have any.

    Example:
        >>> from sklearn.datasets import load_wine
        >>> X, y = load_wine(return_X_y=True)
        >>> model = SparseBayesClassifier(max_steps=200, random_state=0).fit(X[::2], y[::2])
        >>> model.score(X[1::2], y[1::2]) > 0.9, model.predict_proba(X[:2]).shape
        (True, (2, 3))
    """

    _likelihood = Categorical()
    _needed = ("classes_",)

    class_weight: dict[Any, float] | Literal["balanced"] | None = field(default=None, kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of ``X`` with their classes ``y``.

        Args:
            X: ``(rows, columns)``: an array or a sparse matrix of numbers, or a data frame, which may have categories.
                Values may be missing, see :mod:`gossamer.data.own.columns`.
            y: Classes, ``(rows,)``.
            sample_weight: How often each row counts, ``(rows,)``: a row of weight 3 counts as three equal rows, in
                the likelihood and in the N that divides the KL.
        """
        rows = rows_of(self, X, y, sample_weight)
        check_classification_targets(rows.y)
        self.classes_ = np.unique(rows.y)
        if len(self.classes_) < 2:
            raise ValueError(
                "SparseBayesClassifier needs samples of at least 2 classes in the data, but the data contains only one "
                f"class: {self.classes_[0]!r}"
            )
        self._fit(self._encoded(rows), len(self.classes_))
        return self

    def predict_proba(self, X: Any) -> Array:
        """Probability of each class, ``(rows, classes)``, the mean over the draws."""
        probs: Array = self.prediction(X).probs.numpy()
        return probs

    def predict(self, X: Any) -> Array:
        """The most probable class of each row."""
        best = self.predict_proba(X).argmax(axis=1)
        labels: Array = self.classes_[best]
        return labels

    def conformalize(self, X: Any, y: Any) -> Self:
        """Calibrate :meth:`predict_set` on rows that were not trained on; training again forgets it."""
        probs = self.predict_proba(X)
        y = np.asarray(y)
        check_consistent_length(probs, y)
        strange = np.setdiff1d(y, self.classes_)
        if len(strange):
            raise ValueError(f"y has classes that were not trained on: {strange}")
        self.conformal_scores_ = 1 - probs[np.arange(len(y)), np.searchsorted(self.classes_, y)]
        return self

    def predict_set(self, X: Any, level: float = 0.9) -> Array:
        """Which classes are in a set that contains the true one with probability ``level``, ``(rows, classes)``.

        The sets are those of :func:`gossamer.conformal.class_sets` with ``score="lac"``; the most probable class is
        always among them. Needs :meth:`conformalize`.
        """
        probs = self.predict_proba(X)
        if not hasattr(self, "conformal_scores_"):
            raise ValueError("predict_set promises a coverage: call conformalize(X, y) first, with rows not trained on")
        sets: Array = 1 - probs <= float(threshold(torch.from_numpy(self.conformal_scores_), level))
        sets[np.arange(len(sets)), probs.argmax(axis=1)] = True
        return sets

    def _encoded(self, rows: Rows) -> Rows:
        """Classes as numbers from 0; weights multiplied by those of the classes."""
        index = np.searchsorted(self.classes_, rows.y)
        if self.class_weight == "balanced":  # by weight, where scikit-learn counts rows
            mass = np.bincount(index, rows.weight, len(self.classes_))
            of_class = mass.sum() / (len(mass) * np.where(mass > 0, mass, 1))
        else:
            of_class = compute_class_weight(self.class_weight, classes=self.classes_, y=rows.y)
        return Rows(rows.x, index[:, None].astype(np.float64), rows.weight * of_class[index])
