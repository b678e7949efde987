"""Pruning during training: of groups again and again (Ke and Fan, Algorithm 3), or once, of what fails a test.

Forward (DFP): a group that is cut is gone for good, and leaves the storage together with its gradient and optimizer
state. With feedback (DPF, eq. 8, after Lin et al., ICLR 2020) the network computes with the group at zero, so gradients
are those of the pruned network, but they still update the weight that is held back, and at a later check the group may
return.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.distributed import world_size
from gossamer.layers import SparseWeight, density, sparse_weights
from gossamer.schedules import as_schedule, step_of
from gossamer.sparsity.clock import Clocked
from gossamer.sparsity.exchange import Scope
from gossamer.sparsity.groups import (
    Axes,
    GroupCriterion,
    Scored,
    Scoring,
    check_thresholds,
    cut,
    grouped_weights,
)
from gossamer.sparsity.moves import after_steps, forget_histories, remove
from gossamer.types import Schedule, Step, VariationalOptimizer

__all__ = ["Cut", "Prune"]

SKIPPED = (
    "optimizer.step() was skipped after the last step of Prune, so this network has just computed with the weights "
    "that are held back: call hide() of Prune after every step that may be skipped"
)


class Prune(Clocked):
    """Cuts groups of weights during training; call :meth:`step` after ``backward`` and before ``optimizer.step()``.

    The network is always the pruned one: what is cut is exactly zero in every forward pass, every snapshot and the
    model's state. Every weight keeps at least one group. With feedback, call :meth:`hide` after an optimizer step
    was skipped (by a gradient scaler, after a bad loss); calling it after every step is fine.

    Args:
        model: A network of ``gossamer.sparsify(model, density=1.0, init="pretrained")``, or of a lower density; its
            linear layers and convolutions are pruned.
        optimizer: Any ``torch.optim`` optimizer that holds its parameters.
        threshold: λ2, below which a group is cut: one number, or one per layer by name.
        target_density: Instead of a threshold, the share of weights that may stay: a number or a function of the step.
            As many whole groups stay as fit.
        criterion: ``"range"``, ``"signed_range"``, ``"mean_square"`` or a function of ``(groups, size)`` weights. The
            default is the paper's: the range for convolutions, the mean square for linear layers and for groups of a
            single weight, which have no range.
        groups: What is cut as a whole, as in :class:`SpikeSlabDecay`, or several such groupings. The default is the
            paper's: input and output channels of convolutions, input units of linear layers.
        feedback: Whether what is cut may return; a number is the share of the training during which it may. From then
            on what is held back is gone, and pruning goes on forward.
        scope: ``"layer"`` applies ``target_density`` to each weight, ``"global"`` to all together.
        exclude: Names of layers that stay whole; ``*`` is a wildcard.
        total_steps: Length of the training, where any of its shares is given.
        warmup: Share of the training before the first check.
        update_period: Steps from one check to the next.
        until: Share of the training after which nothing is cut any more, with a last check at its end; ``None`` never
            stops.

    Example:
        >>> import gossamer
        >>> model = gossamer.sparsify(nn.Linear(50, 10), density=1.0, init="pretrained")
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1, momentum=0.9)
        >>> prune = Prune(model, optimizer, target_density=0.2, update_period=5)
        >>> for _ in range(5):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 50)).square().mean().backward()
        ...     checked = prune.step()
        ...     optimizer.step()
        >>> gossamer.layers.active_parameters(model), optimizer.state[model.mean]["momentum_buffer"].shape
        (100, torch.Size([100]))
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        threshold: float | Mapping[str, float] | None = None,
        target_density: float | Schedule | None = None,
        criterion: str | GroupCriterion | None = None,
        groups: Axes | None = None,
        feedback: bool | float = False,
        scope: Scope = "layer",
        exclude: Sequence[str] = (),
        total_steps: int | None = None,
        warmup: float = 0.0,
        update_period: int = 1,
        until: float | None = None,
    ) -> None:
        super().__init__()
        _check(threshold, target_density, scope, update_period)
        self.optimizer, self.threshold = optimizer, threshold
        self.target_density = None if target_density is None else as_schedule(target_density)
        self.scoring, self.scope = Scoring(groups, criterion), scope
        self.feedback, self.update_period = bool(feedback), update_period
        self.warmup_steps = step_of(warmup, total_steps, "warmup")
        self.last_step = None if until is None else step_of(until, total_steps, "until")
        self.feedback_steps = (
            self.last_step if isinstance(feedback, bool) else step_of(feedback, total_steps, "feedback") or None
        )
        self.weights = grouped_weights(model, exclude)
        self._sparse = {n: w.stored for n, w in self.weights.items() if isinstance(w.stored, SparseWeight)}
        may_shrink = not self.feedback or self.feedback_steps is not None
        self._check_parts(may_shrink)
        if may_shrink:  # with positions stored from the start, a state saved after a cut can be loaded
            for weight in self._sparse.values():
                weight.support.explicit(weight.mean.device)
        self._held = {name: HeldEntries(weight.parameter) for name, weight in self.weights.items() if self.feedback}
        if self.feedback:
            after_steps(optimizer, self.hide)

    @property
    def density(self) -> float:
        """Share of the weights that are not cut."""
        return sum(map(self._n_kept, self.weights)) / sum(weight.size for weight in self.weights.values())

    @property
    def held(self) -> Mapping[str, tuple[int, int]]:
        """By layer: entries that are cut but stored, all of which feedback trains on."""
        return {name: (held.n_held, held.n_held) for name, held in self._held.items()}

    def held_back(self, name: str) -> Tensor | None:
        """Which entries of the parameter of a layer are held back and may return; ``None`` where nothing can be."""
        return self._held[name].mask if name in self._held else None

    def step(self) -> bool:
        self.index += 1
        if any(not held.is_hidden and held.n_held for held in self._held.values()):
            warnings.warn(SKIPPED, stacklevel=2)
        for held in self._held.values():
            held.reveal()  # held-back weights take part in this step: in decay, gradient and choice
        is_past = self.last_step is not None and self.index > self.last_step
        is_time = self.index % self.update_period == 0 or self.index == self.last_step
        due = self.index > self.warmup_steps and is_time and not is_past
        if due:
            self._cut()
        if self.feedback and self.index == self.feedback_steps:
            self._release()
        return due

    def hide(self) -> None:
        """Zero what is held back; ``optimizer.step()`` does this, so call it when that step is skipped."""
        for held in self._held.values():
            held.hide()

    @property
    def chosen(self) -> dict[str, Any]:
        return {"update_period": self.update_period}

    def state_dict(self) -> dict[str, Any]:
        held = {name: held.state_dict() for name, held in self._held.items()}
        return (
            super().state_dict()
            | {"feedback": self.feedback, "held": held}
            | ({"threshold": dict(self.threshold)} if isinstance(self.threshold, Mapping) else {})
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.feedback = bool(state["feedback"])
        self.threshold = state.get("threshold", self.threshold)  # of the weights that the training began with
        # Weights that have left for good are in neither; an earlier state brings them back.
        self._held = {name: HeldEntries(self.weights[name].parameter) for name in state["held"]}
        for name, held in self._held.items():
            held.load_state_dict(state["held"][name])

    @torch.no_grad()
    def _cut(self) -> None:
        weights = {name: weight for name, weight in self.weights.items() if weight.parameter.requires_grad}
        before = {name: self._n_kept(name) for name in weights}
        scored = {name: self.scoring(weight) for name, weight in weights.items()}
        for name, kept in self._choose(scored).items():
            if self.feedback:
                self._held[name].choose(~kept)
            else:
                remove(self._sparse[name], kept, [self.optimizer])
        forget_histories(self.optimizer)
        after = {name: self._n_kept(name) for name in weights}
        self.record.append({"step": self.index, "density": self.density} | _counts(before, after))

    def _choose(self, scored: dict[str, list[Scored]]) -> dict[str, Tensor]:
        """Which entries stay: one choice per weight, or one for all together."""
        share = None
        if self.target_density is not None:
            share = _checked_share(self.target_density(self.index), f" at step {self.index}")
        shared = [list(scored)] if self.scope == "global" and share is not None else [[name] for name in scored]
        kept: dict[str, Tensor] = {}
        for names in shared:
            budget = None if share is None else round(share * sum(self.weights[name].size for name in names))
            least = self.threshold[names[0]] if isinstance(self.threshold, Mapping) else self.threshold
            kept |= cut({name: scored[name] for name in names}, None if least is None else float(least), budget)
        return kept

    def _n_kept(self, name: str) -> int:
        held = self._held.get(name)
        return self.weights[name].parameter.numel() - (0 if held is None else held.n_held)

    def _release(self) -> None:
        """Remove for good what is held back."""
        for name, held in self._held.items():
            remove(self._sparse[name], ~held.mask, [self.optimizer])
        self.feedback, self._held = False, {}

    def _check_parts(self, may_shrink: bool) -> None:
        if plain := [name or "the layer" for name in self.weights if name not in self._sparse]:
            raise ValueError(
                f"what is pruned leaves the storage of a sparse network, and {', '.join(plain)} is plain: convert it "
                "with gossamer.sparsify(model, density=1.0, init='pretrained') first, or exclude it"
            )
        if self.feedback and isinstance(self.optimizer, VariationalOptimizer):
            raise ValueError("CVAdam draws all weights that it holds, also those held at zero: prune without feedback")
        check_thresholds(self.threshold, self.weights)
        if world_size() > 1 and may_shrink:
            raise ValueError("cutting weights changes parameters' shapes, which DDP cannot follow: use feedback=True")
        if self.scope == "global" and len({self.scoring.criterion_of(weight) for weight in self.weights.values()}) > 1:
            raise ValueError(
                "one order over all layers needs one criterion for all: give criterion=…, or scope='layer'"
            )
        for weight in self.weights.values():
            self.scoring(weight)


Margin = Callable[[SparseWeight], Tensor]
"""By how much each active entry of a weight passes its test; those above zero stay."""


class Cut(Clocked):
    """Removes, at step ``at``, all entries that fail a test; they leave the storage and the optimizer's state.

    It acts before the optimizer's step. Every weight keeps at least the entry with the largest margin.

    Args:
        model: A converted network.
        optimizer: The optimizer that holds its parameters.
        margin: A function of a weight that returns one number per active entry; those above zero stay.
        at: The step, counted from 1.

    Example:
        >>> import gossamer
        >>> model = gossamer.sparsify(nn.Linear(50, 10), density=1.0)
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
        >>> cut = Cut(model, optimizer, lambda weight: weight.mean.abs() - 0.1, at=3)
        >>> for number in range(1, 4):
        ...     _ = cut(Step(number, model, optimizer, lambda: torch.zeros(())))
        >>> bool(model.mean.abs().min() > 0.1), cut.record[0]["step"]
        (True, 3)
    """

    def __init__(self, model: nn.Module, optimizer: Optimizer, margin: Margin, at: int) -> None:
        super().__init__()
        self.optimizer, self.margin, self.at = optimizer, margin, at

    @property
    def acts(self) -> bool:
        return self.index + 1 == self.at

    @torch.no_grad()
    def __call__(self, step: Step) -> bool:
        """Cut if this is the step; the gradient is never spent."""
        self.index = step.number
        if step.number != self.at:
            return False
        weights = sparse_weights(step.model)
        before = {name: weight.support.n_active for name, weight in weights.items()}
        for weight in weights.values():
            margin = self.margin(weight)
            stays = margin > 0
            stays[margin.argmax()] = True  # kernels have no empty weights
            remove(weight, stays, [self.optimizer])
        forget_histories(self.optimizer)
        after = {name: weight.support.n_active for name, weight in weights.items()}
        self.record.append({"step": step.number, "density": density(step.model)} | _counts(before, after))
        return False


def _counts(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Mapping[str, int]]:
    return {"active": after, "removed": {name: before[name] - after[name] for name in after}}


class HeldEntries:
    """Holds entries of a parameter at zero from one optimizer step to the next backward pass, and remembers them."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.mask = torch.zeros_like(parameter, dtype=torch.bool)
        self.n_held = 0  # how many entries that is
        self.values = parameter.detach().new_zeros(0)  # of the entries in the mask, while they are hidden
        self.is_hidden = False

    @torch.no_grad()
    def choose(self, mask: Tensor) -> None:
        """Which entries to hold from now on; their values stay until they are hidden."""
        self.reveal()
        self.mask = mask.view_as(self.parameter)
        self.n_held = int(self.mask.sum())

    @torch.no_grad()
    def hide(self) -> None:
        """Make the held entries zero in the parameter."""
        moved = self.parameter[self.mask]
        # Still hidden: the optimizer stepped from zero without a reveal, and that step belongs to them.
        self.values = self.values + moved if self.is_hidden else moved
        self.parameter.masked_fill_(self.mask, 0.0)
        self.is_hidden = True

    @torch.no_grad()
    def reveal(self) -> None:
        """Put the remembered values back."""
        if self.is_hidden:
            self.parameter[self.mask] = self.values
        self.is_hidden = False

    def state_dict(self) -> dict[str, Any]:
        """What an exact resume needs."""
        return {"mask": self.mask, "values": self.values, "is_hidden": self.is_hidden}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from ``state_dict``."""
        self.mask = state["mask"].to(self.parameter.device)
        self.n_held = int(self.mask.sum())
        self.values = state["values"].to(self.parameter)
        self.is_hidden = bool(state["is_hidden"])


def _checked_share(share: float, when: str = "") -> float:
    if not 0 < share <= 1:
        raise ValueError(f"target_density is a share of the weights, in (0, 1]; got {share}{when}")
    return share


def _check(
    threshold: float | Mapping[str, float] | None,
    target_density: float | Schedule | None,
    scope: Scope,
    update_period: int,
) -> None:
    if (threshold is None) == (target_density is None):
        raise ValueError("give either threshold or target_density")
    given = threshold.values() if isinstance(threshold, Mapping) else [] if threshold is None else [threshold]
    if not all(least >= 0 for least in given):
        raise ValueError(f"threshold must not be negative; got {threshold}")
    if target_density is not None and not callable(target_density):
        _checked_share(target_density)
    if scope not in ("layer", "global"):
        raise ValueError(f"scope must be 'layer' or 'global'; got {scope!r}")
    if update_period < 1:
        raise ValueError(f"update_period counts steps from 1; got {update_period}")
