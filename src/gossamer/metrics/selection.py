"""Metrics of a selection of variables against those that matter."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["false_discovery_rate", "false_non_discovery_rate"]


def false_discovery_rate(selected: Tensor, relevant: Tensor) -> float:
    """FDR: share of what is selected that is irrelevant; 0 where nothing is selected.

    Args:
        selected: Which variables are selected, ``(variables,)`` booleans.
        relevant: Which of them matter.

    Example:
        >>> false_discovery_rate(torch.tensor([True, True, False]), torch.tensor([True, False, True]))
        0.5
    """
    _require_masks(selected, relevant)
    return _share(selected & ~relevant, selected)


def false_non_discovery_rate(selected: Tensor, relevant: Tensor) -> float:
    """FNDR: share of what is not selected that is relevant; 0 where everything is selected.

    It is small by nature where there are many variables: one that is missed among 1,000 is a rate of about 0.001.

    Args:
        selected: Which variables are selected, ``(variables,)`` booleans.
        relevant: Which of them matter.

    Example:
        >>> false_non_discovery_rate(torch.tensor([True, False, False]), torch.tensor([True, False, True]))
        0.5
    """
    _require_masks(selected, relevant)
    return _share(relevant & ~selected, ~selected)


def _share(part: Tensor, whole: Tensor) -> float:
    return int(part.sum()) / max(1, int(whole.sum()))


def _require_masks(selected: Tensor, relevant: Tensor) -> None:
    if selected.dtype != torch.bool or relevant.dtype != torch.bool:
        raise ValueError(f"selected and relevant must be booleans; got {selected.dtype} and {relevant.dtype}")
    if selected.dim() != 1 or selected.shape != relevant.shape or not len(selected):
        shapes = f"{tuple(selected.shape)} and {tuple(relevant.shape)}"
        raise ValueError(f"selected and relevant must be (variables,), one or more of them; got {shapes}")
