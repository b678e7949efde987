"""EM-MCMC (Ke and Fan, arXiv 2210.12957, Algorithm 3): cyclical SGHMC that prunes groups of weights as it samples.

Groups of small weights get a large weight decay, those of large ones a small one (spike and slab); what has become too
small is cut, for good (DFP) or until its gradient brings it back (DPF, ``feedback=True``). A density can be asked for
in the place of the paper's hard threshold.

By default the training has two parts. In the first, to the middle of the second cycle, there is no noise, and the
network is pruned; then it samples. Noise of temperature T lifts a weight of which the data say nothing to a mean square
of T/(N d), N the number of examples and d the weight decay. Where that is more than what the network began with, as it
is on small data, neither a threshold nor a ranking by size tells such weights from those that matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.convert import sparsify
from gossamer.methods._cyclical import released_rate, released_snapshots
from gossamer.methods._parts import first_given, noise_of_all_ranks, refresh_of, update_period_for
from gossamer.methods._pruning_presets import OWN, PresetName, Pruning, pruning_of
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots, ends_of_cycles
from gossamer.schedules import after, cubic, cyclical
from gossamer.schedules import warmup as rising
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.sparsity.choosing import Scope
from gossamer.sparsity.groups import grouped_weights
from gossamer.sparsity.ranks import world_size
from gossamer.types import Method, Mode, Rule, Schedule, Task

__all__ = ["em_mcmc"]

Group = Literal["channel", "kernel", "input", "output", "weight"]
Criterion = Literal["range", "signed_range", "mean_square"]
HELD_BACK = 1e-3  # the mean square over which noise alone must not lift what is held back: the paper's λ2


def em_mcmc(
    task: Task,
    steps: int,
    *,
    feedback: bool = False,
    feedback_until: float | None = None,
    target_density: float | None = None,
    group: Group | None = None,
    scope: Scope | None = None,
    criterion: Criterion | None = None,
    soft_threshold: float | None = None,
    hard_threshold: float | None = None,
    slab_decay: float | None = None,
    spike_decay: float | None = None,
    spike_probability: float | None = None,
    em_warmup: float | None = None,
    warmup: float | None = None,
    until: float | None = None,
    cold: float | None = None,
    update_period: int | None = None,
    prune_linear: bool | None = None,
    lr: float | None = None,
    lr_warmup: float | None = None,
    temperature: float | None = None,
    momentum: float | None = None,
    scale_lr: float | None = None,
    cycles: int | None = None,
    per_cycle: int = 3,
    burn_in: float | None = None,
    refresh_batchnorm: bool = False,
    preset: PresetName | None = None,
    mode: Mode = "default",
) -> Method:
    """EM-MCMC: a sampler with spike and slab that prunes groups of weights on the way; its posterior are snapshots.

    Args:
        task: The task; its number of training examples scales the noise.
        steps: Length of the training.
        feedback: Whether what is pruned may return (DPF); otherwise it is gone, and its storage with it (DFP).
        feedback_until: Share of the training after which nothing returns any more.
        target_density: Share of weights that stay, in the place of ``hard_threshold``; reached by a cubic at ``until``.
        group: What is decayed and pruned as a whole, in every layer. ``"channel"`` is the paper's: kernels of
            convolutions decay, their input and output channels are pruned; input units of linear layers do both. It
            is the default but with a density, which is one of single weights: a twentieth of the units of every layer
            would leave 3 of 64 pixels.
        scope: Of a density: ``"layer"`` for one in each, ``"global"`` for one threshold, and so one density, for all;
            the default for single weights.
        criterion: Score of a group: the mean square, and in presets and the reference mode the range for convolutions.
        soft_threshold: Mean square below which a group is in the spike; otherwise that of its layer before training.
        hard_threshold: Score below which a group is pruned; otherwise a tenth of the mean square of its layer before
            training. Presets have numbers of their own for both.
        slab_decay: Weight decay of groups in the slab, and of all that is not grouped.
        spike_decay: Weight decay of groups in the spike: 0.01, or what it takes in a short training for what is in the
            spike to fall under the hard threshold by ``until``. With feedback and noise, it is at least such that noise
            alone lifts nothing over the hard threshold.
        spike_probability: Prior probability of the spike, from which the M-step derives the soft threshold; instead of
            ``soft_threshold``.
        em_warmup: Share of the training before the first choice between spike and slab; a quarter of ``until``.
        warmup: Share of the training before the first pruning; two thirds of ``until``.
        until: Share of the training after which nothing is pruned any more: to the middle of the second of three cycles
            or more, otherwise 0.75; in presets and reference mode 1, and 0.75 with a target density.
        cold: Share of the training, at its start, without noise: ``until``; in presets and reference mode 0.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        prune_linear: Whether linear layers take part; in presets and reference mode, where it is not given, only those
            of networks without convolutions.
        lr: Learning rate at the start of each cycle; 0.1, and 1 in reference mode.
        lr_warmup: Share of the training over which the learning rate rises from 0: many inputs at a high rate kill
            units of a small network for good.
        temperature: 1 samples the posterior; 0.1. In reference mode it is the paper's k, 1/N or 1/√N by the preset.
        momentum: Of the velocity; 0.9, and 0.1 in reference mode.
        scale_lr: Rate at which each weight learns a step size of its own; 0, and 0.1 in reference mode.
        cycles: Of the learning rate.
        per_cycle: Snapshots a cycle, the last at its end, a fiftieth of the cycle apart; reference mode has its own.
        burn_in: Share of the training before the first snapshot; there is none without noise, before the first pruning,
            or before a density is reached in any case.
        refresh_batchnorm: Give each draw its own statistics of batch normalisation, by a pass over the training data.
        preset: The paper's hyper-parameters for one of its experiments, or our own for its simulated examples
            (``example1`` to ``3``, and ``_wide`` for more hidden units); what else is given comes first.
        mode: ``"reference"`` for the paper's noise and the released code's criterion, cycles and snapshots.
    """
    if spike_probability is not None and soft_threshold is not None:
        raise ValueError("give soft_threshold or spike_probability, from which it follows, not both")
    if target_density is not None and hard_threshold is not None:
        raise ValueError("give target_density or hard_threshold, not both")
    chosen, is_reference = pruning_of(preset, mode), mode == "reference"
    is_ours = preset is None and not is_reference
    if is_reference and preset in OWN:
        raise ValueError(f"preset {preset!r} is not the paper's: take one that is called paper_…, or mode='default'")
    rate, n_cycles = first_given(lr, chosen.cycles.lr), cycles or chosen.cycles.cycles
    given = {"em_warmup": em_warmup, "warmup": warmup, "until": until, "cold": cold}
    times = _Times.of(
        {**(_own_shares(n_cycles, until) if is_ours else _shares(chosen, target_density)), **_without_none(given)},
        steps,
    )
    period = update_period_for(steps, update_period)
    if is_reference:
        schedule = released_rate(rate, steps, n_cycles, chosen.cycles.epochs)
        at = released_snapshots(steps, n_cycles, chosen.cycles.epochs)
    else:
        rise = round(first_given(lr_warmup, chosen.lr_warmup) * steps)
        schedule, at = rising(cyclical(rate, steps, n_cycles), rise), ends_of_cycles(steps, n_cycles, per_cycle)
    # Before the first pruning, or the last where a density was asked for, networks are larger than the one wanted.
    pruned = times.warmup if target_density is None else times.until
    first_kept = max(pruned, times.cold, round(first_given(burn_in, chosen.burn_in) * steps))
    at = _kept(at, first_kept, steps)
    density: Schedule | None = None
    if target_density is not None:
        density = cubic(1.0, target_density, times.warmup, times.until)
    groups = group or ("weight" if is_ours and target_density is not None else "channel")
    heat = first_given(temperature, _temperature(chosen, task, mode))
    inertia = first_given(momentum, chosen.cycles.momentum)
    narrow = chosen.spike_decay
    if is_ours:
        narrow = max(narrow, _decay_within(times.until - times.em_warmup, rate, inertia))

    def spike_of_feedback() -> tuple[float | None, float]:
        """What is held back has the variance T/(N d) by the noise alone: it must not be lifted over the threshold."""
        acting = 0.0 if is_reference or times.cold >= times.until else heat
        lifted = acting / (task.n_data * first_given(hard_threshold, HELD_BACK if is_ours else chosen.hard_threshold))
        return chosen.feedback_spike_decay, max(narrow, min(lifted, 1 / rate))  # steps must stay stable

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        exclude = _left_whole(model, True if is_ours and prune_linear is None else prune_linear)
        soft, hard = (
            value if value is not None else _threshold(default, model, of_start=is_ours)
            for value, default in ((soft_threshold, chosen.soft_threshold), (hard_threshold, chosen.hard_threshold))
        )
        common: dict[str, Any] = {
            "groups": None if groups == "channel" else groups,
            "exclude": exclude,
            "period": period,
        }
        prune = Prune(
            model,
            optimizer,
            threshold=hard if density is None else None,
            target_density=density,
            scope=scope or ("global" if is_ours and groups == "weight" else "layer"),
            criterion=criterion or _criterion(model, mode, is_ours),
            feedback=feedback
            and _feedback_until(first_given(feedback_until, chosen.feedback_until), times.until, steps),
            warmup=times.warmup,
            until=None if feedback and world_size() > 1 else times.until,
            **common,
        )
        decay = SpikeSlabDecay(
            model,
            optimizer,
            spike_decay=first_given(spike_decay, *spike_of_feedback() if feedback else (), narrow),
            threshold=soft if spike_probability is None else None,
            spike_probability=0.5 if spike_probability is None else spike_probability,
            n_data=task.n_data,
            prune=prune,
            warmup=times.em_warmup,
            **common,
        )
        return [prune, decay]  # in this order: what is held back is put back first, and decays as well

    return Method(
        prepare=partial(sparsify, density=1.0, keep_dense=(), init="pretrained"),
        optimizer=lambda model: SGHMC(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=after(heat, times.cold) if times.cold else heat,
            momentum=inertia,
            weight_decay=first_given(slab_decay, chosen.cycles.weight_decay),
            scale_lr=first_given(scale_lr, chosen.cycles.scale_lr if is_reference else 0.0),
            mode=mode,
            generator=noise_of_all_ranks(),
        ),
        lr=schedule,
        rules=rules,
        collector=lambda: Snapshots(at, refresh_of(task) if refresh_batchnorm else None),
    )


class _Times(NamedTuple):
    """Steps after which spike and slab are chosen, pruning begins, pruning ends and noise begins."""

    em_warmup: int
    warmup: int
    until: int
    cold: int

    @classmethod
    def of(cls, shares: Mapping[str, float], steps: int) -> _Times:
        if shares["warmup"] > shares["until"]:
            raise ValueError(
                f"pruning begins at warmup and ends at until, shares of the training; got {shares['warmup']} and "
                f"{shares['until']}"
            )
        return cls(**{name: round(share * steps) for name, share in shares.items()})


def _own_shares(n_cycles: int, until: float | None) -> dict[str, float]:
    """The highest rate of the second cycle helps the network over what it loses; all later cycles are for draws."""
    end = min(0.75, 1.5 / n_cycles) if until is None else until
    return {"em_warmup": end / 4, "warmup": end * 2 / 3, "until": end, "cold": end}


def _shares(chosen: Pruning, target_density: float | None) -> dict[str, float]:
    end = 1.0 if target_density is None else 0.75
    return {"em_warmup": chosen.em_warmup, "warmup": chosen.warmup, "until": end, "cold": 0.0}


def _kept(at: Sequence[int], first: int, steps: int) -> list[int]:
    kept = [step for step in at if step > first]
    if at and not kept:
        raise ValueError(
            f"no network would be kept: the last is due at step {max(at)} of {steps}, and pruning, the cold part or "
            f"the burn-in lasts to step {first}; give a smaller until, cold or burn_in"
        )
    return kept


def _without_none(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


def _decay_within(steps: int, rate: float, momentum: float) -> float:
    """The weight decay by which a square falls to e^-4 in so many steps, of half the highest rate on average."""
    return min(4 * (1 - momentum) / (rate * max(1, steps)), 1 / rate)


def _threshold(value: float, model: nn.Module, *, of_start: bool) -> float | dict[str, float | Tensor]:
    """A number; or that share of the mean square of each layer as it is now, whatever its width and first values."""
    if not of_start:
        return value
    weights = grouped_weights(model)
    return {
        # In a stack of networks, of each for itself.
        name: value * weight.values().double().square().view(weight.networks, -1).mean(1).cpu()
        for name, weight in weights.items()
    }


def _criterion(model: nn.Module, mode: Mode, is_ours: bool) -> str | None:
    if is_ours:
        return "mean_square"
    return "signed_range" if mode == "reference" and _has_conv(model) else None


def _temperature(chosen: Pruning, task: Task, mode: Mode) -> float:
    return float(task.n_data**chosen.cycles.k_power) if mode == "reference" else chosen.temperature


def _feedback_until(share: float, end: int, steps: int) -> bool | int:
    """The step; with several ranks for ever, since DDP does not follow parameters that shrink."""
    return True if world_size() > 1 else max(1, min(end, round(share * steps)))


def _has_conv(model: nn.Module) -> bool:
    return any(weight.is_conv for weight in grouped_weights(model).values())


def _left_whole(model: nn.Module, prune_linear: bool | None) -> list[str]:
    """Names of the linear layers, where they take no part; the released code never prunes those of a CNN."""
    takes_part = not _has_conv(model) if prune_linear is None else prune_linear
    weights = grouped_weights(model)
    return [] if takes_part else [name for name, weight in weights.items() if not weight.is_conv]
