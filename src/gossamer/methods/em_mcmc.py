"""EM-MCMC (Ke and Fan, arXiv 2210.12957, Algorithm 3): cyclical SGHMC that prunes groups of weights as it samples.

Groups of small weights get a large weight decay, groups of large weights a small one (spike and slab). Groups that
become too small are cut, for good (DFP) or until their gradient brings them back (DPF, ``feedback=True``). A density
can replace the paper's hard threshold. Everything else is in the presets.

By default the training prunes without noise up to the middle of the second cycle, then it samples: noise of
temperature T lifts a weight that the data do not constrain to a mean square of T/(N d), with N examples and weight
decay d. On small data that is more than the weights started with, and their size no longer tells which of them matter.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from torch import nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.methods._parts import all_active, first_given, given, noise_of_all_ranks, refresh_of, update_period_for
from gossamer.methods.cv_sghmc import DEFAULT as SAMPLER
from gossamer.methods.cv_sghmc import PRESETS, Preset, PresetName, cycles_of, preset_of
from gossamer.optim import SGHMC
from gossamer.posterior import Snapshots
from gossamer.schedules import after, cubic
from gossamer.schedules import warmup as rising
from gossamer.sparsity import Prune, SpikeSlabDecay
from gossamer.sparsity.groups import GroupedWeight, grouped_weights
from gossamer.types import Method, Mode, Rule, Task

__all__ = ["em_mcmc"]

Group = Literal["channel", "kernel", "input", "output", "weight"]
OwnName = Literal["example1", "example2", "example3", "example1_wide", "example2_wide", "example3_wide", "figure2"]


class OfFirst(NamedTuple):
    """A threshold as a share of the mean square of each layer before training."""

    share: float


@dataclass(frozen=True)
class Pruning:
    """Settings of one experiment with pruning: the sampler's, and those of spike, slab and hard threshold."""

    sampler: Preset
    spike_decay: float
    soft_threshold: float | OfFirst
    hard_threshold: float | OfFirst
    temperature: float = 0.1
    em_warmup: float = 0.25  # share of the training before the first choice between spike and slab
    warmup: float = 0.25  # before the first pruning; the paper has 50 epochs, of 3,000 (and of 6,000, and of 200)
    lr_warmup: float = 0.0  # while the rate rises: with many inputs, a high one at the start kills units for good
    burn_in: float = 0.0  # before the first snapshot
    feedback_until: float = 1.0
    feedback_spike_decay: float | None = None  # held-back weights meet no curvature, only their decay
    criterion: str | None = None  # the range for convolutions, the mean square for linear layers
    prune_linear: bool = False  # also those of a network with convolutions
    cold_first: bool = False  # prunes without noise, in the first of the cycles, and samples after that


PRUNING: dict[str, Pruning] = {
    # The released code has a warm-up of 300 in 200 epochs, so that nothing is pruned; the paper has 50 for ImageNet.
    "paper_cifar": Pruning(PRESETS["paper_cifar"], 1e-3, 1e-4, 1e-2),
    "paper_example1": Pruning(PRESETS["paper_example1"], 1e-2, 1e-2, 1e-3, em_warmup=50 / 3000, warmup=50 / 3000),
    "paper_example2": Pruning(PRESETS["paper_example2"], 1e-2, 1e-2, 1e-3, em_warmup=50 / 6000, warmup=50 / 6000),
    "paper_example3": Pruning(PRESETS["paper_example3"], 1e-2, 2e-2, 1e-3, em_warmup=50 / 3000, warmup=50 / 3000),
}
# For batches of 100, chosen on data of other seeds than those of the reproduction. The paper's spike decays, 10 and 30
# times smaller, leave irrelevant variables just above the hard threshold.
OWN: dict[str, Pruning] = {
    "example1": Pruning(
        Preset(lr=0.01, weight_decay=2e-4, cycles=6, momentum=0.9),
        spike_decay=0.3, soft_threshold=0.05, hard_threshold=3e-3, em_warmup=0.08, warmup=0.24,
        feedback_until=0.36, burn_in=0.5,
    ),
    "example2": Pruning(
        Preset(lr=0.003, cycles=6, momentum=0.9),
        spike_decay=0.3, soft_threshold=1e-2, hard_threshold=3e-3, em_warmup=0.025, warmup=0.08, lr_warmup=0.01,
        feedback_until=0.12, feedback_spike_decay=3.0, burn_in=0.5,
    ),
    "example3": Pruning(
        Preset(lr=0.01, cycles=6, momentum=0.9),
        spike_decay=0.1, soft_threshold=2e-2, hard_threshold=1e-3, em_warmup=0.05, warmup=0.15, lr_warmup=0.05,
        feedback_until=0.3, burn_in=0.5,
    ),
}  # fmt: skip
# For 24 hidden units instead of 5 or 6: the score of a variable is a mean over them.
OWN |= {
    f"{name}_wide": replace(OWN[name], soft_threshold=0.0125, hard_threshold=8e-4) for name in ("example1", "example2")
}
# More units, a steeper loss: after 1 % of the training, one network in seven was thrown so far off that it died.
OWN["example2_wide"] = replace(OWN["example2_wide"], lr_warmup=0.05)
OWN["example3_wide"] = OWN["example3"]
# Digits and a small conv net, on held-out images: much is pruned and the network still works. The paper's thresholds
# are for layers with ten times as many weights; its noise is colder still.
OWN["figure2"] = Pruning(
    Preset(lr=0.05, momentum=0.9),
    spike_decay=0.05, soft_threshold=2e-3, hard_threshold=0.03, temperature=1e-4, em_warmup=0.1, warmup=0.25,
    criterion="range", prune_linear=True,
)  # fmt: skip
PRUNING |= OWN
DEFAULT = Pruning(
    SAMPLER,
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
    preset: PresetName | OwnName | None = None,
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
        keeps_linear = has_conv and not chosen.prune_linear  # the released code does, in a CNN
        common: dict[str, Any] = {
            "groups": None if kind == "channel" else kind,
            "exclude": [name for name, weight in weights.items() if keeps_linear and not weight.is_conv],
            "total_steps": steps,
            "update_period": update_period_for(steps, update_period),
        }
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
        prepare=all_active,
        optimizer=lambda model: SGHMC(
            model.parameters(),
            lr=sampler.lr,
            n_data=task.n_data,
            temperature=after(heat, times.cold_until) if times.cold_until else heat,
            momentum=sampler.momentum,
            weight_decay=sampler.weight_decay,
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


class _Times(NamedTuple):
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


def _ends(times: _Times, steps: int, feedback: bool) -> dict[str, Any]:
    if feedback and world_size() > 1:  # DDP cannot follow a cut, so that with several ranks groups may always return
        return {"feedback": True, "until": None}
    last_return = max(1, min(times.prune_until, times.return_until))
    return {"feedback": feedback and last_return / steps, "until": times.prune_until / steps}


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
