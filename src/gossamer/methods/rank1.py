"""Rank-1 BNN (Dusenberry et al., ICML 2020): shared weights, and a distribution over a rank-1 factor of each.

    W_k = W ∘ (γ_k α_kᵀ),   y = γ_k ∘ W (α_k ∘ x) + b,   k = 1 … K

α_k belongs to the inputs and γ_k to the outputs (channels of a convolution) of a layer; both are Gaussian, of K
components. W and b are points. With r = α, γ the loss is

    mean nll + β_t/N · 1/K Σ_k KL(q(r_k) ‖ p(r))

which bounds the divergence of the mixture of the components from above. The prior is N(1, s²) or N(-1, s²) with equal
probability, as the means start: at 1 or -1 at random. The published N(1, s²) pulls half of them through zero, and with
few examples that is most of what a training does. ``mode="reference"`` has it, and like the released code the sum of
the K divergences instead of their mean.

The bias b is shared, and so are norms; the released code has a bias for each member, and repeats every batch K times,
once per component. Here the i-th example of a batch, which is shuffled, belongs to component i mod K, with factors of
its own: the same loss on average, for the cost of one network.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from gossamer.files.container import OTHER_NETWORK
from gossamer.layers import WeightedKL, inverse_softplus, replica
from gossamer.methods._parts import apart, replace_layers
from gossamer.posterior.in_layers import ready
from gossamer.posterior.mixture import shares
from gossamer.priors import normal_kl
from gossamer.schedules import cosine, rising, warmup
from gossamer.types import Collector, Method, Mode, Posterior, Saved, Task

__all__ = ["rank1"]

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def rank1(
    task: Task,
    steps: int,
    *,
    members: int = 4,
    lr: float | None = None,
    momentum: float = 0.9,
    weight_decay: float = 2e-4,
    lr_warmup: float = 1 / 250,
    prior_std: float = 0.1,
    init_std: float = 0.0316,
    negative: float = 0.5,
    kl_weight: float = 1.0,
    kl_warmup: float = 0.8,
    mode: Mode = "default",
) -> Method:
    """Rank-1 BNN: K members that share their weights and differ by Gaussian factors of inputs and outputs.

    Args:
        members: K, the components of the mixture.
        lr: Learning rate of SGD at the start of a cosine; 0.1, which the paper divides by 5 three times instead.
        momentum: Nesterov momentum.
        weight_decay: Weight decay of weights, biases and norms, not of the factors; twice the paper's factor of ‖w‖².
        lr_warmup: Share of the training over which the learning rate rises; one of the paper's 250 epochs.
        prior_std: s, the standard deviation of the prior of every factor.
        init_std: First standard deviation of every factor; 0.0316 is that of dropout at a rate of 0.001.
        negative: Share of the factors whose first mean is -1; the others have 1.
        kl_weight: β of the KL; 1 is the ELBO.
        kl_warmup: Share of the training over which β rises from 0; 200 of the paper's 250 epochs.
        mode: ``"reference"`` for the published prior, without negative factors, and the KL summed over the members.
    """
    rate = 0.1 if lr is None else lr
    if members < 1 or not 0 <= negative <= 1:
        raise ValueError(f"members count from 1, and negative is a share; got {members} and {negative}")
    beta = warmup(kl_weight, int(kl_warmup * steps))
    return Method(
        prepare=partial(with_factors, members=members, init_std=init_std, negative=negative),
        optimizer=lambda model: SGD(_groups(model, weight_decay), lr=rate, momentum=momentum, nesterov=momentum > 0),
        lr=rising(cosine(rate, steps), int(lr_warmup * steps)),
        collector=FactorPosterior,
        penalty=FactorKL(beta, task.n_data, prior_std, mode),
        calibrates=mode != "reference",
        lr_is_given=lr is not None,
    )


class Factor(nn.Module):
    """α or γ of all members: a Gaussian ``(members, size)``."""

    def __init__(self, members: int, size: int, init_std: float, negative: float) -> None:
        super().__init__()
        self.mean = nn.Parameter(1 - 2 * torch.empty(members, size).bernoulli_(negative))
        self.raw_std = nn.Parameter(inverse_softplus(torch.full((members, size), init_std)))

    def sample(self, member: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """A draw for each of some members, ``(n,) -> (n, size)``."""
        mean, std = self.mean.index_select(0, member), F.softplus(self.raw_std.index_select(0, member))
        return mean + std * torch.empty_like(mean).normal_(generator=generator)

    def kl(self, prior_std: float, mode: Mode = "default") -> Tensor:
        """KL to the prior summed over the entries: the mean over the members, or in reference mode their sum.

        That to a mixture of N(±1, s²) is that to the nearer one, but for a constant: they are 2/s stds apart.
        """
        std = F.softplus(self.raw_std)
        if mode == "reference":
            return normal_kl(self.mean - 1, std, prior_std)
        return normal_kl(self.mean.abs() - 1, std, prior_std) / len(std)


class Rank1(nn.Module):
    """A linear layer or convolution with factors.

    In training mode the factors of each example are drawn, in evaluation mode they are the means of its member.
    """

    def __init__(self, layer: Any, members: int, init_std: float = 0.0316, negative: float = 0.5) -> None:
        super().__init__()
        n_out, n_in = layer.weight.shape[0], layer.weight.shape[1] * getattr(layer, "groups", 1)
        self.layer, self.members = layer, members
        self.input, self.output = (Factor(members, size, init_std, negative) for size in (n_in, n_out))
        self.to(layer.weight)

    def forward(self, x: Tensor) -> Tensor:
        """The output γ ∘ W (α ∘ x) + b with the factors of each example's member."""
        member = torch.arange(len(x), device=x.device) % self.members
        if self.training:
            alpha, gamma = self.input.sample(member), self.output.sample(member)
        else:
            alpha, gamma = self.input.mean[member], self.output.mean[member]
        return self.product(x, alpha, gamma)

    def product(self, x: Tensor, alpha: Tensor, gamma: Tensor) -> Tensor:
        """The output γ ∘ W (α ∘ x) + b for factors of each example, ``(batch, inputs)`` and ``(batch, outputs)``."""
        channels = -1 if isinstance(self.layer, nn.Linear) else 1
        weight, bias = self.layer.weight, self.layer.bias
        x = x * _along(alpha, x.dim(), channels)
        y: Tensor = F.linear(x, weight) if channels == -1 else self.layer._conv_forward(x, weight, None)
        y = y * _along(gamma, y.dim(), channels)
        return y if bias is None else y + _along(bias[None], y.dim(), channels)

    def weight(self, alpha: Tensor, gamma: Tensor) -> Tensor:
        """W ∘ (γ αᵀ) for one pair of factors, in the shape of the layer's weight."""
        weight, groups = self.layer.weight, getattr(self.layer, "groups", 1)
        rows = alpha.view(groups, -1).repeat_interleave(len(weight) // groups, 0)  # an output sees those of its group
        rank_1 = gamma[:, None] * rows
        product: Tensor = weight * rank_1.view(*rank_1.shape, *[1] * (weight.dim() - 2))
        return product


@dataclass(frozen=True)
class FactorKL(WeightedKL):
    """β_t/N times the KL of all factors of a network."""

    prior_std: float
    mode: Mode = "default"
    is_gaussian = False

    def unscaled(self, model: nn.Module) -> Tensor:
        kls = [module.kl(self.prior_std, self.mode) for module in model.modules() if isinstance(module, Factor)]
        return torch.stack(kls).sum()


class FactorPosterior(Posterior, Collector):
    """The posterior of a network with factors; also the collector that makes it. A draw is a plain network."""

    def __init__(self, model: nn.Module | None = None, generator: torch.Generator | None = None) -> None:
        self.generator = generator
        if model is not None:
            self.model = model

    def to_tree(self) -> dict[str, Any]:
        return {"network": self.model}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        return cls(tree.network(partial(_with_members, tree)))

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        return FactorPosterior(model, self.generator)

    def draws(self, n: int) -> Iterator[nn.Module]:
        """Plain networks, as many of each member: each is valid until the next is drawn."""
        plain = {module: replica(module.layer) for module in self.model.modules() if isinstance(module, Rank1)}
        network = replica(self.model, {id(module): layer for module, layer in plain.items()})
        members = next(iter(plain)).members
        for member, share in enumerate(shares(n, members)):
            for _ in range(share):
                for module, layer in plain.items():
                    self._draw(module, layer, member)
                yield ready(network, None)

    @torch.no_grad()
    def _draw(self, module: Rank1, layer: Any, member: int) -> None:
        """Write the weight of a draw of a member into the plain layer."""
        at = torch.tensor([member], device=layer.weight.device)
        alpha, gamma = (factor.sample(at, self.generator)[0] for factor in (module.input, module.output))
        layer.weight.copy_(module.weight(alpha, gamma))


def with_factors(model: nn.Module, members: int, init_std: float = 0.0316, negative: float = 0.5) -> nn.Module:
    """The network with factors at every linear layer and convolution."""
    layers = [module for module in model.modules() if type(module) in LAYERS]
    if not layers:
        raise ValueError(
            "this network has no linear or convolutional layer whose weight could have factors: use ensemble"
        )
    return replace_layers(model, {id(layer): Rank1(layer, members, init_std, negative) for layer in layers})


def _with_members(tree: Saved, model: nn.Module) -> nn.Module:
    if any(isinstance(module, Rank1) for module in model.modules()):
        return model
    tensors = {name: value for name, value in tree.each("states")[0].content.items() if isinstance(value, Tensor)}
    members = {len(value) for name, value in tensors.items() if str(name).endswith("input.mean") and value.dim() == 2}
    # As many numbers as the network will have: a file cannot ask for more memory than it fills.
    sizes = sum(sum(m.weight.shape[:2]) for m in model.modules() if isinstance(m, LAYERS))
    if len(members) != 1 or 0 in members or max(members) * sizes > sum(map(torch.numel, tensors.values())):
        raise tree.error("states", "must have factors of the same number of members for each layer", OTHER_NETWORK)
    try:
        return with_factors(model, members.pop())
    except ValueError as error:
        raise tree.error("states", f"cannot be loaded: {error}", OTHER_NETWORK) from error


def _groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The factors have a prior, all else has weight decay."""
    factors = (p for module in model.modules() if isinstance(module, Factor) for p in module.parameters())
    others, own = apart(model, factors)
    return [others | {"weight_decay": weight_decay}, own | {"weight_decay": 0.0}]


def _along(values: Tensor, n_dims: int, channels: int) -> Tensor:
    ones = [1] * (n_dims - 2)
    return values.view(len(values), *ones, -1) if channels == -1 else values.view(len(values), -1, *ones)
