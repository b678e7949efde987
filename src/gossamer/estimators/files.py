"""Fitted estimators in safetensors files: no pickle, so reading a file cannot run code."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
import torch
from torch import Tensor

from gossamer.data.own.columns import Columns
from gossamer.estimators.draws import Draws
from gossamer.estimators.importance import PackedGroups
from gossamer.estimators.table import Array, Scaling
from gossamer.files import container
from gossamer.files.schema import Count, Entries, made

KIND = "gossamer estimator"
FORMAT = 2  # 1: importances that were probabilities, one network
FIX = "save the estimator again"
MAX_TEXT = 2**12  # bytes of a label, and
MAX_TEXTS = 2**28  # of all labels together: numpy stores each as long as the longest
GONE = {"early_stopping", "validation_fraction", "patience"}  # parameters that older files have
LEAST_DENSITY = 2**-12  # of stored weights, beside a million: predicting needs the dense network


class Learnt(TypedDict):
    """Attributes that a fitted estimator shows."""

    n_features_in_: Count
    feature_names_in_: NotRequired[Array]
    feature_importances_: Array
    n_steps_: NotRequired[Count]
    n_samples_seen_: float
    loss_curve_: NotRequired[Array | list[float]]
    conformal_scores_: NotRequired[Array]
    classes_: NotRequired[Array]
    _y_ndim: NotRequired[Literal[1, 2]]
    largest_error_: NotRequired[Array]
    held_out_noise_: NotRequired[Array]


@dataclass(frozen=True)
class Kept:
    """What a file holds beside the parameters."""

    learnt: Learnt
    columns: Columns
    groups: PackedGroups
    draws: Draws
    inputs: Scaling
    targets: Scaling


def write(path: Path, name: str, parameters: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Write parameters and fitted state of an estimator of class ``name``; the file appears whole or not at all."""
    try:
        container.write(path, KIND, FORMAT, {"class": name, "parameters": _plain(parameters), "fitted": _plain(fitted)})
    except TypeError as error:
        raise TypeError(
            f"{name} cannot be saved: {error}. Parameters must be numbers, strings or containers of them: give the "
            "random state as a number, and criteria by name"
        ) from error


def read(path: Path, name: str) -> tuple[dict[str, Any], Kept]:
    """Parameters and fitted state of an estimator of class ``name``; an error names what is wrong in the file."""
    state = container.read(path, KIND, FORMAT)
    if state.get("format", int) < FORMAT:
        version = state.get("gossamer", str)
        raise ValueError(f"{path} was written by gossamer {version}, before 0.3: fit the estimator again")
    if (given := state.get("class", str)) != name:
        raise ValueError(f"{path} holds a {given}: use {given}.load")
    parameters, fitted = (_restored(state.get(part, dict), path) for part in ("parameters", "fitted"))
    fitted.pop("stream", None)  # from which older versions could train on
    kept = made(Kept, fitted, path, FIX)
    _check(kept, path)
    return {name: value for name, value in parameters.items() if name not in GONE}, kept


def _check(kept: Kept, path: Path) -> None:
    learnt, draws, groups, inputs = kept.learnt, kept.draws, kept.groups, kept.inputs
    n, importance = learnt["n_features_in_"], learnt["feature_importances_"]
    network, classes, names = draws.architecture, learnt.get("classes_"), learnt.get("feature_names_in_")
    levels = kept.columns.levels.values()  # a row of the table becomes so many numbers:
    n_inputs = kept.columns.n_columns - len(levels) + kept.columns.missing.size + sum(map(len, levels))
    for holds, field in [
        (importance.shape == (n,) and _is_finite(importance), "learnt/feature_importances_"),
        (kept.columns.n_columns == n and kept.columns.is_consistent(), "columns"),
        (names is None or names.shape == (n,), "learnt/feature_names_in_"),
        (classes is None or (classes.shape == (network.n_outputs,) and network.n_outputs > 1), "learnt/classes_"),
        (0 < learnt["n_samples_seen_"] < math.inf, "learnt/n_samples_seen_"),
        (_is_finite(np.ravel(learnt.get("conformal_scores_", np.zeros(1)))), "learnt/conformal_scores_"),
        (_is_finite(learnt.get("largest_error_", np.zeros(1))), "learnt/largest_error_"),
        (_is_finite(learnt.get("held_out_noise_", np.zeros(1))), "learnt/held_out_noise_"),
        (_fits(inputs, n_inputs) and len(inputs.columns) == network.n_inputs, "inputs"),
        (_fits(kept.targets, len(kept.targets.columns)) and _n_targets(kept), "targets"),
        (_are_groups(groups, n), "groups"),
        (_are_draws(draws), "draws"),
    ]:
        if not holds:
            raise ValueError(f"{path}: {field} does not fit the other entries; {FIX}")


