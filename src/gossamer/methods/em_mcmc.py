"""EM-MCMC (Ke and Fan, arXiv 2210.12957, Algorithm 3): cyclical SGHMC that prunes groups of weights as it samples.

Groups of small weights get a large weight decay, groups of large weights a small one (spike and slab). Groups that
become too small are cut, for good (DFP) or until their gradient brings them back (DPF, ``feedback=True``). A target
density can replace the paper's hard threshold.

By default the training has two parts: up to the middle of the second cycle it prunes without noise, then it samples.
The reason: noise of temperature T lifts a weight that the data do not constrain to a mean square of T/(N d), with N
examples and weight decay d. On small data that is more than the weights started with, and then neither a threshold nor
a ranking by size tells such weights from those that matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.convert import sparsify
from gossamer.methods._ke_fan import OWN, PRUNING, Preset, Pruning, PruningName, cycles_of, preset_of
from gossamer.methods._parts import first_given, noise_of_all_ranks, refresh_of, update_period_for
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots
from gossamer.ranks import world_size
from gossamer.schedules import after, cubic
from gossamer.schedules import warmup as rising
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.sparsity.exchange import Scope
from gossamer.sparsity.groups import GroupedWeight, grouped_weights
from gossamer.types import Method, Mode, Rule, Task

__all__ = ["em_mcmc"]

Group = Literal["channel", "kernel", "input", "output", "weight"]
Criterion = Literal["range", "signed_range", "mean_square"]
# Rate, decay and temperature: held-out digits, an MLP and a conv net, three seeds; they are those of cv_sghmc.
DEFAULT = Pruning(Preset(lr=0.1, weight_decay=1.5e-3, momentum=0.9), 1e-2, soft_threshold=1.0, hard_threshold=0.1)
HELD_BACK = 1e-3  # the mean square over which noise alone must not lift held-back weights: the paper's λ2


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
    preset: PruningName | None = None,
    mode: Mode = "default",
) -> Method:
    """EM-MCMC: a spike-and-slab sampler that prunes groups of weights as it goes; its posterior is a set of snapshots.

    Args:
        task: The task; its number of training examples scales the noise.
        steps: Length of the training.
        feedback: Whether pruned groups may return (DPF); otherwise their storage is freed (DFP).
        feedback_until: Share of the training after which no group returns.
        target_density: Share of weights that stay, instead of ``hard_threshold``; reached along a cubic at ``until``.
        group: What is decayed and pruned as a whole. ``"channel"`` is the paper's: kernels of convolutions decay, their
            input and output channels are pruned; input units of linear layers do both. It is the default, except with
            a target density, which counts single weights: a twentieth of the units would leave 3 of 64 pixels.
        scope: With a target density, ``"layer"`` gives every layer that density, ``"global"`` uses one threshold for
            the whole network; the default for single weights.
        criterion: Score of a group: the mean square; in presets and reference mode the range for convolutions.
        soft_threshold: Mean square below which a group is in the spike; by default that of its layer before training.
        hard_threshold: Score below which a group is pruned; by default a tenth of the mean square of its layer before
            training. Presets set both thresholds as numbers.
        slab_decay: Weight decay of groups in the slab, and of ungrouped parameters.
        spike_decay: Weight decay of groups in the spike: 0.01, or more in a short training, so that groups in the spike
            fall below the hard threshold by ``until``. With feedback and noise it is at least large enough that noise
            alone lifts nothing over the hard threshold.
        spike_probability: Prior probability of the spike, from which the M-step derives the soft threshold; instead of
            ``soft_threshold``.
        em_warmup: Share of the training before the first choice between spike and slab; a quarter of ``until``.
        warmup: Share of the training before the first pruning; two thirds of ``until``.
        until: Share of the training after which pruning stops: the middle of the second cycle if there are three or
            more, otherwise 0.75; in presets and reference mode 1, and 0.75 with a target density.
        cold: Share of the training, at its start, without noise: ``until``; in presets and reference mode 0.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        prune_linear: Whether linear layers are pruned; in presets and reference mode, by default only those of networks
            without convolutions.
        lr: Learning rate at the start of each cycle; 0.1, and 1 in reference mode.
        lr_warmup: Share of the training over which the learning rate rises from 0: with many inputs, a high rate at
            the start kills units of a small network for good.
        temperature: 1 samples the posterior; the default is 0.1. In reference mode it is the paper's k, 1/N or 1/√N by
            preset.
        momentum: Momentum of the sampler; 0.9, and 0.1 in reference mode.
        scale_lr: Rate at which each weight learns its own step size; 0, and 0.1 in reference mode.
        cycles: Number of cycles of the learning rate.
        per_cycle: Snapshots per cycle, a fiftieth of the cycle apart, the last at its end; ignored in reference mode.
        burn_in: Share of the training before the first snapshot. Snapshots never come before the noise, the first
            pruning, or reaching the target density.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        preset: The paper's hyper-parameters for one of its experiments, or our own for its simulated examples
            (``example1`` to ``3``, and ``_wide`` for more hidden units); other options override it.
        mode: ``"reference"`` for the paper's noise and the released code's criterion, cycles and snapshots.
    """
    if spike_probability is not None and soft_threshold is not None:
        raise ValueError("give soft_threshold or spike_probability, from which it follows, not both")
    if target_density is not None and hard_threshold is not None:
        raise ValueError("give target_density or hard_threshold, not both")
    if mode == "reference" and preset in OWN:
        raise ValueError(f"preset {preset!r} is not the paper's: take one that is called paper_…, or mode='default'")
    chosen, is_reference = preset_of(preset, mode, DEFAULT, PRUNING), mode == "reference"
    is_ours = preset is None and not is_reference
    sampler, n_cycles = chosen.cycles, cycles or chosen.cycles.cycles
    rate, inertia = first_given(lr, sampler.lr), first_given(momentum, sampler.momentum)
    heat = first_given(temperature, task.n_data**sampler.k_power if is_reference else chosen.temperature)
    # The high rate of the second cycle helps the network recover from pruning; later cycles are for draws.
    end = first_given(until, min(0.75, 1.5 / n_cycles) if is_ours else 1.0 if target_density is None else 0.75)
    usual = (end / 4, end * 2 / 3, end) if is_ours else (chosen.em_warmup, chosen.warmup, 0.0)
    shares = [*map(first_given, (em_warmup, warmup, cold), usual), end]
    em_from, prune_from, cold_until, prune_until = (round(share * steps) for share in shares)
    if shares[1] > end:
        raise ValueError(
            f"pruning begins at warmup and ends at until, shares of the training; got {shares[1]} and {end}"
        )
    schedule, at = cycles_of(mode, rate, steps, n_cycles, per_cycle=per_cycle, epochs=sampler.epochs)
    if not is_reference:
        schedule = rising(schedule, round(first_given(lr_warmup, chosen.lr_warmup) * steps))
    # Before the first pruning, or the last where a density was asked for, networks are larger than the one wanted.
    pruned = prune_from if target_density is None else prune_until
    at = _kept(at, max(pruned, cold_until, round(first_given(burn_in, chosen.burn_in) * steps)), steps)
    narrow = chosen.spike_decay
    if is_ours:  # bring a square in the spike down to e^-4 by ``until``, at half the highest rate
        narrow = max(narrow, min(4 * (1 - inertia) / (rate * max(1, prune_until - em_from)), 1 / rate))
    if feedback:
        acting = 0.0 if is_reference or cold_until >= prune_until else heat
        least = first_given(hard_threshold, HELD_BACK if is_ours else chosen.hard_threshold)
        lifted = acting / (task.n_data * least)  # the decay at which noise alone lifts nothing over the threshold
        narrow = first_given(chosen.feedback_spike_decay, max(narrow, min(lifted, 1 / rate)))  # steps must stay stable

    def rules(model: nn.Module, optimizer: Optimizer) -> Sequence[Rule]:
        weights = grouped_weights(model)
        has_conv = any(weight.is_conv for weight in weights.values())
        # The released code never prunes the linear layers of a CNN.
        prunes_linear = (is_ours or not has_conv) if prune_linear is None else prune_linear
        pruned_group = group or ("weight" if is_ours and target_density is not None else "channel")
        score = criterion or ("mean_square" if is_ours else "signed_range" if is_reference and has_conv else None)
        common: dict[str, Any] = {
            "groups": None if pruned_group == "channel" else pruned_group,
            "exclude": [] if prunes_linear else [name for name, weight in weights.items() if not weight.is_conv],
            "total_steps": steps,
            "update_period": update_period_for(steps, update_period),
        }

        def threshold(given: float | None, default: float) -> float | dict[str, float | Tensor]:
            """A mean square; the default of our own settings is a share of that of each layer before training."""
            return first_given(given, default) if given is not None or not is_ours else _share(default, weights)

        can_cut = world_size() == 1  # DDP cannot follow a cut, so that with several ranks groups may always return
        last_return = round(first_given(feedback_until, chosen.feedback_until) * steps)
        prune = Prune(
            model,
            optimizer,
            threshold=threshold(hard_threshold, chosen.hard_threshold) if target_density is None else None,
            target_density=None if target_density is None else cubic(1.0, target_density, prune_from, prune_until),
            scope=scope or ("global" if is_ours and pruned_group == "weight" else "layer"),
            criterion=score,
            feedback=max(1, min(prune_until, last_return)) / steps if feedback and can_cut else feedback,
            warmup=prune_from / steps,
            until=prune_until / steps if can_cut or not feedback else None,
            **common,
        )
        decay = SpikeSlabDecay(
            model,
            optimizer,
            spike_decay=first_given(spike_decay, narrow),
            threshold=threshold(soft_threshold, chosen.soft_threshold) if spike_probability is None else None,
            spike_probability=first_given(spike_probability, 0.5),
            n_data=task.n_data,
            prune=prune,
            warmup=em_from / steps,
            **common,
        )
        return [prune, decay]  # in this order: held-back weights are put back first, and decay as well

    return Method(
        prepare=partial(sparsify, density=1.0, keep_dense=(), init="pretrained"),
        optimizer=lambda model: SGHMC(
            model.parameters(),
            lr=rate,
            n_data=task.n_data,
            temperature=after(heat, cold_until) if cold_until else heat,
            momentum=inertia,
            weight_decay=first_given(slab_decay, sampler.weight_decay),
            scale_lr=first_given(scale_lr, sampler.scale_lr if is_reference else 0.0),
            mode=mode,
            generator=noise_of_all_ranks(),
        ),
        lr=schedule,
        rules=rules,
        collector=lambda: Snapshots(at, refresh_of(task, refresh_batchnorm)),
    )


def _share(share: float, weights: Mapping[str, GroupedWeight]) -> dict[str, float | Tensor]:
    """A share of the mean square of each layer, one for each network of a stack."""
    return {
        name: share * weight.values().double().square().view(weight.networks, -1).mean(1).cpu()
        for name, weight in weights.items()
    }


def _kept(at: Sequence[int], first: int, steps: int) -> list[int]:
    """The snapshots after step ``first``."""
    kept = [step for step in at if step > first]
    if at and not kept:
        raise ValueError(
            f"no network would be kept: the last is due at step {max(at)} of {steps}, and pruning, the cold part or "
            f"the burn-in lasts to step {first}; give a smaller until, cold or burn_in"
        )
    return kept
