"""The local scales τ = 1/(1 + e^-ρ), learnt by mirror descent in their logit ρ (Ke and Fan, arXiv 2210.12957, 2.3).

With σ = ατ the divergence from the target, per example, is J = E L + (KL to the prior)/N, and

    dJ/dτ = α (α d τ + ε g) - T/(N τ)

for one draw w = μ + ατε with gradient g. The paper steps ρ ← ρ - η dJ/dτ. J is a mean over N examples, so this step
is of order 1/N and τ hardly moves during training. The default steps by η Nτ/T times the slope, which is η times the
slope of the whole divergence in log τ: near the minimum, the distance in log τ shrinks by 1 - 2η (1 - τ) per step, for
every N, T and τ.
"""

import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import Tensor

from gossamer.optim.sampler import LIMITS, Each, Sampler, check_settings, times
from gossamer.types import Schedule

LARGEST_STEP = 1.0  # of ρ: an outlying draw in a steep valley may ask for thousands, from which τ would not recover
LARGEST_LOGIT = 20.0  # beyond it float32 cannot tell 1 - τ from 0


class ScaledSampler(Sampler):
    """An optimizer with a local scale τ per weight. It stores ρ less its start: zero stands for a fresh weight."""

    usual_scale_lr: ClassVar[float]

    def __init__(self, params: Iterable[Any], defaults: dict[str, Any], generator: torch.Generator | None) -> None:
        check_settings({"n_data": defaults["n_data"]}, LIMITS)  # the values below depend on it
        usual = {"temperature": 1.0, "momentum": 0.9, "scale_lr": self.usual_scale_lr}
        if defaults["mode"] == "reference":
            usual = {"temperature": defaults["n_data"] ** -0.5, "momentum": 0.1, "scale_lr": 0.1}
        super().__init__(
            params, usual | {k: v for k, v in defaults.items() if v is not None or k not in usual}, generator
        )

    def _complete(self, group: dict[str, Any], schedules: dict[str, Schedule]) -> None:
        """Reject scales that cannot be learnt, and fill in the global one."""
        super()._complete(group, schedules)
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
            variance = (group["temperature"] or 1.0) / (group["n_data"] * group["weight_decay"])
            group["global_scale"] = math.sqrt(variance)

    def _scales(self, group: dict[str, Any], params: list[Tensor]) -> list[Tensor]:
        """τ of each parameter."""
        if not params:
            return []
        offsets = self._buffers(params, "scale_logit")
        return list(torch._foreach_sigmoid(torch._foreach_add(offsets, _logit(group["local_scale"]))))

    def _learn_scales(
        self,
        group: dict[str, Any],
        params: list[Tensor],
        scales: list[Tensor],
        probes: list[Tensor],
        grads: list[Tensor],
        decay: Each,
    ) -> None:
        """Step ρ by the slope of the divergence at τ = ``scales``; ``probes`` are the ε of each weight."""
        offsets, scale, n_data = self._buffers(params, "scale_logit"), global_scale(group), group["n_data"]
        steps = torch._foreach_mul(scales, times(scale, decay))
        torch._foreach_add_(steps, torch._foreach_mul(probes, grads))  # α d τ + ε g
        if group["mode"] == "reference":
            steps = torch._foreach_mul(steps, scale)
            torch._foreach_sub_(steps, torch._foreach_reciprocal(torch._foreach_mul(scales, n_data)))
            torch._foreach_sub_(offsets, torch._foreach_mul(steps, group["scale_lr"]))
            return
        torch._foreach_mul_(steps, torch._foreach_mul(scales, n_data / group["temperature"] * scale))
        torch._foreach_sub_(steps, 1)
        steps = torch._foreach_mul(steps, group["scale_lr"])
        torch._foreach_clamp_min_(steps, -LARGEST_STEP)
        torch._foreach_clamp_max_(steps, LARGEST_STEP)
        torch._foreach_sub_(offsets, steps)
        start = _logit(group["local_scale"])
        torch._foreach_clamp_min_(offsets, -LARGEST_LOGIT - start)
        torch._foreach_clamp_max_(offsets, LARGEST_LOGIT - start)


def global_scale(group: dict[str, Any]) -> float:
    """α: in reference mode k l^¾."""
    is_reference = group["mode"] == "reference"
    scale: float = group["temperature"] * group["lr"] ** 0.75 if is_reference else group["global_scale"]
    return scale


def _logit(scale: float) -> float:
    return math.log(scale / (1 - scale))
