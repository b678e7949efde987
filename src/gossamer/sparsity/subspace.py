"""The subspace and its moves: remove the least useful active weights, activate the most promising others.

SSVI, Algorithm 1 (Li et al., ICLR 2024, section 3.3), and with other criteria RigL and its relatives: every
``update_period`` steps a share of the active entries of each weight is removed by one score and as many are added by
another. The budget is constant to the last integer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from gossamer.layers import GaussianWeight, SparseWeight, sparse_weights
from gossamer.layers.weight import RegrowStd
from gossamer.schedules import cosine
from gossamer.sparsity.criteria import (
    GradientCriterion,
    addition_criterion,
    random,
    removal_criterion,
    snr_abs,
    snr_abs_reference,
)
from gossamer.sparsity.moving import forget_histories, move
from gossamer.sparsity.ranks import average_over_ranks, from_first_rank, world_size
from gossamer.sparsity.selection import top_mask
from gossamer.types import Criterion, Schedule, Step, WeightStats

__all__ = ["Subspace"]

Scope = Literal["layer", "global"]
Grads = dict[str, Tensor]


class Subspace:
    """Moves the active weights of ``model`` during training; call :meth:`step` once after each ``optimizer.step()``.

    Between updates it costs nothing. For the backward pass before an update it asks every weight for its dense
    gradient, and drops each as soon as its best entries are known. Gradient accumulation, loss scaling, clipping and
    closures need nothing special. A gradient that is not finite postpones the update to the next step.

    Args:
        model: A network converted by :func:`gossamer.bayesianize` or :func:`gossamer.sparsify`.
        optimizer: Any ``torch.optim`` optimizer; the state of new entries is reset.
        total_steps: Length of the training.
        removal: Score of the active entries, the lowest are removed: a name in ``gossamer.sparsity.criteria.REMOVAL``
            or a function of :class:`WeightStats`.
        addition: Score of the other entries, the highest are added: a name in ``ADDITION`` or a function.
            ``multi_sample_gradient(K)`` needs ``step(closure)``.
        update_period: Steps from one update to the next, M.
        replacement_rate: Share of the active entries that is removed at an update: a number, from which a cosine goes
            down to zero at the last update, or a schedule.
        until: Share of the training after which nothing moves any more.
        regrow_std: σ of a new entry: ``"mean"`` of the layer's, ``"mean_raw"`` (mean of the raw stds, as the released
            code), or a number. ``None`` is ``"mean"``, and ``"mean_raw"`` for a model in reference mode.
        scope: ``"layer"`` keeps the number of active entries of every layer, ``"global"`` only their sum. ``None``
            is ``"layer"``, and ``"global"`` for a model converted with ``allocation="global"``.
        compare: Names of further removal criteria: each update then records the intersection over union of the set
            they would have removed with the one that was.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(50, 10), density=0.1)
        >>> optimizer = torch.optim.Adam(gossamer.param_groups(model))
        >>> subspace = gossamer.Subspace(model, optimizer, total_steps=20, update_period=5)
        >>> for _ in range(20):
        ...     optimizer.zero_grad()
        ...     model(torch.randn(8, 50)).square().mean().backward()
        ...     optimizer.step()
        ...     moved = subspace.step()
        >>> gossamer.active_parameters(model), [update["step"] for update in subspace.record]
        (50, [5, 10])
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        total_steps: int,
        removal: str | Criterion = "snr_abs",
        addition: str | Criterion = "sampled_gradient",
        update_period: int = 100,
        replacement_rate: float | Schedule = 0.3,
        until: float = 0.75,
        regrow_std: RegrowStd | None = None,
        scope: Scope | None = None,
        compare: Sequence[str] = (),
    ) -> None:
        _check(total_steps, update_period, replacement_rate, until, regrow_std, scope)
        everything = sparse_weights(model)
        if not everything:
            raise ValueError("this model has no sparse weights: convert it with gossamer.bayesianize(model) first")
        self.model, self.optimizer = model, optimizer
        self.all_weights = list(everything.values())
        self.weights = {n: w for n, w in everything.items() if not w.support.is_dense and w.mean.requires_grad}
        self.is_reference = any(w.mode == "reference" for w in self.all_weights if isinstance(w, GaussianWeight))
        self.removal = removal_criterion(removal)
        if self.is_reference and self.removal is snr_abs:
            self.removal = snr_abs_reference
        self.addition = addition_criterion(addition)
        self.update_period, self.last_step = update_period, int(until * total_steps)
        self.rate = replacement_rate if callable(replacement_rate) else cosine(replacement_rate, max(1, self.last_step))
        self.regrow_std = regrow_std
        shared = any(weight.support.shares_budget for weight in self.weights.values())
        self.scope: Scope = scope or ("global" if shared else "layer")
        if self.scope == "global" and world_size() > 1:
            raise ValueError("a global budget changes parameters' shapes, which DDP cannot follow: use scope='layer'")
        self.compare = {name: removal_criterion(name) for name in compare}
        self.index = 0
        self.record: list[dict[str, Any]] = []
        self._postponed = False
        self._arm_if_due()

    def step(self, closure: Callable[[], Tensor] | None = None) -> bool:
        """Count one training step, and move the subspace when an update is due.

        Args:
            closure: Evaluates the loss of the current batch again, without ``backward``; only criteria that average
                over several draws need it.

        Returns:
            Whether the subspace moved. In a loop of the released code's kind, ``if not subspace.step():
            optimizer.step()``, the gradient of an update step is spent on the move.
        """
        self.index += 1
        moved = self._is_due(self.index) and self._update(closure)
        self._arm_if_due()
        return moved

    def __call__(self, step: Step) -> bool:
        """As a rule of :func:`gossamer.fit`: the released code skips the optimizer at an update."""
        return self.step(step.loss) and self.is_reference

    def state_dict(self) -> dict[str, Any]:
        """The clock and the record; positions are in the model's state, moments in the optimizer's."""
        return {"index": self.index, "postponed": self._postponed, "record": list(self.record)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from ``state_dict``, after the model's and the optimizer's states were loaded."""
        self.index, self._postponed = int(state["index"]), bool(state["postponed"])
        self.record = list(state["record"])
        self._disarm()
        self._arm_if_due()

    # ------------------------------------------------------------------ when

    def _is_due(self, index: int) -> bool:
        return index < self.last_step and (self._postponed or index % self.update_period == 0)

    def _n_draws(self) -> int:
        return self.addition.n_draws if isinstance(self.addition, GradientCriterion) else 1

    def _arm_if_due(self) -> None:
        """Ask the coming backward pass for dense gradients, where the addition criterion wants those of that pass."""
        if self._is_due(self.index + 1) and self._needs_grad() and self._n_draws() == 1:
            for weight in self.weights.values():
                weight.arm()
            if isinstance(self.addition, GradientCriterion) and self.addition.noise_free:
                self._set_noisy(False)

    def _needs_grad(self) -> bool:
        return self.addition is not random

    def _disarm(self) -> Grads:
        """The dense gradients of all weights that took part in the pass."""
        self._set_noisy(True)
        grads = {name: weight.disarm() for name, weight in self.weights.items()}
        return {name: grad for name, grad in grads.items() if grad is not None}

    def _set_noisy(self, noisy: bool) -> None:
        for weight in self.all_weights:
            weight.noisy = noisy

    # ------------------------------------------------------------------ what

    @torch.no_grad()
    def _update(self, closure: Callable[[], Tensor] | None) -> bool:
        grads = self._disarm() if self._n_draws() == 1 else self._mean_absolute_gradients(closure)
        for grad in grads.values():
            average_over_ranks(grad)
        self._postponed = not all(bool(grad.isfinite().all()) for grad in grads.values())
        if self._postponed:
            self.record.append({"step": self.index, "postponed": "a gradient is not finite"})
            return False
        rate = self.rate(self.index)
        scores = {name: self.removal(weight.stats()) for name, weight in self.weights.items()}
        kept = self._keep(scores, rate, grads)
        entry: dict[str, Any] = {"step": self.index, "rate": rate, "removed": {}, "replaced": {}, "active": {}}
        if self.compare:
            entry["iou"] = {name: self._overlap(criterion, kept) for name, criterion in self.compare.items()}
        positions = self._grow(kept, grads)
        for name, position in positions.items():
            weight = self.weights[name]
            regrown = weight.regrown(kept[name], self.regrow_std)
            survives = move(weight, position, regrown, self.optimizer)
            entry["removed"][name] = int((~kept[name]).sum())
            entry["replaced"][name] = int((~survives).sum())
            entry["active"][name] = len(position)
        forget_histories(self.optimizer)
        self.record.append(entry)
        return True

    def _keep(self, scores: Grads, rate: float, grads: Grads) -> dict[str, Tensor]:
        """Which slots of each weight survive; a weight without a dense gradient does not take part."""
        taking_part = {n: s for n, s in scores.items() if n in grads or not self._needs_grad()}
        if self.scope == "layer":
            return {name: top_mask(score, len(score) - int(rate * len(score))) for name, score in taking_part.items()}
        return _split(taking_part, lambda score: len(score) - int(rate * len(score)), protect=True)

    def _grow(self, kept: dict[str, Tensor], grads: Grads) -> dict[str, Tensor]:
        """New sorted positions of each weight: what was kept and the best of everything else."""
        scores: Grads = {}
        survivors: Grads = {}
        for name, mask in kept.items():
            weight = self.weights[name]
            position = weight.support.position
            assert position is not None
            survivors[name] = position[mask].long()
            score = self._addition_score(weight, grads.pop(name, None))
            score[survivors[name]] = -torch.inf
            score[slice(*weight.support.frozen)] = -torch.inf
            if self.scope == "layer":  # known now, so that only one weight's dense score is alive at a time
                chosen = top_mask(score, len(mask) - len(survivors[name])).nonzero().flatten()
                survivors[name] = torch.cat([survivors[name], chosen]).sort().values
            else:
                scores[name] = score
        if self.scope == "layer":
            return survivors
        n_new = sum(int((~mask).sum()) for mask in kept.values())
        grown = _split(scores, lambda score: n_new, protect=False)
        return {n: torch.cat([survivors[n], mask.nonzero().flatten()]).sort().values for n, mask in grown.items()}

    def _addition_score(self, weight: SparseWeight, grad: Tensor | None) -> Tensor:
        mean = weight.dense_mean().flatten()
        score = self.addition(WeightStats(mean=mean, grad=None if grad is None else grad.flatten()))
        if score.shape != mean.shape:
            raise ValueError(f"the addition criterion gave {tuple(score.shape)} scores for {len(mean)} entries")
        score = score.to(torch.promote_types(score.dtype, torch.float32), copy=True)
        # Gradients are reduced over the ranks already; any other score may be a rank's own, a random one is.
        return score if isinstance(self.addition, GradientCriterion) else from_first_rank(score)

    def _mean_absolute_gradients(self, closure: Callable[[], Tensor] | None) -> Grads:
        """Paper's third addition criterion: the mean over K draws of the absolute gradient, on the current batch."""
        if closure is None:
            raise ValueError(
                "multi_sample_gradient(K) evaluates the batch again: call subspace.step(closure) with a function that "
                "returns the loss, or use addition='sampled_gradient'"
            )
        total: Grads = {}
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers() if buffer.is_floating_point()}
        for _ in range(self._n_draws()):
            with torch.enable_grad():
                for weight in self.weights.values():
                    weight.arm()
                probes = {name: weight.probe for name, weight in self.weights.items() if weight.probe is not None}
                grads = torch.autograd.grad(closure(), list(probes.values()), allow_unused=True)
            for name, grad in zip(probes, grads, strict=True):
                if grad is not None:
                    total[name] = total.get(name, 0) + grad.abs() / self._n_draws()
        self._disarm()
        for name, buffer in self.model.named_buffers():  # the extra passes are not training: BatchNorm forgets them
            if name in buffers:
                buffer.copy_(buffers[name])
        return total

    def _overlap(self, criterion: Criterion, kept: dict[str, Tensor]) -> dict[str, float]:
        """Intersection over union of the removed sets of each weight."""
        overlap = {}
        for name, mask in kept.items():
            other = top_mask(criterion(self.weights[name].stats()), int(mask.sum()))
            union = int((~(mask & other)).sum())
            overlap[name] = int((~mask & ~other).sum()) / union if union else 1.0
        return overlap


