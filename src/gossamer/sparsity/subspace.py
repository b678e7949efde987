"""The subspace and its moves: remove the least useful active weights, activate the most promising others.

SSVI, Algorithm 1 (Li et al., ICLR 2024, section 3.3), and with other criteria RigL and its relatives: every
``update_period`` steps a share of the active entries of each weight is removed by one score and as many are added by
another. The budget is constant to the last integer.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from gossamer._text.names import lookup
from gossamer.distributed import average_over_ranks, from_first_rank, world_size
from gossamer.layers import CurvatureWeight, Support, sparse_weights
from gossamer.layers.curvature import IDLE
from gossamer.layers.support import leave_broadcast
from gossamer.layers.weight import RegrowStd
from gossamer.schedules import constant, cosine
from gossamer.sparsity.candidates import best_of_all_ranks
from gossamer.sparsity.clock import Clocked, LoopWatch
from gossamer.sparsity.criteria import ADDITION, REMOVAL, GradientCriterion, random, snr_abs, snr_abs_reference
from gossamer.sparsity.exchange import Exchange, Scope, removal_scores
from gossamer.sparsity.gradients import GradientCollector, Grads, Weights, complete, fit_whole, mean_absolute
from gossamer.sparsity.moves import WeightBatch, after_steps
from gossamer.sparsity.selection import Best
from gossamer.types import Criterion, Schedule, Step

__all__ = ["Subspace"]

NOT_FINITE = "a gradient is not finite"
SUMS = "gradients of several backward passes add up"
UNSEEN = "no dense gradient was formed"
CONTINUED = (
    "the state of this optimizer carries the clock of a subspace, which goes on at step {step}: call load_state_dict() "
    "of the subspace for an exact resume, or set subspace.index = 0 before the first step of a new training"
)
HOW_TO_BE_SEEN = (
    "the weights have gradients, but no backward pass has formed their dense gradients, so the subspace does not move: "
    "call loss.backward(), not torch.autograd.grad(loss, parameters) or loss.backward(inputs=parameters)"
)


class Subspace(Clocked):
    """Moves the active weights of ``model`` during training; call :meth:`step` once per training step.

    Call it after ``optimizer.step()``, or like every other rule between ``backward()`` and ``optimizer.step()``, as
    :func:`gossamer.fit` does. Additions are decided by the same gradient in both places: the sum of the backward passes
    that ``.grad`` holds when the optimizer steps. Passes that ``zero_grad()`` clears (FGSM, saliency maps) or that come
    after the step (a generator's loss) have no say. What a penalty on gradients adds by second derivatives is not part
    of it.

    Between updates it costs nothing. Before an update the dense gradient of every weight is formed a few rows at a
    time, and only its best entries are kept. It is formed whole where the gradients of several passes add up
    (accumulation, ranks, a weight used twice), for criteria of your own and for a global budget; only
    ``loss.backward()`` does that, and ``torch.autograd.grad`` causes a warning. A gradient that is not finite
    postpones the update to the next step, and so does a second pass that could not be foreseen.

    Args:
        model: A network converted by :func:`gossamer.bayesianize` or :func:`gossamer.sparsify`.
        optimizer: Any ``torch.optim`` optimizer, or a list of several (one for the means, another for the stds); their
            states follow the moves. A layer whose mean none of them holds, or whose mean is frozen, stays as it is.
        total_steps: Length of the training. With ``None``, for a training without a planned end, ``replacement_rate``
            is constant unless it is a schedule, updates never stop, and ``until`` cannot be given.
        removal: Score of the active entries, the lowest are removed: a name in ``gossamer.sparsity.criteria.REMOVAL``
            or a function of :class:`WeightStats`.
        addition: Score of the other entries, the highest are added: a name in ``ADDITION`` or a function.
            ``multi_sample_gradient(K)`` needs ``step(closure)``.
        update_period: Steps from one update to the next, M.
        replacement_rate: Share of the active entries that an update replaces: a schedule, or the start of a cosine that
            ends at zero with the last update.
        until: Share of the training after which nothing moves any more; 0.75 by default.
        regrow_std: σ of a new entry: ``"mean"`` of its layer, ``"mean_raw"`` (mean of the raw stds, as in the released
            code), or a number. The default is ``"mean"``, and ``"mean_raw"`` for a model in reference mode.
        scope: ``"layer"`` keeps the number of active entries of every layer, ``"global"`` only their sum. The default
            is ``"layer"``, and ``"global"`` for a model converted with ``allocation="global"``.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(50, 10), density=0.1)
        >>> optimizer = torch.optim.Adam(gossamer.param_groups(model))
        >>> curvature = gossamer.Curvature(model, optimizer, n_data=160)
        >>> subspace = gossamer.Subspace(model, optimizer, total_steps=20, update_period=5)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 50)).square().mean().backward()
        ...     optimizer.step()
        ...     moved = subspace.step()
        >>> gossamer.layers.active_parameters(model), [update["step"] for update in subspace.record]
        (50, [5, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer | list[Optimizer] | tuple[Optimizer, ...],
        *,
        total_steps: int | None = None,
        removal: str | Criterion = "snr_abs",
        addition: str | Criterion = "sampled_gradient",
        update_period: int = 100,
        replacement_rate: float | Schedule = 0.3,
        until: float | None = None,
        regrow_std: RegrowStd | None = None,
        scope: Scope | None = None,
    ) -> None:
        super().__init__()
        _check(total_steps, update_period, replacement_rate, until, regrow_std, scope)
        everything = sparse_weights(model)
        if not everything:
            raise ValueError("this model has no sparse weights: convert it with gossamer.bayesianize(model) first")
        self.model, self.optimizers = model, list(optimizer) if isinstance(optimizer, list | tuple) else [optimizer]
        self.is_reference = any(weight.mode == "reference" for weight in everything.values())
        shares = any(weight.support.shares_budget for weight in everything.values())
        self.scope: Scope = scope or ("global" if shares else "layer")
        self.weights = {name: weight for name, weight in everything.items() if _can_move(weight.support, self.scope)}
        self.removal = lookup("removal criterion", removal, REMOVAL)
        if self.is_reference and self.removal is snr_abs:
            self.removal = snr_abs_reference
        self.addition = lookup("addition criterion", addition, ADDITION)
        self.update_period = update_period
        self.last_step = None if total_steps is None else int((0.75 if until is None else until) * total_steps)
        self.rate = replacement_rate if callable(replacement_rate) else _rate(replacement_rate, self.last_step)
        self._exchange = Exchange(self.removal, self.addition, self.scope, regrow_std, self.optimizers)
        gradient = self.addition if isinstance(self.addition, GradientCriterion) else None
        self._n_draws = gradient.n_draws if gradient else 1
        self._collector = GradientCollector(
            self.weights, everything.values(), at_mean=gradient is not None and gradient.noise_free
        )
        self.capturable = self.scope == "layer" and self._n_draws == 1  # updates keep shapes, need no further pass
        for weight in self.weights.values():
            weight.keeps_number = self.scope == "layer"
        self._clock = OptimizerClock(self.optimizers, next((weight.mean for weight in self._trained().values()), None))
        self.index = self._clock.step or 0
        self._is_resumed = self.index > 0  # by a clock alone
        self._is_first, self._curved = True, [w for w in everything.values() if isinstance(w, CurvatureWeight)]
        self._postponed = False
        _check_parts(self)
        _agree(self.weights)
        leave_broadcast(model)
        self._hooks: list[RemovableHandle] = []
        self._watch: LoopWatch | None = LoopWatch(self._trained(), self.optimizers, update_period)
        self._prepare()

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Count one training step, and move the subspace when an update is due.

        Args:
            closure: Evaluates the loss of the current batch again, without ``backward``; only criteria that average
                over several draws need it.

        Returns:
            Whether there was an update. The released code then skips the optimizer: ``if not subspace.step():
            optimizer.step()``.
        """
        if self._watch is not None:
            self._watch.subspace_stepped()
        return self._step(closure)

    def _step(self, closure: Callable[[], Tensor] | None) -> bool:
        if self._is_resumed and self.index > 0:
            warnings.warn(CONTINUED.format(step=self.index), stacklevel=3)
        if self._is_first:  # here rather than at the start: a Curvature may come after this
            self._is_first = False
            if self._curved and all(weight.learner is None for weight in self._curved):
                warnings.warn(IDLE, stacklevel=3)
        loaded, self._is_resumed = self._clock.loaded, False
        self.index = (self.index if loaded is None else loaded) + 1
        if loaded is not None:  # no gradient was asked for: an update that is due now is made at the next step
            self._collector.disarm()
            self._postponed = self._is_due(self.index)
        moved = loaded is None and self._is_due(self.index) and self._update(closure)
        self._clock.write(self.index)
        self._prepare()
        return moved

    def zero_grad(self) -> None:
        collector = self._collector
        if collector.follows or collector.armed or collector.watched:
            collector.zero_grad()

    def __call__(self, step: Step) -> bool:
        """As a rule of :func:`gossamer.fit`: the released code skips the optimizer at an update."""
        if self._watch is not None:  # a loop over rules leaves nothing out
            self._watch.end()
            self._watch = None
        return self._step(step.loss) and self.is_reference

    @property
    def chosen(self) -> dict[str, Any]:
        return {"update_period": self.update_period}

    @property
    def acts(self) -> bool:
        return self._is_due(self.index + 1)

    def state_dict(self) -> dict[str, Any]:
        """The clock; positions are in the model's state, moments in the optimizer's. The record is not part of it.

        The optimizer's state carries the clock too, so that a checkpoint of model and optimizer alone continues it.
        """
        return super().state_dict() | {"postponed": self._postponed, "single": sorted(self._collector.single)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._postponed, self._is_resumed = bool(state["postponed"]), False
        self._collector.reset(state.get("single", ()))
        self._clock.write(self.index)
        self._prepare()

    def _is_due(self, index: int) -> bool:
        return (self.last_step is None or index < self.last_step) and (
            self._postponed or index % self.update_period == 0
        )

    def _trained(self) -> Weights:
        """The weights that may move now: one whose mean is frozen, or in no optimizer, stays where it is."""
        held = {id(parameter) for optimizer in self.optimizers for parameter in _parameters(optimizer)}
        return {n: w for n, w in self.weights.items() if w.mean.requires_grad and id(w.mean) in held}

    def _prepare(self) -> None:
        """Ask the coming backward pass for dense gradients, where the addition criterion wants those of that pass."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        if self._collector.watched:
            self._collector.end_watch()
        if self.addition is random or self._n_draws > 1:
            return
        if self._is_due(self.index + 1):
            self._collector.arm(self._trained(), self.rate(self.index + 1), in_pieces=self._streams())
            means = {id(weight.mean) for weight in self.weights.values()}
            for one in self.optimizers if self._collector.follows else ():
                if not means.isdisjoint(map(id, _parameters(one))):  # with its step the gradient is spent
                    self._hooks.append(after_steps(one, self._collector.optimizer_stepped))
        elif self._is_due(self.index + 2) and self._streams():
            self._collector.watch(self._trained())

    def _streams(self) -> bool:
        """Whether the best entries of a weight can be found in its own gradient on this rank, piece by piece.

        A GPU that can hold the gradients whole does so: each piece would cost a wait for it.
        """
        alone = self.scope == "layer" and world_size() == 1 and type(self.addition) is GradientCriterion
        return alone and not fit_whole(self._trained())

    @torch.no_grad()
    def _update(self, closure: Callable[[], Tensor] | None) -> bool:
        rate, trained = _checked_rate(self.rate(self.index), f" at step {self.index}"), self._trained()
        grads = complete(self._gradients(closure), self.weights)
        shortlists = self._collector.take_shortlists()
        bests: dict[str, Best] = {}
        if world_size() > 1 and type(self.addition) is GradientCriterion:
            bests = best_of_all_ranks(grads, self.weights, rate)
        else:  # whatever else a criterion makes of a gradient, it may need all of it
            grads = {name: average_over_ranks(grads[name]) for name in self.weights if name in grads}
        seen = trained.keys() if self.addition is random else grads.keys() | shortlists.keys() | bests.keys()
        weights = {name: weight for name, weight in trained.items() if name in seen}
        changes = None
        if not weights and any(w.mean.grad is not None and bool(w.mean.grad.any()) for w in trained.values()):
            reason = UNSEEN
            warnings.warn(HOW_TO_BE_SEEN, stacklevel=4)
        elif self._collector.are_sums(shortlists, grads, rate):
            reason = SUMS
        else:
            bests |= {name: shortlist.whole() for name, shortlist in shortlists.items()}
            changes, reason = self._exchange(weights, grads, bests, rate), NOT_FINITE
        self._postponed = changes is None and reason != UNSEEN  # the next step would show no more
        if changes is None:
            self.record.append({"step": self.index, "postponed": reason})
            return False
        self.record.append({"step": self.index, "rate": rate, **changes})
        return bool(weights)

    def _gradients(self, closure: Callable[[], Tensor] | None) -> Grads:
        """The dense gradients that the addition criterion asks for, of the weights that took part in the loss."""
        if self._n_draws == 1:
            return self._collector.disarm()
        if closure is None:
            raise ValueError(
                "multi_sample_gradient(K) evaluates the batch again: call subspace.step(closure) with a function that "
                "returns the loss, or use addition='sampled_gradient'"
            )
        return mean_absolute(self.model, self._trained(), closure, self._n_draws)


def _parameters(optimizer: Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _can_move(support: Support, scope: Scope) -> bool:
    """A weight of which every entry is active has none to exchange, but some to give where the budget is shared."""
    gives = scope == "global" and support.shares_budget
    return support.position is not None and support.n_active > 0 and (gives or not support.is_dense)


def _agree(weights: Weights) -> None:
    """Start from the first rank's positions: DDP sends its parameters to the others, but not always its buffers."""
    for weight in weights.values():
        if weight.support.position is not None:  # a broadcast into it would leave what is cached for it in place
            weight.support.set_position(from_first_rank(weight.support.position.clone()))


def _checked_rate(rate: float, when: str = "") -> float:
    if not 0 <= rate <= 1:
        raise ValueError(f"replacement_rate is a share of the active entries, in [0, 1]; got {rate}{when}")
    return rate


def _rate(start: float, last_step: int | None) -> Schedule:
    return constant(start) if last_step is None else cosine(start, max(1, last_step))


def _check_parts(subspace: Subspace) -> None:
    """Fail here rather than at the first update."""
    if any(hasattr(weight.mean, "full_tensor") for weight in subspace.weights.values()):
        raise ValueError(
            "FSDP2 (fully_shard) splits the active entries of a weight between ranks, and a subspace moves them as "
            "a whole: shard the rest of the network, with these in ignored_params (the guide to several machines), "
            "train with DistributedDataParallel, or shard without a Subspace"
        )
    if subspace.scope == "global" and world_size() > 1:
        raise ValueError("a global budget changes parameters' shapes, which DDP cannot follow: use scope='layer'")
    if any(weight.mean.requires_grad for weight in subspace.weights.values()) and not subspace._trained():
        raise ValueError(
            "the optimizer holds none of this model's sparse weights: build it from gossamer.param_groups(model), "
            "after the conversion"
        )
    held = {id(parameter) for optimizer in subspace.optimizers for parameter in _parameters(optimizer)}
    trained = {f"{n}.{part}".lstrip("."): p for n, w in subspace._trained().items() for part, p in w.named_parameters()}
    missing = [name for name, parameter in trained.items() if parameter.requires_grad and id(parameter) not in held]
    if missing:
        names = ", ".join(missing[:3]) + (", …" if missing[3:] else "")
        warnings.warn(
            f"no optimizer of this subspace holds {names}: if another one trains what moves here, give both, "
            "Subspace(model, [first, second]); otherwise freeze it with requires_grad_(False)",
            stacklevel=3,
        )
    if subspace.weights and subspace.removal in REMOVAL.values():  # these say what they miss
        removal_scores(subspace.removal, WeightBatch(subspace.weights))


def _check(
    total_steps: int | None,
    update_period: int,
    replacement_rate: float | Schedule,
    until: float | None,
    regrow_std: RegrowStd | None,
    scope: Scope | None,
) -> None:
    if (total_steps is not None and total_steps < 1) or update_period < 1:
        raise ValueError(f"total_steps and update_period count steps from 1; got {total_steps} and {update_period}")
    if not callable(replacement_rate):
        _checked_rate(replacement_rate)
    if until is not None and total_steps is None:
        raise ValueError(
            "until is a share of the training: give total_steps as well, or a schedule as replacement_rate"
        )
    if until is not None and not 0 <= until <= 1:
        raise ValueError(f"until is a share of the training, in [0, 1]; got {until}")
    is_number = isinstance(regrow_std, int | float) and 0 < regrow_std < math.inf
    if regrow_std not in (None, "mean", "mean_raw") and not is_number:  # from 0 a std could not grow
        raise ValueError(f"regrow_std must be 'mean', 'mean_raw' or a positive number; got {regrow_std!r}")
    if scope not in (None, "layer", "global"):
        raise ValueError(f"scope must be 'layer' or 'global'; got {scope!r}")


class OptimizerClock:
    """The step of a subspace, kept in a parameter group: a checkpoint of the optimizer alone then carries it.

    ``mean``, one of the subspace's own, tells it from another subspace of the same optimizer.
    """

    def __init__(self, optimizers: Sequence[Optimizer], mean: Tensor | None) -> None:
        places = [
            (optimizer, number, slot)
            for optimizer in optimizers
            for number, group in enumerate(optimizer.param_groups)
            for slot, parameter in enumerate(group["params"])
            if parameter is mean
        ]
        self._place, self._key = places[0][:2] if places else None, f"subspace_step_{places[0][2]}" if places else ""
        self._written = self.step

    @property
    def _group(self) -> dict[str, Any]:  # loading a state replaces the groups
        return {} if self._place is None else self._place[0].param_groups[self._place[1]]

    @property
    def step(self) -> int | None:
        """The step that the group carries."""
        step = self._group.get(self._key)
        return None if step is None else int(step)

    @property
    def loaded(self) -> int | None:
        """A step that ``optimizer.load_state_dict`` has written since."""
        step = self.step
        return None if step == self._written else step

    def write(self, step: int) -> None:
        """Carry this step from now on."""
        self._group[self._key] = self._written = step
