"""EM-MCMC (Ke and Fan, arXiv 2210.12957, Algorithm 3): cyclical SGHMC that prunes groups of weights as it samples.

Groups of small weights get a large weight decay, groups of large weights a small one (spike and slab). Groups that
become too small are cut, for good (DFP) or until their gradient brings them back (DPF, ``feedback=True``). A density
can replace the paper's hard threshold. Everything else is in the presets (``_ke_fan``).

By default the training has two parts: up to the middle of the second cycle it prunes without noise, then it samples.
The reason: noise of temperature T lifts a weight that the data do not constrain to a mean square of T/(N d), with N
examples and weight decay d. On small data that is more than the weights started with, and then neither a threshold nor
a ranking by size tells such weights from those that matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._ke_fan import OWN, PRUNING, OfFirst, Preset, Pruning, PruningName, cycles_of, preset_of
from gossamer.methods._parts import first_given, given, noise_of_all_ranks, refresh_of, update_period_for
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots
from gossamer.schedules import after, cubic
from gossamer.schedules import warmup as rising
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.sparsity.convert import sparsify
from gossamer.sparsity.groups import GroupedWeight, grouped_weights
from gossamer.types import Method, Mode, Rule, Task

__all__ = ["em_mcmc"]

Group = Literal["channel", "kernel", "input", "output", "weight"]
# Rate, decay and temperature: held-out digits, an MLP and a conv net, three seeds; they are those of cv_sghmc.
DEFAULT = Pruning(
    Preset(lr=0.1, weight_decay=1.5e-3, momentum=0.9, tail=0.25),
    spike_decay=1e-2, soft_threshold=OfFirst(1.0), hard_threshold=OfFirst(0.1), criterion="mean_square",
    prune_linear=True, cold_first=True,
)  # fmt: skip


def em_mcmc(
    task: Task,
    steps: int,
    *,
    density: float | None = None,
    hard_threshold: float | None = None,
    feedback: bool = False,
    group: Group | None = None,
    until: float | None = None,
    update_period: int | None = None,
    lr: float | None = None,
    temperature: float | None = None,
    weight_decay: float | None = None,
    cycles: int | None = None,
    refresh_batchnorm: bool = False,
    preset: PruningName | None = None,
    mode: Mode = "default",
) -> Method:
    """EM-MCMC: a spike-and-slab sampler that prunes groups of weights as it goes; its posterior is a set of snapshots.

    Args:
        density: Share of weights that stay; reached along a cubic at ``until``.
        hard_threshold: Instead of a density, the score below which a group is pruned; by default a tenth of the mean
            square of its layer before training.
        feedback: Whether pruned groups may return (DPF); otherwise their storage is freed (DFP).
        group: What is decayed and pruned as a whole. ``"channel"`` is the paper's: kernels of convolutions decay, their
            input and output channels are pruned; input units of linear layers do both. It is the default, except with
            a density, which counts single weights, with one threshold for the whole network: a twentieth of the units
            would leave 3 of 64 pixels.
        until: Share of the training after which pruning stops and noise begins: the middle of the second cycle if there
            are three or more, otherwise 0.75. In presets and reference mode there is noise from the start, and it is
            1, or 0.75 with a density.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        lr: Learning rate at the start of each cycle; 0.1, and 1 in reference mode.
        temperature: 1 samples the posterior; the default is 0.1, and 1 for numbers. In reference mode it is the paper's
            k, 1/N or 1/√N by preset.
        weight_decay: Weight decay of groups in the slab, and of ungrouped parameters.
        cycles: Number of cycles of the learning rate; each that ends after the pruning gives a network.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        preset: The paper's hyper-parameters for one of its experiments, or our own for its simulated examples
            (``example1`` to ``3``, and ``_wide`` for more hidden units); other options override it.
        mode: ``"reference"`` for the paper's noise and the released code's criterion, cycles and snapshots.
    """
    if density is not None and hard_threshold is not None:
        raise ValueError("give density or hard_threshold, not both")
    if mode == "reference" and preset in OWN:
        raise ValueError(f"preset {preset!r} is not the paper's: take one that is called paper_…, or mode='default'")
    chosen, is_reference = preset_of(preset, mode, DEFAULT, PRUNING), mode == "reference"
    is_published = chosen is not DEFAULT
    if not is_published and task.has_numbers:
        chosen = replace(DEFAULT, temperature=1.0)
    sampler = replace(chosen.sampler, **given(lr=lr, weight_decay=weight_decay, cycles=cycles))
    chosen = replace(chosen, sampler=sampler, **given(hard_threshold=hard_threshold))
    heat = first_given(temperature, task.n_data**sampler.k_power if is_reference else chosen.temperature)
    hard, kind = chosen.hard_threshold, group or ("weight" if chosen.cold_first and density else "channel")
    times = _times(chosen, steps, until, has_density=density is not None)
    schedule, at = cycles_of(mode, sampler, steps)
    if not is_reference:
        schedule = rising(schedule, round(chosen.lr_warmup * steps))
    # Before the first pruning, or the last where a density was asked for, networks are larger than the one wanted.
    pruned = times.prune_from if density is None else times.prune_until
    at = _kept(at, max(pruned, times.cold_until, round(chosen.burn_in * steps)), steps)
    held_heat = 0.0 if is_reference or times.cold_until >= times.prune_until else heat
    spike_decay = _spike_decay(chosen, times, held_heat / task.n_data, feedback)

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        weights = grouped_weights(model)
        has_conv = any(weight.is_conv for weight in weights.values())
        common = _common(chosen, weights, kind, has_conv)
        common |= {"total_steps": steps, "update_period": update_period_for(steps, update_period)}
        prune = Prune(
            model,
            optimizer,
            threshold=_threshold(chosen.hard_threshold, weights) if density is None else None,
            target_density=None if density is None else cubic(1.0, density, times.prune_from, times.prune_until),
            scope="global" if chosen.cold_first and common["groups"] == "weight" else "layer",
            criterion="signed_range" if is_reference and has_conv else chosen.criterion,
            warmup=times.prune_from / steps,
            **_ends(times, steps, feedback),
            **common,
        )
        decay = SpikeSlabDecay(
            model,
            optimizer,
            spike_decay=spike_decay,
            threshold=_threshold(chosen.soft_threshold, weights),
            prune=prune,
            warmup=times.decay_from / steps,
            **common,
        )
        return [prune, decay]  # in this order: held-back weights are put back first, and decay as well

    return Method(
        prepare=partial(sparsify, density=1.0, keep_dense=(), init="pretrained"),
        optimizer=lambda model: SGHMC(
            model.parameters(),
            lr=sampler.lr,
            n_data=task.n_data,
            temperature=after(heat, times.cold_until) if times.cold_until else heat,
            momentum=sampler.momentum,
            weight_decay=sampler.weight_decay,
            scale_lr=sampler.scale_lr if is_reference else 0.0,
            mode=mode,
            generator=noise_of_all_ranks(),
        ),
        lr=schedule,
        rules=rules,
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
        chosen={
            "group": kind,
            "until": times.prune_until / steps,
            "temperature": heat,
            "weight_decay": sampler.weight_decay,
            "cycles": sampler.cycles,
            **({"hard_threshold": hard} if density is None and not isinstance(hard, OfFirst) else {}),
        },
        calibrates=preset is None and not is_reference,
        lr_is_given=lr is not None or is_published,
    )


@dataclass(frozen=True)
class _Times:
    decay_from: int
    prune_from: int
    prune_until: int
    cold_until: int
    return_until: int


def _times(chosen: Pruning, steps: int, until: float | None, *, has_density: bool) -> _Times:
    if chosen.cold_first:
        # The high rate of the second cycle helps the network recover from pruning; later cycles are for draws.
        end = first_given(until, min(0.75, 1.5 / chosen.sampler.cycles))
        shares = end / 4, end * 2 / 3, end, end
    else:
        end = first_given(until, 0.75 if has_density else 1.0)
        shares = chosen.em_warmup, chosen.warmup, end, 0.0
    if shares[1] > end:
        raise ValueError(f"this preset prunes from {shares[1]:g} of the training on: until must be later; got {end}")
    return _Times(*(round(share * steps) for share in (*shares, chosen.feedback_until)))


def _spike_decay(chosen: Pruning, times: _Times, variance: float, feedback: bool) -> float:
    """The decay in the spike; ``variance`` is that of the noise, T/N, while weights are held back."""
    rate, narrow = chosen.sampler.lr, chosen.spike_decay
    if chosen.cold_first:  # bring a square in the spike down to e^-4 by ``until``, at half the highest rate
        shrinking = rate * max(1, times.prune_until - times.decay_from) / (1 - chosen.sampler.momentum)
        narrow = max(narrow, min(4 / shrinking, 1 / rate))
    if not feedback or chosen.cold_first:
        return narrow
    assert not isinstance(chosen.hard_threshold, OfFirst)
    lifted = variance / chosen.hard_threshold  # the decay at which noise alone lifts nothing over the threshold
    return first_given(chosen.feedback_spike_decay, max(narrow, min(lifted, 1 / rate)))  # steps must stay stable


def _common(chosen: Pruning, weights: Mapping[str, GroupedWeight], group: str, has_conv: bool) -> dict[str, Any]:
    """What is grouped, and which layers stay whole: the released code never prunes the linear layers of a CNN."""
    whole = [name for name, weight in weights.items() if has_conv and not weight.is_conv and not chosen.prune_linear]
    return {"groups": None if group == "channel" else group, "exclude": whole}


def _ends(times: _Times, steps: int, feedback: bool) -> dict[str, Any]:
    if not feedback:
        return {"feedback": False, "until": times.prune_until / steps}
    if world_size() > 1:  # DDP cannot follow a cut, so that with several ranks groups may always return
        return {"feedback": True, "until": None}
    return {
        "feedback": max(1, min(times.prune_until, times.return_until)) / steps,
        "until": times.prune_until / steps,
    }


def _threshold(value: float | OfFirst, weights: Mapping[str, GroupedWeight]) -> float | dict[str, float]:
    if not isinstance(value, OfFirst):
        return value
    return {name: value.share * float(weight.values().double().square().mean()) for name, weight in weights.items()}


def _kept(at: Sequence[int], first: int, steps: int) -> list[int]:
    kept = [step for step in at if step > first]
    if at and not kept:
        raise ValueError(
            f"no network would be kept: the last is due at step {max(at)} of {steps}, and pruning, the cold part or "
            f"the burn-in lasts to step {first}; give a smaller until, or train longer"
        )
    return kept