def _split(scores: Grads, count: Callable[[Tensor], int], *, protect: bool) -> dict[str, Tensor]:
    """One choice over all weights, given back weight by weight; ``protect`` keeps the best entry of each."""
    parts = [torch.where(s.isnan(), -torch.inf, s) for s in scores.values()]
    if protect:  # an empty layer would cut the network in two
        parts = [part.index_fill(0, part.argmax(), torch.inf) for part in parts]
    joined = torch.cat(parts)
    masks = top_mask(joined, count(joined)).split([len(part) for part in parts])
    return dict(zip(scores, masks, strict=True))


def _check(
    total_steps: int,
    update_period: int,
    replacement_rate: float | Schedule,
    until: float,
    regrow_std: RegrowStd | None,
    scope: Scope | None,
) -> None:
    if total_steps < 1 or update_period < 1:
        raise ValueError(f"total_steps and update_period count steps from 1; got {total_steps} and {update_period}")
    if not callable(replacement_rate) and not 0 <= replacement_rate <= 1:
        raise ValueError(f"replacement_rate is a share of the active entries, in [0, 1]; got {replacement_rate}")
    if not 0 <= until <= 1:
        raise ValueError(f"until is a share of the training, in [0, 1]; got {until}")
    if isinstance(regrow_std, str) and regrow_std not in ("mean", "mean_raw"):
        raise ValueError(f"regrow_std must be 'mean', 'mean_raw' or a positive number; got {regrow_std!r}")
    if isinstance(regrow_std, int | float) and not regrow_std > 0:
        raise ValueError(f"regrow_std must be positive: at 0 the gradient of a std vanishes; got {regrow_std!r}")
    if scope not in (None, "layer", "global"):
        raise ValueError(f"scope must be 'layer' or 'global'; got {scope!r}")
