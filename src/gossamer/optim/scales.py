"""The local scales τ = 1/(1 + e^-ρ), learnt by mirror descent in their logit ρ (Ke and Fan, arXiv 2210.12957, 2.3).

With σ = ατ the divergence from the target, per example, is J = E L + (KL to the prior)/N, and

    dJ/dτ = α (α d τ + ε g) - T/(N τ)

for one draw w = μ + ατε with gradient g. The paper steps ρ ← ρ - η dJ/dτ. J is a mean over N examples, so this step
is of order 1/N and τ hardly moves during training. The default steps by η Nτ/T times the slope, which is η times the
slope of the whole divergence in log τ: near the minimum, the distance in log τ shrinks by 1 - 2η (1 - τ) per step, for
every N, T and τ.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.optim.sampler import Each, one_by_one

__all__ = ["check_scales", "learn_scales", "local_scales"]

LARGEST_STEP = 1.0  # of ρ: an outlying draw in a steep valley may ask for thousands, from which τ would not recover
LARGEST_LOGIT = 20.0  # beyond it float32 cannot tell 1 - τ from 0


def local_scales(offsets: list[Tensor], start: float) -> list[Tensor]:
    """τ from the state, which is the distance of ρ from its start, so that zero stands for a fresh weight.

    Example:
        >>> local_scales([torch.zeros(2)], start=0.25)
        [tensor([0.2500, 0.2500])]
    """
    return list(torch._foreach_sigmoid(torch._foreach_add(offsets, _logit(start))))


def learn_scales(
    group: dict[str, Any],
    offsets: list[Tensor],
    scales: list[Tensor],
    probes: list[Tensor],
    grads: list[Tensor],
    decay: Each,
    *,
    global_scale: float,
    together: bool,
) -> None:
    """Step the offsets of ρ by the slope of the divergence at τ = ``scales``; ``probes`` are the ε of each weight."""
    numbers = {"global_scale": global_scale, "n_data": group["n_data"], "rate": group["scale_lr"]}
    if group["mode"] == "reference":
        update = _foreach_published if together else one_by_one(_single_published)
    else:
        update = _foreach if together else one_by_one(_single)
        numbers |= {"temperature": group["temperature"], "start": _logit(group["local_scale"])}
    update(offsets, scales, probes, grads, decay, **numbers)


def check_scales(group: dict[str, Any]) -> None:
    """Reject scales that cannot be learnt, and fill in the global one."""
    start, learns = group["local_scale"], group["learns_scales"]
    if not (0 < start < 1 or (start == 1 and not learns)):
        raise ValueError(f"a local scale starts between 0 and 1, and at 1 only where none is learnt; got {start}")
    if group["mode"] == "reference":
        if group["global_scale"] is not None:
            raise ValueError("in reference mode the global scale is k · lr^¾: leave global_scale out")
    elif learns and group["global_scale"] is None:
        if group["weight_decay"] == 0:
            raise ValueError(
                "to learn scales without a prior (weight_decay=0) give global_scale, a bound on the posterior stds"
            )
        # The temperature may start at 0 and rise later.
        group["global_scale"] = math.sqrt((group["temperature"] or 1.0) / (group["n_data"] * group["weight_decay"]))


def _logit(scale: float) -> float:
    return math.log(scale / (1 - scale))


def _single(
    offset: Tensor,
    scale: Tensor,
    probe: Tensor,
    grad: Tensor,
    decay: float | Tensor,
    *,
    global_scale: float,
    n_data: float,
    rate: float,
    temperature: float,
    start: float,
) -> None:
    slope = n_data / temperature * global_scale * scale * (global_scale * decay * scale + probe * grad) - 1
    offset.sub_((rate * slope).clamp_(-LARGEST_STEP, LARGEST_STEP))
    offset.clamp_(-LARGEST_LOGIT - start, LARGEST_LOGIT - start)


def _foreach(
    offsets: list[Tensor],
    scales: list[Tensor],
    probes: list[Tensor],
    grads: list[Tensor],
    decay: Each,
    *,
    global_scale: float,
    n_data: float,
    rate: float,
    temperature: float,
    start: float,
) -> None:
    steps = _foreach_loss_slopes(scales, probes, grads, decay, global_scale)
    torch._foreach_mul_(steps, scales)
    torch._foreach_mul_(steps, rate * n_data / temperature)
    torch._foreach_sub_(steps, rate)
    torch._foreach_clamp_min_(steps, -LARGEST_STEP)
    torch._foreach_clamp_max_(steps, LARGEST_STEP)
    torch._foreach_sub_(offsets, steps)
    torch._foreach_clamp_min_(offsets, -LARGEST_LOGIT - start)
    torch._foreach_clamp_max_(offsets, LARGEST_LOGIT - start)


def _single_published(
    offset: Tensor,
    scale: Tensor,
    probe: Tensor,
    grad: Tensor,
    decay: float | Tensor,
    *,
    global_scale: float,
    n_data: float,
    rate: float,
) -> None:
    slope = global_scale * (global_scale * decay * scale + probe * grad) - 1 / (n_data * scale)
    offset.sub_(rate * slope)


def _foreach_published(
    offsets: list[Tensor],
    scales: list[Tensor],
    probes: list[Tensor],
    grads: list[Tensor],
    decay: Each,
    *,
    global_scale: float,
    n_data: float,
    rate: float,
) -> None:
    slopes = _foreach_loss_slopes(scales, probes, grads, decay, global_scale)
    torch._foreach_add_(slopes, torch._foreach_reciprocal(scales), alpha=-1 / n_data)
    torch._foreach_add_(offsets, slopes, alpha=-rate)


def _foreach_loss_slopes(
    scales: list[Tensor], probes: list[Tensor], grads: list[Tensor], decay: Each, global_scale: float
) -> tuple[Tensor, ...]:
    """α (α d τ + ε g)."""
    slopes = torch._foreach_mul(scales, decay)
    torch._foreach_mul_(slopes, global_scale)
    torch._foreach_addcmul_(slopes, probes, grads)
    torch._foreach_mul_(slopes, global_scale)
    return tuple(slopes)
