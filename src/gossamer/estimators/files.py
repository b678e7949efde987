"""Fitted estimators in safetensors files: no pickle, so reading a file cannot run code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gossamer import container

KIND = "gossamer estimator"
FORMAT = 2  # 1: importances that were probabilities, one network


def write(path: Path, name: str, parameters: dict[str, Any], fitted: dict[str, Any]) -> None:
    """Write parameters and fitted state of an estimator of class ``name``; the file appears whole or not at all."""
    try:
        container.write(path, KIND, FORMAT, {"class": name, "parameters": _plain(parameters), "fitted": _plain(fitted)})
    except TypeError as error:
        raise TypeError(
            f"{name} cannot be saved: {error}. Parameters must be numbers, strings or containers of them: give the "
            "random state as a number, and criteria by name"
        ) from error


def read(path: Path, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and fitted attributes of an estimator of class ``name``."""
    state = container.read(path, KIND, FORMAT)
    if state.get("format", int) < FORMAT:
        version = state.get("gossamer", str)
        raise ValueError(f"{path} was written by gossamer {version}, before 0.3: fit the estimator again")
    if (given := state.get("class", str)) != name:
        raise ValueError(f"{path} holds a {given}: use {given}.load")
    return _restored(state.get("parameters", dict)), _restored(state.get("fitted", dict))


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


def _restored(value: Any) -> Any:
    """The inverse of :func:`_plain`."""
    if isinstance(value, dict) and _ARRAY in value:
        items = value["items"]
        return np.asarray(items.numpy() if isinstance(items, Tensor) else items, dtype=value[_ARRAY])
    if isinstance(value, dict):
        return {key: _restored(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_restored(item) for item in value)
    return value


_ARRAY = "__array__"
