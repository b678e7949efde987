"""What an estimator is told, checked when it is fitted: scikit-learn sets parameters without asking."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch

from gossamer.names import unknown
from gossamer.runs.settings import check_type, options_of

__all__ = ["check_parameters", "default_density", "method_options"]

# All three were chosen by held-out log density and by the variables found, on scikit-learn's small data sets and on
# simulated tables. Rows are few there: with the KL weight of 0.02 that digits like best, a network of this size learns
# the noise by heart; and of the weights of a wide table a tenth are too many for the rows to say anything about.
KL_WEIGHT = 1.0
MAX_DENSITY = 0.1
MIN_ACTIVE = 500
# The loss of a number has the curvature 1/noise², which grows as the noise is learnt: a table that is predicted well is
# steeper than any image. Methods without a step size for each weight diverge there at the rates that classes take, and
# rarely as far as infinity. These were chosen by held-out log density on three tables: two noisy ones and one in which
# the noise is a thirtieth of the target. Colder samplers were the less stable ones, and too sure of themselves.
# A cold start of em_mcmc was worse on a fourth (diabetes, three folds and seeds: mean R² 0.41; with noise always 0.45).
FOR_NUMBERS: dict[str, dict[str, float]] = {
    "sgd": {"lr": 0.003},
    "rigl": {"lr": 0.003},
    "cv_adam": {"lr": 0.03},
    "cv_sghmc": {"lr": 0.003, "temperature": 1.0},
    "em_mcmc": {"lr": 0.003, "temperature": 1.0, "cold": 0.0},
}
WITH_RATES = {"optimizer", "preset", "mode"}  # options that bring a rate of their own


def method_options(
    method: str,
    density: float | None,
    options: Mapping[str, Any] | None,
    n_weights: int,
    n_data: float,
    *,
    of_numbers: bool = False,
) -> dict[str, Any]:
    """Options of a method: those given, then those for tables; an unknown one is an error that names the nearest.

    Example:
        >>> method_options("rigl", 0.5, {"lr": 0.01}, n_weights=1000, n_data=300)
        {'density': 0.5, 'lr': 0.01}
        >>> method_options("ssvi", None, None, n_weights=1000, n_data=300)
        {'kl_weight': 1.0, 'density': 0.1}
        >>> method_options("em_mcmc", None, {"feedback": True}, n_weights=1000, n_data=300, of_numbers=True)
        {'lr': 0.003, 'temperature': 1.0, 'cold': 0.0, 'feedback': True}
    """
    known = options_of(method)
    # Searches over grids of numpy give numpy's numbers.
    given = {name: value.item() if isinstance(value, np.generic) else value for name, value in (options or {}).items()}
    if density is not None:
        if "density" not in known:
            raise ValueError(f"method {method!r} takes no density: leave density=None. Its options: {', '.join(known)}")
        if "density" in given:
            raise ValueError("density is given twice, as a parameter and among the options: give it once")
        given = {"density": density} | given
    for name, value in given.items():
        if name not in known:
            raise ValueError(unknown(f"option of {method}", name, known))
        check_type(f"option {name} of {method}", value, known[name][0])
    for_tables = {"kl_weight": KL_WEIGHT, "density": default_density(n_weights, n_data)}
    if of_numbers and not WITH_RATES & given.keys():
        for_tables |= FOR_NUMBERS.get(method, {})
    return {name: value for name, value in for_tables.items() if name in known and name not in given} | given


def default_density(n_weights: int, n_data: float) -> float:
    """A tenth, or as many active weights as a quarter of the rows, but at least 500.

    Example:
        >>> default_density(5_000, n_data=300), default_density(100_000, n_data=8_000)
        (0.1, 0.02)
    """
    return min(MAX_DENSITY, max(MIN_ACTIVE, n_data / 4) / n_weights)


def check_parameters(parameters: Mapping[str, Any]) -> None:
    """Refuse parameters of an estimator that cannot work.

    Example:
        >>> check_parameters({"max_steps": 0})
        Traceback (most recent call last):
        ValueError: max_steps must be a whole number, at least 1; got 0
    """
    for name, value in parameters.items():
        if name in ("max_steps", "batch_size", "n_draws", "patience"):
            _check_count(name, value)
        elif name == "validation_fraction":
            _check_share(name, value, bounds_too=False)
        elif name == "threshold":
            _check_share(name, value, bounds_too=True)
        elif name == "hidden":
            _check_hidden(value)
        elif name == "device":
            _check_device(value)
        elif name == "noise" and value not in ("constant", "varying"):
            raise ValueError(f"noise must be 'constant' or 'varying'; got {value!r}")


def _check_count(name: str, value: Any) -> None:
    is_whole = isinstance(value, Integral) and value is not True
    if not is_whole or value < 1:
        raise ValueError(f"{name} must be a whole number, at least 1; got {value!r}")


def _check_share(name: str, value: Any, *, bounds_too: bool) -> None:
    inside = isinstance(value, Real) and (0 < float(value) < 1 or (bounds_too and value in (0, 1)))
    if not inside:
        words = "from 0 to 1" if bounds_too else "between 0 and 1"
        raise ValueError(f"{name} must be a number {words}; got {value!r}")


def _check_hidden(hidden: Any) -> None:
    if not isinstance(hidden, Sequence) or isinstance(hidden, str):
        raise ValueError(f"hidden must be the widths of the hidden layers, as (64,) or (); got {hidden!r}")
    for i, width in enumerate(hidden):
        _check_count(f"hidden[{i}]", width)


def _check_device(device: Any) -> None:
    if device not in ("auto", "cpu", "cuda"):
        raise ValueError(f"device must be 'auto', 'cpu' or 'cuda'; got {device!r}")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device cuda was asked for, but torch sees no CUDA device: use device='cpu'")
