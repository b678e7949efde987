"""Group spike and slab by expectation maximisation (Ke and Fan, arXiv 2210.12957, sections 3.1 and 3.2).

A group of K weights has the prior N(0, 1/δ1) in the slab, γ = 1, and N(0, 1/δ0) in the spike, γ = 0, with δ0 > δ1 and
P(γ = 0) = p. The M-step puts a group into the spike where the mean of its squares is below

    λ1 = 1/(δ0 - δ1) · (log(δ0/δ1) + 2/K · log(p/(1 - p))),

where the sampler's current weights replace the expectation over the posterior. Only the weight decay of the group
changes: δ0/N instead of δ1/N.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.schedules import step_of
from gossamer.sparsity.clock import Clocked
from gossamer.sparsity.groups import GroupedWeight, Groups, check_thresholds, grouped_weights
from gossamer.sparsity.pruning import Prune

__all__ = ["SpikeSlabDecay", "soft_threshold"]

EXTRA_DECAY = "extra_decay"  # where the samplers of gossamer.optim read a decay per entry


def soft_threshold(spike: float, slab: float, group_size: int, spike_probability: float = 0.5) -> float:
    """λ1, the mean square below which a group is in the spike.

    Args:
        spike: δ0, the precision of the spike: its weight decay times the number of training examples.
        slab: δ1, the precision of the slab.
        group_size: K, the number of weights in the group.
        spike_probability: p, the prior probability of the spike.

    Example:
        >>> round(soft_threshold(1e-3 * 50_000, 5e-4 * 50_000, 9), 4)
        0.0277
    """
    if not 0 < slab < spike < math.inf:
        raise ValueError(f"the spike must be narrower than the slab, spike > slab > 0; got {spike} and {slab}")
    if not 0 < spike_probability < 1:
        raise ValueError(f"spike_probability is the prior probability of the spike, in (0, 1); got {spike_probability}")
    odds = math.log(spike_probability / (1 - spike_probability))
    return (math.log(spike / slab) + 2 / group_size * odds) / (spike - slab)


class SpikeSlabDecay(Clocked):
    """More weight decay for groups of small weights; call :meth:`step` after ``backward``, before ``optimizer.step()``.

    The optimizer's own ``weight_decay`` is that of the slab; it takes the rest as a decay of each entry.

    Args:
        model: A plain network, or one of :func:`gossamer.sparsify`; its linear layers and convolutions take part.
        optimizer: A sampler of :mod:`gossamer.optim`.
        spike_decay: δ0/N, the weight decay of a group in the spike.
        threshold: λ1: one number, or one per layer by name; :func:`soft_threshold` gives the M-step's.
        groups: ``"kernel"``, ``"input"``, ``"output"``, ``"weight"`` or a function, see
            :mod:`gossamer.sparsity.groups`. The default is the paper's: kernels of convolutions, input units of linear
            layers.
        prune: A :class:`Prune` with feedback. The groups it holds back are in the spike, whatever their size: the loss
            does not see them, so in the slab a sampler's noise alone would make them large and bring them back. Call
            its step first.
        exclude: Names of layers that stay in the slab; ``*`` is a wildcard.
        total_steps: Length of the training, where ``warmup`` is given.
        warmup: Share of the training before the first M-step; until then every group is in the slab.
        update_period: Steps from one M-step to the next.

    Example:
        >>> from gossamer.optim import SGHMC
        >>> layer = nn.Linear(3, 2, bias=False)
        >>> _ = layer.weight.data.copy_(torch.tensor([[0.5, 0.01, 0.0], [0.5, 0.01, 2.0]]))
        >>> optimizer = SGHMC(layer.parameters(), lr=0.1, n_data=100, weight_decay=1e-3)
        >>> decay = SpikeSlabDecay(layer, optimizer, spike_decay=0.1, threshold=0.01)
        >>> layer(torch.zeros(1, 3)).sum().backward()
        >>> decay.step(), round(decay.spike_share, 3)
        (True, 0.333)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        spike_decay: float,
        threshold: float | Mapping[str, float],
        groups: str | Groups | None = None,
        prune: Prune | None = None,
        exclude: Sequence[str] = (),
        total_steps: int | None = None,
        warmup: float = 0.0,
        update_period: int = 1,
    ) -> None:
        super().__init__()
        if update_period < 1:
            raise ValueError(f"update_period counts steps from 1; got {update_period}")
        if not getattr(optimizer, "takes_extra_decay", False):
            raise ValueError(
                f"{type(optimizer).__name__} takes no decay of each entry: use a sampler of gossamer.optim; "
                "SGHMC with temperature=0 is SGD with momentum"
            )
        self.optimizer, self.spike_decay, self.threshold = optimizer, spike_decay, threshold
        self.groups, self.prune, self.update_period = groups, prune, update_period
        self.warmup_steps = step_of(warmup, total_steps, "warmup")
        self.weights = grouped_weights(model, exclude)
        self._check()
        self._in_spike: dict[str, Tensor] = {}  # one flag per group

    @property
    def spike_share(self) -> float:
        """Share of the weights that are in the spike (the paper's soft sparsity)."""
        counts = [self.weights[name].size * float(flags.double().mean()) for name, flags in self._in_spike.items()]
        return sum(counts) / sum(weight.size for weight in self.weights.values())

    def step(self) -> bool:
        """Count a step, and choose between spike and slab if that is due; returns whether it was."""
        self.index += 1
        due = self.index > self.warmup_steps and self.index % self.update_period == 0
        if due:
            self._maximise()
            self.record.append({"step": self.index, "spike_share": self.spike_share})
        return due

    def state_dict(self) -> dict[str, Any]:
        own = {"threshold": dict(self.threshold)} if isinstance(self.threshold, Mapping) else {}
        return super().state_dict() | {"in_spike": dict(self._in_spike)} | own

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._in_spike = {
            name: flags.to(self.weights[name].parameter.device) for name, flags in state["in_spike"].items()
        }
        self.threshold = state.get("threshold", self.threshold)  # of the weights that the training began with

    @torch.no_grad()
    def _maximise(self) -> None:
        """The M-step: γ = 0 where the mean square of a group is below λ1."""
        for name, weight in self.weights.items():
            if not weight.parameter.requires_grad:
                continue
            members = self._members(weight)
            mean_square = weight.values()[members].square().mean(1)
            threshold = self.threshold[name] if isinstance(self.threshold, Mapping) else self.threshold
            self._in_spike[name] = mean_square < threshold
            self.optimizer.state[weight.parameter][EXTRA_DECAY] = self._extra_decay(name, members)

    def _members(self, weight: GroupedWeight) -> Tensor:
        return weight.members(self.groups or ("kernel" if weight.is_conv else "input"))

    def _extra_decay(self, name: str, members: Tensor) -> Tensor:
        """What the spike adds to the optimizer's weight decay, in the shape of the parameter."""
        weight = self.weights[name]
        in_spike = weight.entries(weight.spread(self._in_spike[name], members))
        held = None if self.prune is None else self.prune.held_back(name)
        if held is not None:
            in_spike = in_spike | held
        return in_spike.to(weight.parameter) * (self.spike_decay - self._slab_decay(weight))

    def _slab_decay(self, weight: GroupedWeight) -> float:
        for group in self.optimizer.param_groups:
            if any(parameter is weight.parameter for parameter in group["params"]):
                return float(group["weight_decay"])
        raise ValueError(
            f"the optimizer does not hold the weight of {weight.name or 'the layer'}: build it after the conversion, "
            "from all parameters"
        )

    def _check(self) -> None:
        """Fail here rather than at the first M-step."""
        check_thresholds(self.threshold, self.weights)
        for weight in self.weights.values():
            if not weight.parameter.requires_grad:
                continue
            slab = self._slab_decay(weight)
            if not slab < self.spike_decay < math.inf:
                raise ValueError(
                    f"spike_decay must exceed the optimizer's weight_decay, which is that of the slab; got "
                    f"{self.spike_decay} and {slab}"
                )
            self._members(weight)
