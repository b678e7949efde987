"""Sparse subspace variational inference (Li, Miao, Qiu and Zhang, ICLR 2024), Algorithm 1.

Mean-field Gaussian variational inference in a subspace of fixed size whose axes change during training. By default the
standard deviations follow from the curvature of the loss (:class:`gossamer.Curvature`), and SGD or Adam trains the
means. With ``std="gradient"`` they are parameters that Adam trains, with the KL in the loss. ``mode="reference"`` takes
the released code's hyper-parameters and arithmetic, with which they do not learn.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal

from torch import nn
from torch.optim import SGD, Adam, Optimizer

from gossamer.layers import WeightedKL, param_groups
from gossamer.layers.weight import RegrowStd
from gossamer.methods._parts import first_given, given, is_normed, only_with, refresh_of, update_period_for
from gossamer.methods.ensemble import of_members
from gossamer.optim import Curvature
from gossamer.posterior import InAverage, InLayers, Snapshots, ends_of_cycles
from gossamer.schedules import cosine, cyclical, rising, warmup
from gossamer.sparsity import Subspace
from gossamer.sparsity.convert import bayesianize, sparsify
from gossamer.types import Collector, Criterion, Formerly, Method, Mode, Noise, Penalty, Rule, Std, Task, no_penalty

__all__ = ["ssvi"]

OptimizerName = Literal["sgd", "adam"]
PriorName = Literal["shared", "own"]


@dataclass(frozen=True)
class _Plan:
    optimizer: OptimizerName
    lr: float
    noise: Noise = "local"
    average: float = 0.0
    lr_warmup: float = 0.0  # share of the training
    weight_decay: float = 0.0
    mean_decay: float | None = None  # where no gossamer.Curvature decays the means
    std_lr: float | None = None
    lr_is_given: bool = False
    calibrates: bool = True


REFERENCE = _Plan("sgd", lr=0.01, weight_decay=5e-4, lr_is_given=True, calibrates=False)  # of the released code
GRADIENT = _Plan("adam", lr=0.02)
PLAIN = _Plan("adam", lr=0.02, lr_warmup=0.025)
BRIEF = replace(PLAIN, noise="weights")  # with batch normalisation
NORMED = _Plan("sgd", lr=0.1, lr_warmup=0.025, noise="weights", average=0.25)  # the same, in a long training
LR = {plan.optimizer: plan.lr for plan in (PLAIN, NORMED)}
KL_WEIGHT = {"reference": 0.01, "default": 0.02}
WEIGHT_DECAY = 5e-4
OWN_PRIOR_DECAY = 5.0  # over N; chosen on functions with a gap, where 0.5 has hardly an effect (concepts)
AVERAGE_LR = 0.1  # of the first learning rate, while the network is averaged
LONG = 5_000  # steps from which on SGD and an average pay: a shorter training cannot spare its last quarter


def ssvi(
    task: Task,
    steps: int,
    *,
    density: float = 0.05,
    lr: float | None = None,
    optimizer: OptimizerName | None = None,
    temperature: float | None = None,
    weight_decay: float | None = None,
    removal: str | Criterion = "snr_abs",
    addition: str | Criterion = "sampled_gradient",
    update_period: int | None = None,
    replacement_rate: float = 0.3,
    until: float = 0.75,
    regrow_std: RegrowStd | None = None,
    prior_std: float | None = None,
    prior: PriorName = "shared",
    init_std: float | None = None,
    allocation: str | None = None,
    noise: Noise | None = None,
    refresh_batchnorm: bool = False,
    average: float | None = None,
    members: int = 1,
    cycles: Annotated[int, Formerly("members")] = 1,
    std: Std | None = None,
    std_lr: float | None = None,
    kl_weight: float | None = None,
    kl_warmup: float | None = None,
    mode: Mode = "default",
) -> Method:
    """SSVI: variational inference in a moving subspace of ``density`` times the weights.

    Args:
        density: Share of active weights.
        lr: Learning rate at the start of a cosine; 0.1 for SGD and 0.02 for Adam, 0.01 in reference mode.
        optimizer: What trains the means, ``"sgd"`` (momentum 0.9) or ``"adam"``; ``None`` is SGD for networks with
            batch normalisation in 5,000 steps or more, otherwise Adam.
        temperature: T of the posterior, σ² = T / N(h + δ); 1 is that of the ELBO, and 0 the same training without
            noise, whose weights have no σ. ``None`` is chosen by the number of examples for each active weight, and 0
            for a mixture of networks with batch normalisation, which is better without noise.
        weight_decay: δ, the weight decay of the means and the curvature of the prior; ``None`` is 5e-4, and 5/N with a
            prior of its own.
        removal: Score of the active entries; the lowest are removed.
        addition: Score of the inactive entries; the highest are added.
        update_period: Steps between updates; ``None`` is 100, or a fiftieth of a training shorter than 5,000 steps.
        replacement_rate: Share of the active weights replaced at the first update; it falls to 0 along a cosine.
        until: Share of the training after which the subspace stays as it is.
        regrow_std: σ of a new entry: ``"mean"`` of its layer, which is the default, ``"mean_raw"``, which is that of
            reference mode, or a number, as in the right half of the paper's Figure 3.
        prior_std: Standard deviation s of the prior instead of ``weight_decay``: δ = T / N s².
        prior: ``"own"`` centres the prior of each network at random weights of its own, drawn from N(0, s²) with
            s = ``prior_std`` or 2/√(active fan-in), instead of zero. It is for a mixture of several trainings on few
            data of a regression, which then differ more where there are no data. One network alone should not have it,
            and classifiers lose accuracy by it.
        init_std: Initial standard deviation; ``None`` is scaled by the active fan-in.
        allocation: How the active weights are spread over the layers; ``None`` is ``"erk"``, which had the better NLL
            on held-out digits, or ``"uniform"`` in reference mode.
        noise: ``"local"`` draws one value per output in a training step (local reparameterization), ``"weights"`` one
            per weight for the whole batch (the released ``same_noise``): half the products, noisier gradients.
            ``None`` is the second for networks with batch normalisation, the first for others and in reference mode.
        refresh_batchnorm: Recompute the batch-norm statistics of each draw, by a pass over the training data.
        average: Share of the training, at its end, over which the network is averaged (SWA). The learning rate falls to
            a tenth until then and stays there, and batch normalisation is refreshed for each draw. ``None`` is 0.25
            for networks with batch normalisation in 5,000 steps or more, otherwise 0.
        members: How many networks are trained, one after another, each for ``steps`` and with first weights, active
            entries and an order of the examples of its own; their mixture predicts.
        cycles: How many posteriors each training leaves, each at the end of a cycle of the learning rate (SeBayS);
            their mixture predicts. They take the place of an average.
        std: How the standard deviations learn: from ``"curvature"``, or by ``"gradient"``, as in the paper. ``None`` is
            the second in reference mode and where one of the next three options is given.
        std_lr: Learning rate of the raw σ, for ``std="gradient"``; ``None`` is ``lr``. Their gradient is of the order
            of ``kl_weight`` over the number of examples, so with SGD (reference mode) they hardly move unless it is
            orders of magnitude larger.
        kl_weight: β of the KL, for ``std="gradient"``; 1 is the ELBO. 0.02, and 0.01 in reference mode.
        kl_warmup: Share of the training over which β rises from 0, for ``std="gradient"``; 0.5.
        mode: ``"reference"`` for the released code's behaviour.
    """
    if cycles < 1 or (cycles > 1 and average):
        raise ValueError(f"cycles count from 1, and several take the place of an average; got {cycles} and {average}")
    several = partial(of_members, members=members, shares_steps=False)
    is_reference = mode == "reference"
    kl_options = given(std_lr=std_lr, kl_weight=kl_weight, kl_warmup=kl_warmup)
    std = std or ("gradient" if is_reference or kl_options else "curvature")
    allocation = allocation or ("uniform" if is_reference else "erk")
    own = prior == "own"
    chosen: dict[str, Any] = {"allocation": allocation} if density < 1 else {}
    prepare = partial(
        bayesianize,
        density=density,
        prior_std=prior_std,
        init_std=init_std,
        allocation=allocation,
        mode=mode,
        std=std,
    )
    subspace = partial(
        Subspace,
        total_steps=steps,
        removal=removal,
        addition=addition,
        update_period=update_period_for(steps, update_period),
        replacement_rate=replacement_rate,
        until=until,
        regrow_std=regrow_std,
    )
    moves = [subspace] if density < 1 else []  # otherwise there is nothing to move
    if std == "gradient":
        only_with("std='curvature'", temperature=temperature, optimizer=optimizer, average=average, prior=own or None)
        rise = first_given(kl_warmup, 0.5)
        beta = warmup(first_given(kl_weight, KL_WEIGHT[mode]), int(rise * steps))
        plan = replace(REFERENCE if is_reference else GRADIENT, **given(lr=lr, noise=noise, std_lr=std_lr))
        chosen |= {"std": std, "noise": plan.noise, "std_lr": first_given(std_lr, plan.lr), "kl_warmup": rise}
        penalty = WeightedKL(beta, task.n_data)
        prepare = partial(prepare, noise=plan.noise)
        return several(_method(task, steps, plan, prepare, moves, penalty, refresh_batchnorm, cycles, chosen))
    only_with("std='gradient'", **kl_options)
    usual_decay = OWN_PRIOR_DECAY / task.n_data if own else WEIGHT_DECAY
    decay = None if prior_std is not None else first_given(weight_decay, usual_decay)
    chosen |= given(weight_decay=decay)
    of_noise = given(prior_std=prior_std, prior=own or None, init_std=init_std, noise=noise)
    if temperature == 0:
        only_with("a temperature above 0", **of_noise)

    def suited_to(network: nn.Module) -> Method:
        """Held-out images chose this: in a long training batch normalisation wants SGD and an average, else Adam."""
        has_norm = is_normed(network)
        default = PLAIN if not has_norm else NORMED if steps >= LONG else BRIEF
        # Noise costs a mixture of such networks (docs/studies/noise.md), whose members differ without it.
        is_plain = temperature == 0 or (temperature is None and has_norm and members > 1 and not of_noise)
        plan = replace(
            default,
            lr=first_given(lr, LR[optimizer or default.optimizer]),
            lr_is_given=lr is not None,
            average=first_given(average, default.average),
            mean_decay=decay if is_plain else None,
            **given(optimizer=optimizer, noise=noise),
        )
        rules: list[Callable[[nn.Module, Optimizer], Rule]]
        if is_plain:  # a network without noise, which trains and moves as one with noise does
            prepared = partial(sparsify, density=density, allocation=allocation)
            ranked = "magnitude" if removal == "snr_abs" else removal  # which ranks as |μ|/σ does at one σ for all
            rules = [partial(move, removal=ranked) for move in moves]
            used = chosen if temperature == 0 else chosen | {"temperature": 0.0}
        else:
            learns = partial(Curvature, n_data=task.n_data, temperature=temperature, weight_decay=decay, own_prior=own)
            prepared, rules = partial(prepare, noise=plan.noise), [learns, *moves]
            used = chosen | {"std": std, "noise": plan.noise}
        return _method(task, steps, plan, prepared, rules, no_penalty, refresh_batchnorm, cycles, used)

    return several(replace(suited_to(nn.Identity()), adapt=suited_to))


def _method(
    task: Task,
    steps: int,
    plan: _Plan,
    prepare: Callable[..., nn.Module],
    rules: Sequence[Callable[[nn.Module, Optimizer], Rule]],
    penalty: Penalty,
    refresh_batchnorm: bool,
    cycles: int,
    chosen: dict[str, Any],
) -> Method:
    n_averaged = int(plan.average * steps) if cycles == 1 else 0
    falling = cosine(plan.lr, steps - n_averaged, AVERAGE_LR * plan.lr if n_averaged else 0.0)
    schedule = falling if cycles == 1 else cyclical(plan.lr, steps, cycles)

    def optimizer_of(model: nn.Module) -> Optimizer:
        groups = param_groups(model, plan.weight_decay, plan.std_lr)
        groups[0] |= {} if plan.mean_decay is None else {"weight_decay": plan.mean_decay}
        return SGD(groups, lr=plan.lr, momentum=0.9) if plan.optimizer == "sgd" else Adam(groups, lr=plan.lr)

    def collector() -> Collector:
        if cycles > 1:
            return Snapshots(ends_of_cycles(steps, cycles), refresh_of(task))
        if n_averaged:
            return InAverage(max(1, steps - n_averaged), max(1, steps // 1000), refresh_of(task))
        return InLayers(refresh=refresh_of(task, refresh_batchnorm))

    return Method(
        prepare=prepare,
        optimizer=optimizer_of,
        lr=rising(schedule, int(plan.lr_warmup * steps)),
        collector=collector,
        penalty=penalty,
        rules=lambda model, optimizer: [rule(model, optimizer) for rule in rules],
        chosen=chosen | {"average": n_averaged / steps},
        calibrates=plan.calibrates,
        one_rate=plan.optimizer == "sgd",
        lr_is_given=plan.lr_is_given,
    )
