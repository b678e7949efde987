"""A regressor for the rows of a table, with standard deviations and intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from sklearn.utils.validation import validate_data

from gossamer.estimators.base import INPUTS, SparseBayesEstimator
from gossamer.estimators.table import Array, Rows, Scaling
from gossamer.likelihoods import Gaussian

__all__ = ["SparseBayesRegressor"]


class SparseBayesRegressor(RegressorMixin, SparseBayesEstimator):  # type: ignore[misc]
    """A sparse Bayesian network that predicts numbers, how certain they are, and which inputs matter.

    Inputs and targets are standardised by the training rows; predictions are in the original units. The noise of the
    targets is learnt: the variance of a prediction is that of the draws' means plus that of the noise. The ``n_draws``
    networks are drawn once, at the end of training: predictions are deterministic.

    Args:
        method: Any name of :func:`gossamer.methods.names`.
        hidden: Widths of the hidden layers; ``()`` is a linear model.
        density: Share of active weights, if the method takes one. ``None`` is a tenth, or less for a wide table: a
            quarter as many weights as rows, but at least 500.
        options: Options of the method by name, as in ``{"lr": 0.01}``. The rest are the method's defaults, except that
            ``kl_weight`` is 1 (the ELBO), methods with one step size for all weights have a smaller ``lr``, since
            learnt noise makes the loss steep, and samplers have a ``temperature`` of 1.
        noise: ``"constant"`` learns one noise std per target, ``"varying"`` one that depends on the inputs.
        max_steps: Optimizer steps.
        batch_size: Rows per step.
        n_draws: Networks kept for prediction; a method without a posterior has one.
        early_stopping: Whether to hold out rows, and keep the network that predicts them best.
        validation_fraction: Share of the rows that is held out.
        patience: Training ends after so many looks at the held-out rows without improvement; there are fifty looks
            over ``max_steps``.
        threshold: Inputs of at least this importance are selected.
        device: Where to train, ``"cpu"``, ``"cuda"`` or ``"auto"``; predictions are made on the CPU, in float64.
        random_state: Seed of the order of the rows, the first active weights, all noise and the draws.
        verbose: 1 shows progress on standard error.

    Attributes:
        feature_importances_: Probability that each input matters, see :mod:`gossamer.estimators.inclusion`.
        n_steps_: Steps after which the kept networks were drawn.
        loss_curve_: Loss of each step, ``(steps,)``.
        validation_curve_: Step and held-out loss of each look, ``(looks, 2)``.
        n_features_in_: Number of columns.
        feature_names_in_: Their names, if they have any.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = SparseBayesRegressor(max_steps=200, random_state=0).fit(X[::2], y[::2])
        >>> mean, std = model.predict(X[1::2], return_std=True)
        >>> low, high = model.predict_interval(X[1::2], 0.9)
        >>> mean.shape, bool(0.8 < ((low < y[1::2]) & (y[1::2] < high)).mean() < 1)
        ((221,), True)
    """

    _likelihood = Gaussian()
    _learnt = (*SparseBayesEstimator._learnt, "_y_ndim")

    def __init__(
        self,
        method: str = "ssvi",
        *,
        hidden: Sequence[int] = (50, 50),
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
        training = (method, hidden, density, options, max_steps, batch_size, n_draws)
        stopping = (early_stopping, validation_fraction, patience)
        super().__init__(*training, *stopping, threshold, device, random_state, verbose)
        self.noise = noise

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of ``X`` with their targets ``y``.

        Args:
            X: Numbers, ``(rows, columns)``: an array, a data frame or a sparse matrix.
            y: Targets, ``(rows,)`` or ``(rows, targets)``.
            sample_weight: How often each row counts, ``(rows,)``: a row of weight 3 counts as three equal rows, in
                the likelihood and in the N that divides the KL.
        """
        rows = self._validated(X, y, sample_weight, reset=True)
        self._fit(rows, 2 * rows.y.shape[1], self.noise == "constant")
        return self

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train for one pass over these rows: for a stream, or for data that do not fit into memory.

        The first call fixes the scales of inputs and targets, so it should have typical rows. The KL counts all rows
        seen so far. The schedules of the method run over ``max_steps``; after that the learning rate stays at a tenth
        of its largest value. There is no early stopping. After ``fit`` this continues from its last step. Methods
        that keep snapshots take them within ``max_steps``: make that as long as the stream.

        Args:
            X: As for :meth:`fit`.
            y: As for :meth:`fit`.
            sample_weight: As for :meth:`fit`.
        """
        rows = self._validated(X, y, sample_weight, reset=not hasattr(self, "_stream"))
        self._fit_more(rows, 2 * rows.y.shape[1], self.noise == "constant")
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of each target, and with ``return_std`` also its standard deviation √(epistemic² + aleatoric²).

        The epistemic part is the spread of the draws' means, the aleatoric part the noise that they learnt.
        """
        prediction = self.prediction(X)
        mean = self._in_units(prediction.mean.numpy())
        if not return_std:
            return mean
        return mean, self._in_shape(prediction.std.numpy() * self._targets.std)

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """Bounds that contain each target with probability ``level``, with equal probability below and above.

        They are quantiles of the mixture of the draws' normal distributions.
        """
        low, high = self.prediction(X).interval(level)
        return self._in_units(low.numpy()), self._in_units(high.numpy())

    def predict_log_density(self, X: Any, y: Any) -> Array:
        """Log density of the targets ``y`` under their predictions, ``(rows,)``; its negative mean is the NLL.

        Several targets of a row are taken to be independent given the network: their log densities add up.
        """
        prediction = self.prediction(X)
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        check_consistent_length(prediction.mean.numpy(), y)
        y = y.reshape(len(y), -1)
        if not (self._targets.scale > 0).all():
            raise ValueError("a target that was constant in training is predicted without noise: it has no density")
        standardised = torch.from_numpy(self._targets.apply(y))
        of_standardised = self._likelihood.log_predictive(prediction.outputs, standardised).numpy()
        log_density: Array = of_standardised + np.log(self._targets.scale).sum()
        return log_density

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _validated(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> Rows:
        X, y = validate_data(self, X, y, **INPUTS, multi_output=True, y_numeric=True, reset=reset)
        if reset:
            self._y_ndim = y.ndim
        return self._rows(X, y.reshape(len(y), -1).astype(np.float64), sample_weight)

    def _target_scaling(self, rows: Rows, constant: Literal["zero", "shift"]) -> Scaling:
        return Scaling.of(rows.y, rows.weight, constant)

    def _in_units(self, y: Array) -> Array:
        return self._in_shape(self._targets.undo(y))

    def _in_shape(self, y: Array) -> Array:
        return y.ravel() if self._y_ndim == 1 else y
