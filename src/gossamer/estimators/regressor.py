"""A regressor for the rows of a table, with standard deviations and intervals."""

from dataclasses import dataclass, field
from typing import Any, Literal, Self

import numpy as np
import torch
from sklearn.base import RegressorMixin
from sklearn.utils import check_array, check_consistent_length
from torch import Tensor

from gossamer.conformal import threshold
from gossamer.estimators.base import SparseBayesEstimator, rows_of
from gossamer.estimators.plan import VARYING, has_one_rate, predictive
from gossamer.estimators.table import Array, Rows, Scaling
from gossamer.likelihoods import Gaussian
from gossamer.posterior import Prediction
from gossamer.types import Likelihood

TINY = 1e-300  # keeps 0 / 0 out where a target was constant


@dataclass(eq=False, repr=False)
class SparseBayesRegressor(RegressorMixin, SparseBayesEstimator):  # type: ignore[misc]
    """A sparse Bayesian network that predicts numbers, how certain they are, and which inputs matter.

    Inputs and targets are standardised by the training rows; predictions are in the original units. The noise of the
    targets is learnt: the variance of a prediction is that of the draws' means plus that of the noise. The ``n_draws``
    networks are drawn once, at the end of training: predictions are deterministic.

    Parameters and attributes are those of :class:`SparseBayesClassifier`, without ``class_weight`` and ``classes_``,
    and with ``largest_error_``: that of the training rows, of each target, in stds of the target.

    Args:
        noise: ``"varying"`` learns a noise std of each target that depends on the inputs, ``"constant"`` one that does
            not. ``None`` is the first, but the second for methods with one step size for all weights.
        density: As for the classifier to select; three times as much to predict.
        lr: Learning rate. ``None`` is the method's default, but a part of it for methods with one step size for all
            weights, lowered to what the loss bears: learnt noise makes it steep.
        kl_weight: β of the KL; ``None`` is 1 to select and 0.5 to predict.
        max_steps: Optimizer steps of each stage; ``None`` is 500 to select, and to predict 2,000 or a hundred epochs
            (up to 10,000, but at least twenty epochs), up to four times while the loss falls.
        batch_size: Rows per step; ``None`` is 64, and 256 to predict from more than 5,000 rows or with one step size
            for all weights, then in half the steps.
        options: Other options of the method by name; samplers have a ``temperature`` of 1.

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
    _needed = ("_y_ndim", "largest_error_")

    noise: Literal["constant", "varying"] | None = field(default=None, kw_only=True)

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train on the rows of ``X`` with their targets ``y``.

        Args:
            X: As for :meth:`SparseBayesClassifier.fit`.
            y: Targets, ``(rows,)`` or ``(rows, targets)``.
            sample_weight: How often each row counts, ``(rows,)``: a row of weight 3 counts as three equal rows, in
                the likelihood and in the N that divides the KL.
        """
        rows = rows_of(self, X, y, sample_weight, multi_output=True, y_numeric=True)
        self._y_ndim = rows.y.ndim
        targets = rows.y.reshape(len(rows.y), -1).astype(np.float64)
        self._fit(rows._replace(y=targets), 2 * targets.shape[1])
        return self

    def predict(self, X: Any, return_std: bool = False) -> Array | tuple[Array, Array]:
        """Mean of each target, and with ``return_std`` also its standard deviation √(epistemic² + aleatoric²).

        The epistemic part is the spread of the draws' means, the aleatoric part the noise that they learnt, with what
        :class:`gossamer.likelihoods.RuleOfSuccession` adds: mean and std serve as a normal distribution.
        """
        prediction = self.prediction(X)
        mean = self._in_units(prediction.mean.numpy())
        if not return_std:
            return mean
        return mean, self._in_shape(prediction.std.numpy() * self._targets.std)

    def conformalize(self, X: Any, y: Any) -> Self:
        """Calibrate :meth:`predict_interval` on rows that were not trained on.

        Its intervals are then mean ± q std, with q from these rows, and contain a new target with probability ``level``
        however wrong the network is (:func:`gossamer.conformal.scaled_intervals`), as long as new rows are like these.
        Training again forgets it.
        """
        prediction = self.prediction(X)
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        check_consistent_length(prediction.mean.numpy(), y)
        residual = (torch.from_numpy(self._targets.apply(y.reshape(len(y), -1))) - prediction.mean).abs()
        self.conformal_scores_ = (residual / prediction.std.clamp_min(TINY)).numpy()
        return self

    def predict_interval(self, X: Any, level: float = 0.9) -> tuple[Array, Array]:
        """Bounds that contain each target with probability ``level``.

        They are quantiles of the mixture of the draws' normal distributions, with equal probability below and above;
        after :meth:`conformalize` they are as wide as its rows demand.
        """
        prediction = self.prediction(X)
        if hasattr(self, "conformal_scores_"):
            reach = threshold(torch.from_numpy(self.conformal_scores_), level) * prediction.std
            low, high = prediction.mean - reach, prediction.mean + reach
        else:
            low, high = prediction.interval(level)
        return self._in_units(low.numpy()), self._in_units(high.numpy())

    def predict_log_density(self, X: Any, y: Any) -> Array:
        """Log density of the targets ``y`` under their predictions, ``(rows,)``; its negative mean is the NLL.

        Several targets of a row are taken to be independent given the network: their log densities add up. A small
        probability is left to rows like none of the training, see :class:`gossamer.likelihoods.RuleOfSuccession`.
        """
        prediction = self.prediction(X)
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        check_consistent_length(prediction.mean.numpy(), y)
        y = y.reshape(len(y), -1)
        if not (self._targets.scale > 0).all():
            raise ValueError("a target that was constant in training is predicted without noise: it has no density")
        of_standardised = self._predictive.log_predictive(prediction.outputs, torch.from_numpy(self._targets.apply(y)))
        log_density: Array = of_standardised.numpy() + np.log(self._targets.scale).sum()
        return log_density

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    @property
    def _predictive(self) -> Likelihood:
        errors = getattr(self, "largest_error_", np.zeros(1))  # files of earlier versions have none
        noise = getattr(self, "held_out_noise_", np.zeros(0))
        return predictive(self._likelihood, self.n_samples_seen_, errors.tolist(), noise.tolist())

    @property
    def _has_constant_noise(self) -> bool:
        return (
            has_one_rate(self.method, self.options, self._likelihood)
            if self.noise is None
            else self.noise == "constant"
        )

    @property
    def _in_training(self) -> Gaussian:
        return self._likelihood if self._has_constant_noise else VARYING

    def _look_back(self, rows: Rows) -> tuple[Tensor, Tensor]:
        outputs, y = super()._look_back(rows)
        self.largest_error_ = (Prediction(outputs, self._likelihood).mean - y).abs().amax(0).numpy()
        return outputs, y

    def _target_scaling(self, rows: Rows) -> Scaling:
        return Scaling.of(rows.y, rows.weight, drops_constant=False)

    def _in_units(self, y: Array) -> Array:
        return self._in_shape(self._targets.undo(y))

    def _in_shape(self, values: Array) -> Array:
        return values[..., 0] if self._y_ndim == 1 else values
