"""Training steps of members side by side, with gradients and Adam by hand: a step of such small networks costs calls.

What is trained lies in flat buffers, of which the parameters and the optimizer's moments are slices, so that rules and
checkpoints see what they always see. For each member and layer, with ε from one call for the whole pass,

    y = h Mᵀ + b + √v · ε,   v = h² Vᵀ,   max(y, 0) is the h of the next layer

and with the gradient g of y, and k = g ε / (2 √v) that of v,

    ∂M = gᵀ h,   ∂V = kᵀ h²,   ∂b = Σ g,   ∂h = g M + 2 h · (k V) .
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim import Adam, Optimizer

from gossamer.capture import FlatWeights
from gossamer.capture.flat_weights import flatten
from gossamer.estimators.members import MAX_DENSE, Members, SumOverMembers, WithoutFolds
from gossamer.kernels.reference import VARIANCE_FLOOR
from gossamer.layers import GaussianWeight
from gossamer.likelihoods import Categorical, Weighted, noise_std
from gossamer.train import EagerSteps, Training
from gossamer.types import Penalty, Task

__all__ = ["MemberSteps", "by_hand"]

Views = list[Tensor]
"""One tensor per layer, of all members: slices of a flat buffer."""


@contextmanager
def by_hand(training: Training) -> Iterator[None]:
    """Takes the steps of this training by hand, where that is possible: Adam on Gaussian weights, not too many."""
    if not _is_possible(training):
        yield
        return
    assert isinstance(training.model, Members)
    steps = MemberSteps(training.model, training.inner_optimizer, training.task, training.penalty)
    before, training.eager = training.eager, steps
    try:
        yield
    finally:
        steps.working.close()
        training.eager = before


class MemberSteps(EagerSteps):
    """The steps of :class:`Members` with Gaussian weights.

    Args:
        model: The members.
        optimizer: Adam, with the parameter groups of :func:`gossamer.param_groups`, in any state.
        task: Its transform and likelihood are used.
        penalty: A weighted KL.
    """

    def __init__(self, model: Members, optimizer: Optimizer, task: Task, penalty: Penalty) -> None:
        super().__init__(model, optimizer, lambda x, y: _no_loss, penalty)
        self.members, self.task = model, task
        self.working = working = FlatWeights(model, torch.float32)
        for leaf, grad in zip(working.leaves, working.targets, strict=True):
            leaf.grad = grad  # a subspace looks for the dense gradients there
        parts = working.dense_mean, working.dense_variance, working.grad_of_mean, working.grad_of_variance
        self.mean, self.variance, self.mean_grad, self.variance_grad = map(self._layers_of, parts)
        self._held = {id(parameter) for weight in working.weights for parameter in weight.parameters()}
        self.rest, self.rest_grad = flatten([p for p in model.parameters() if id(p) not in self._held])
        self.bias, self.raw_noise = self._rest_of(self.rest)
        self.bias_grad, self.raw_noise_grad = self._rest_of(self.rest_grad)
        flat = {
            "means": (working.mean, working.mean_grad),
            "stds": (working.raw_std, working.raw_std_grad),
            "rest": (self.rest, self.rest_grad),
        }
        self.trained = [(*flat[group["name"]], *self._moments(group)) for group in optimizer.param_groups]
        self.scale = self.rest.new_zeros(())
        likelihood = task.likelihood
        assert isinstance(likelihood, SumOverMembers | WithoutFolds)
        inner = likelihood.likelihood
        self.likelihood, inner = likelihood, inner.likelihood if isinstance(inner, Weighted) else inner
        self.of_classes = isinstance(inner, Categorical)

    @torch.no_grad()
    def gradients(self, x: Tensor, y: Tensor, number: int) -> tuple[Tensor, Tensor, Callable[[], Tensor]]:
        """Forward and backward pass of a batch, into the gradients that the optimizer reads."""
        inputs, squares, slopes = [self.task.transform(x).flatten(1).expand(len(self.mean[0]), -1, -1)], [], []
        for mean, variance, bias, noise in zip(self.mean, self.variance, self.bias, self._noise(len(y)), strict=True):
            h = inputs[-1]
            squares.append(h.square())
            std = torch.bmm(squares[-1], variance.mT).clamp_min_(VARIANCE_FLOOR).sqrt_()
            output = torch.baddbmm(bias.unsqueeze(1), h, mean.mT).addcmul_(std, noise)
            slopes.append(noise.div_(std).mul_(0.5))
            inputs.append(output.relu())
        nll, g = self._of_outputs(output, y)
        for i in reversed(range(len(self.mean))):
            h, k = inputs[i], slopes[i].mul_(g)
            torch.bmm(g.mT, h, out=self.mean_grad[i])
            torch.bmm(k.mT, squares[i], out=self.variance_grad[i])
            torch.sum(g, 1, out=self.bias_grad[i])
            if i > 0:
                g = torch.bmm(g, self.mean[i]).addcmul_(h, torch.bmm(k, self.variance[i]), value=2)
                g = torch.ops.aten.threshold_backward(g, h, 0.0)
        self.scale.fill_(self.penalty.scale(number) or 0.0)
        return nll, self.working.differentiate(self.scale), _no_loss

    def refresh(self) -> None:
        """Follow a moved subspace."""
        self.working.refresh()

    @torch.no_grad()
    def apply(self) -> None:
        """The step of Adam; the dense weights follow."""
        for group, (values, grad, step, first, second) in zip(self.optimizer.param_groups, self.trained, strict=True):
            beta1, beta2 = group["betas"]
            options = {name: group[name] for name in ("lr", "weight_decay", "eps", "amsgrad", "maximize")}
            step.add_(1)
            torch._fused_adam_([values], [grad], [first], [second], [], [step], beta1=beta1, beta2=beta2, **options)
        self.working.write()

    def _of_outputs(self, output: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss and its gradient with respect to the outputs; that of a constant noise goes where it belongs."""
        targets, weight = self.likelihood.parts(y)
        if self.of_classes:
            return _of_logits(output, targets, weight.unsqueeze(-1))
        means, raw = output.chunk(2, -1) if self.raw_noise is None else (output, self.raw_noise.unsqueeze(1))
        nll, of_means, of_raw = _of_normal(means, raw, targets, weight.unsqueeze(-1))
        if self.raw_noise_grad is None:
            return nll, torch.cat([of_means, of_raw], -1)
        torch.sum(of_raw, 1, out=self.raw_noise_grad)
        return nll, of_means

    def _noise(self, n_rows: int) -> Iterator[Tensor]:
        """ε of each layer, ``(members, rows, out)``."""
        widths = [mean.shape[1] for mean in self.mean]
        members = len(self.mean[0])
        flat = torch.randn(members * n_rows * sum(widths), device=self.rest.device)
        for part, width in zip(flat.split([members * n_rows * width for width in widths]), widths, strict=True):
            yield part.view(members, n_rows, width)

    def _layers_of(self, flat: Tensor) -> Views:
        """Slices ``(members, out, in)`` of a dense buffer, which holds network after network."""
        rows = flat.view(len(self.members.networks), -1)
        layers = zip(self.working.starts, self.members.shapes, strict=False)
        return [rows[:, start : start + shape[0] * shape[1]].unflatten(1, shape) for start, shape in layers]

    def _rest_of(self, flat: Tensor) -> tuple[Views, Tensor | None]:
        """Slices ``(members, n)`` of the buffer of all other parameters: biases, and the noise if it is constant."""
        rows = flat.view(len(self.members.networks), -1)
        named = [(name, p) for name, p in self.members.networks[0].named_parameters() if id(p) not in self._held]
        parts = rows.split([len(parameter) for _, parameter in named], dim=1)
        found = {name: part for (name, _), part in zip(named, parts, strict=True)}
        noise = found.pop("raw_noise", None)
        return list(found.values()), noise

    def _moments(self, group: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Adam's step and moments of a group, flat; the states of its parameters become slices of them."""
        states = [self.optimizer.state[parameter] for parameter in group["params"]]
        step = torch.as_tensor(states[0].get("step", 0.0), dtype=torch.float32, device=self.rest.device).clone()
        moments = []
        for name in ("exp_avg", "exp_avg_sq"):
            old = [state.get(name, torch.zeros_like(p)) for state, p in zip(states, group["params"], strict=True)]
            moments.append(torch.cat(old))
            for state, part in zip(states, moments[-1].split([len(one) for one in old]), strict=True):
                state.update({"step": step, name: part})
        return step, moments[0], moments[1]


def _is_possible(training: Training) -> bool:
    model, optimizer = training.model, training.inner_optimizer
    if not isinstance(model, Members) or model.n_dense > MAX_DENSE or type(optimizer) is not Adam:
        return False
    plain = not any(group["amsgrad"] or group["maximize"] for group in optimizer.param_groups)
    gaussian = all(type(weight) is GaussianWeight and weight.mean.requires_grad for weight in model.weights)
    # A rollback loads a state, which steps by hand hold copies of.
    return plain and gaussian and training.on_nan == "stop" and all(rule.capturable for rule in training.rules)


def _of_logits(logits: Tensor, targets: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Σ w (-log p) of classes, and its gradient w (p - 1 at the class)."""
    log_probs = logits.log_softmax(-1)
    index = targets.view(1, -1, 1).expand(len(logits), -1, 1)
    nll = -(log_probs.gather(-1, index) * weight).sum()
    g = log_probs.exp_().scatter_add_(-1, index, -torch.ones_like(index, dtype=logits.dtype))
    return nll, g.mul_(weight)


def _of_normal(mean: Tensor, raw: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Σ w (z²/2 + log σ + log √2π) with z = (y - μ)/σ, and its gradients: -w z/σ of μ, and of the raw σ.

    That of σ is w (1 - z²)/σ, and the derivative of the softplus is the sigmoid.
    """
    std = noise_std(raw)
    z = (y - mean) / std
    square = z.square()
    nll = (weight * (0.5 * square + std.log() + 0.5 * math.log(2 * math.pi))).sum()
    scaled = weight / std
    return nll, -scaled * z, scaled * (1 - square) * raw.sigmoid()


def _no_loss() -> Tensor:
    raise ValueError("a rule that evaluates the loss again cannot act on steps by hand")