def _n_targets(kept: Kept) -> bool:
    """Whether there are as many scales as targets: one of classes; a noise that varies is an output, too."""
    n, network = len(kept.targets.columns), kept.draws.architecture
    return n == 1 if "classes_" in kept.learnt else n * (1 if network.constant_noise else 2) == network.n_outputs


def _is_finite(array: Array) -> bool:
    return array.dtype.kind in "biuf" and array.ndim == 1 and bool(np.isfinite(array).all())


def _fits(scaling: Scaling, n: int) -> bool:
    """Whether all columns of a scaling are among ``n``."""
    columns, mean, scale = scaling.columns, scaling.mean, scaling.scale
    sizes = columns.ndim == 1 and columns.shape == mean.shape == scale.shape
    within = columns.dtype.kind == "i" and bool(((columns >= 0) & (columns < n)).all())
    return sizes and within and _is_finite(mean) and _is_finite(scale) and bool((scale >= 0).all())


def _are_groups(groups: PackedGroups, n: int) -> bool:
    of_groups, columns = groups["groups"], groups["columns"]
    for array in (of_groups, columns):
        if array.dtype != np.float64 or array.shape[1:] != (3,) or not np.isfinite(array).all():
            return False
    sizes, at = of_groups[:, 0], columns[:, 0]
    whole = bool((sizes == sizes.round()).all() and (at == at.round()).all())
    return whole and bool((sizes >= 1).all() and ((at >= 0) & (at < n)).all()) and sizes.sum() == len(columns)


def _are_draws(draws: Draws) -> bool:
    network = draws.architecture
    widths = (network.n_inputs, *network.hidden, network.n_outputs)
    n_stored = sum(value.numel() for value in draws.values.values())
    if len(network.hidden) >= len(draws.values):  # of which each layer has two
        return False
    if min(widths) < 1 or network.n_weights * LEAST_DENSITY > n_stored + 2**20 * LEAST_DENSITY:
        return False
    shapes = draws.shapes()
    if not shapes.keys() == draws.position.keys() == draws.values.keys():
        return False
    for name, shape in shapes.items():
        position, values = draws.position[name], draws.values[name]
        whole = position.dtype == torch.int64 and position.dim() == 1 and values.is_floating_point()
        if not whole or values.shape != (len(draws), len(position)) or not len(draws) or not values.isfinite().all():
            return False
        if len(position) and not 0 <= int(position.min()) <= int(position.max()) < math.prod(shape):
            return False
    return True


def _plain(value: Any) -> Any:
    """Arrays as tensors or lists, numpy numbers as Python's: what a checkpoint can hold."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "OUS":
            return {_ARRAY: value.dtype.str, "items": _plain(value.tolist())}
        return {_ARRAY: value.dtype.str, "items": torch.from_numpy(np.ascontiguousarray(value))}
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_plain(item) for item in value)
    return value


def _restored(value: Any, path: Path) -> Any:
    if isinstance(value, dict) and _ARRAY in value:
        stored = Entries(path, value)
        return _array(stored.get(_ARRAY, str), stored.get("items", Tensor | list), path)  # type: ignore[arg-type]
    if isinstance(value, dict):
        return {key: _restored(item, path) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_restored(item, path) for item in value)
    return value


def _array(name: str, items: Tensor | list[Any], path: Path) -> Array:
    """The array, whose type must be that of its items: a file could ask for any memory."""
    try:
        dtype, n = np.dtype(name), 1 if isinstance(items, Tensor) else len(items)
        if isinstance(items, Tensor) and items.numpy().dtype == dtype:
            return items.numpy()
        if dtype.kind in "OUS" and dtype.itemsize <= MAX_TEXT and n * dtype.itemsize <= MAX_TEXTS:
            return np.asarray(items, dtype=dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise ValueError(f"{path}: an array cannot be of type {name!r:.30} ({error!s:.60}); {FIX}") from error
    raise ValueError(f"{path}: an array of type {name!r:.30} does not hold such items; {FIX}")


_ARRAY = "__array__"
