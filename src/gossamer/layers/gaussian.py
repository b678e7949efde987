"""A weight whose active entries are independent Gaussians N(μ, σ²): mean-field variational inference.

Local reparameterization (SSVI section 3.1), since the output of a map that is linear in W is Gaussian too:
y = W_μ x + b + sqrt(W_σ² x²) · ε with one ε per output. Exact for linear layers; for convolutions it treats the output
pixels as independent, as the paper does.

``noise="weights"`` trains with one draw of the weights for the whole batch instead: y = (W_μ + W_σ ε) x + b with one ε
per active entry, the released code's ``same_noise``. It takes one product instead of two; the gradient is unbiased too,
but noisier, since all examples of a batch share their noise.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from gossamer import kernels
from gossamer.kernels.reference import Function
from gossamer.layers.support import Support
from gossamer.layers.weight import RegrowStd, SparseWeight, mean_among, sparse_weights
from gossamer.priors import normal_kl
from gossamer.types import Mode, Noise, Penalty, Schedule

STD_FLOOR = 1e-30  # far below any noise that counts; its inverse leaves room for the factor of a scaled loss


class GaussianWeight(SparseWeight):
    """Active entries with a mean and a standard deviation ``std = softplus(raw_std)``.

    Args:
        support: Where the entries are.
        mean: μ, ``(n_active,)``.
        std: Initial σ, ``(n_active,)``.
        prior_std: Standard deviation of the prior N(0, prior_std²) of every entry.
        mode: ``"reference"`` keeps the released code's floor inside the square root.
        noise: What training passes draw; evaluations draw local noise, whatever trained the weight.

    Example:
        >>> weight = GaussianWeight(Support((2, 2)), torch.zeros(4), torch.full((4,), 0.5), prior_std=0.5)
        >>> weight.std
        tensor([0.5000, 0.5000, 0.5000, 0.5000], grad_fn=<_SoftplusBackward>)
        >>> weight.kl().item()
        0.0
    """

    vectors: ClassVar[tuple[str, ...]] = ("mean", "raw_std")
    noises_outputs = True
    raw_std: nn.Parameter

    def __init__(
        self,
        support: Support,
        mean: Tensor,
        std: Tensor,
        prior_std: float,
        mode: Mode = "default",
        noise: Noise = "local",
    ) -> None:
        super().__init__(support, mean)
        self.mode, self.noise = mode, noise
        self._start(std, prior_std)

    @classmethod
    def blank(cls, support: Support, like: Tensor) -> Self:
        """Every entry N(0, 1)."""
        ones = like.new_ones(support.n_active)
        return cls(support, torch.zeros_like(ones), ones, prior_std=1.0)

    def _start(self, std: Tensor, prior_std: float) -> None:
        """Hold the first σ."""
        self.raw_std = nn.Parameter(inverse_softplus(std))
        self.prior_std = prior_std

    @property
    def std(self) -> Tensor:
        """σ of draws and evaluations: as learnt, times the root of the calibration."""
        return self.learnt_std(self.calibration)

    def learnt_std(self, factor: float = 1.0) -> Tensor:
        """σ = softplus(raw_std), never below a floor, so that its logarithm and the gradient of it are finite."""
        std = std_of(self.raw_std)
        return std if factor == 1 else std * math.sqrt(factor)

    @torch.no_grad()
    def set_std(self, std: Tensor) -> None:
        """Hold these standard deviations from now on, without a calibration."""
        self.calibration = 1.0
        self.raw_std.copy_(inverse_softplus(std))

    @property
    def objection(self) -> str | None:
        """Why the KL does not belong into the loss; ``None`` where it does."""
        return None

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of what training learns, before any calibration: summed over the active entries, in nats."""
        return normal_kl(self.mean, self.learnt_std(), self.prior_std)

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        """``mean + std · ε``, one ε per entry."""
        is_pass, mean = std is None, self.mean
        std = self.learnt_std(self.width) if std is None else std
        # The same numbers as of several draws at once. A pass may be traced, exported, or repeated for its gradient.
        if not is_pass and not torch.is_grad_enabled() and kernels.is_seeded(mean):
            return kernels.sampled(mean, std.detach(), kernels.seeds((1,), generator))[0]
        if generator is None:  # randn_like can be traced, exported and mapped over draws; it takes no generator
            return torch.addcmul(mean, std, torch.randn_like(mean))
        noise = torch.randn(mean.shape, generator=generator, device=generator.device, dtype=mean.dtype)
        return torch.addcmul(mean, std, noise.to(mean.device))

    def get_extra_state(self) -> Tensor:
        """What the distribution is besides its vectors: a tensor, as safetensors stores nothing else."""
        flags = self.mode == "reference", self.noise == "weights"
        return torch.tensor([self.prior_std, *map(float, flags), self.calibration], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        self.prior_std, *options = state.tolist()
        set_options(self, *options)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        own, other = ("gradient", "curvature") if "raw_std" in self.vectors else ("curvature", "gradient")
        if prefix + {"curvature": "curvature", "gradient": "raw_std"}[other] in state_dict:
            raise ValueError(
                f"{prefix[:-1]} is of a network that was converted with std={other!r}, and this one has std={own!r}: "
                f"convert it with gossamer.bayesianize(model, std={other!r})"
            )
        super()._load_from_state_dict(state_dict, prefix, *args)

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry starts at mean 0 and the std of its layer: at σ = 0 the gradient of σ would vanish."""
        among = kept | ~kept.any()  # all of them where none is kept
        raw = regrown_raw_std(self.raw_std.detach(), self.regrows(regrow_std), lambda values: mean_among(values, among))
        return {"mean": torch.zeros_like(raw), "raw_std": raw}

    def regrows(self, regrow_std: RegrowStd | None) -> RegrowStd:
        """How σ of a new entry is chosen: as the user asked, or by the default of the mode."""
        return regrow_std or ("mean_raw" if self.mode == "reference" else "mean")


def set_options(weight: GaussianWeight, is_reference: float, draws_weights: float, calibration: float) -> None:
    """What a saved state says besides the prior."""
    weight.mode = "reference" if is_reference else "default"
    weight.noise = "weights" if draws_weights else "local"
    weight.calibration = calibration


def kl(model: nn.Module) -> Tensor:
    """KL(q ‖ prior) of all active weights, summed, in nats; tied weights count once.

    Divide by the number of training examples when the loss is a mean over examples: then the objective is the negative
    ELBO per example and does not depend on the batch size. Standard deviations that follow from curvature
    (``std="curvature"``) need no KL in the loss: :class:`gossamer.Curvature` has the prior in it.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(100, 10), density=0.1, std="gradient")
        >>> bool(gossamer.kl(model) > 0)
        True
    """
    weights = [weight for weight in _converted(model).values() if isinstance(weight, GaussianWeight)]
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        for objection in {weight.objection for weight in weights if weight.training} - {None}:
            warnings.warn(str(objection), stacklevel=2)
    terms = [weight.kl() for weight in weights]
    return torch.stack(terms).sum() if terms else torch.zeros(())


@dataclass(frozen=True)
class WeightedKL(Penalty):
    """The penalty ``weight(step) · KL / N``: mean loss plus penalty is the negative ELBO per example at weight 1.

    Example:
        >>> WeightedKL(lambda step: 0.5, n_data=100).scale(7)
        0.005
    """

    weight: Schedule
    n_data: int
    is_gaussian = True

    def scale(self, step: int) -> float:
        return self.weight(step) / self.n_data

    def __call__(self, model: nn.Module, step: int) -> Tensor:
        """The penalty of a converted network at a step."""
        return self.unscaled(model) * self.scale(step)

    def unscaled(self, model: nn.Module) -> Tensor:
        return kl(model)

    def chosen(self, model: nn.Module, steps: int) -> dict[str, float]:
        return {"kl_weight": self.weight(steps)}


def param_groups(model: nn.Module, weight_decay: float = 0.0, std_lr: float | None = None) -> list[dict[str, Any]]:
    """Parameter groups for any ``torch.optim`` optimizer: means, stds, the rest.

    The stds get no weight decay: it would pull ``softplus(raw_std)`` towards log 2. The prior already pulls Gaussian
    means towards zero, so ``weight_decay`` is zero unless you ask for it.

    Args:
        model: A converted network.
        weight_decay: For the means and the rest.
        std_lr: Learning rate of the stds; ``None`` takes the optimizer's. Adam needs no rate of its own here. For SGD
            the gradient of a mean loss with respect to log σ is of order 1/N, so a natural-gradient step takes
            ``lr * n_data / 2`` (the Fisher information of log σ is 2).

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Linear(100, 10), density=0.1, std="gradient")
        >>> optimizer = torch.optim.SGD(gossamer.param_groups(model, weight_decay=5e-4), lr=0.01, momentum=0.9)
        >>> [(group["name"], group["weight_decay"]) for group in optimizer.param_groups]
        [('means', 0.0005), ('stds', 0.0), ('rest', 0.0005)]
    """
    if std_lr is not None and not std_lr >= 0:  # torch checks the rate of the optimizer only
        raise ValueError(f"std_lr must not be negative, got {std_lr}")
    weights = _converted(model).values()
    means = [weight.mean for weight in weights]
    stds = [weight.raw_std for weight in weights if "raw_std" in weight.vectors]
    taken = {id(parameter) for parameter in [*means, *stds]}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in taken]
    groups: list[dict[str, Any]] = [
        {"name": "means", "params": means, "weight_decay": weight_decay},
        {"name": "stds", "params": stds, "weight_decay": 0.0} | ({} if std_lr is None else {"lr": std_lr}),
        {"name": "rest", "params": rest, "weight_decay": weight_decay},
    ]
    for group in groups:
        group["params"] = [parameter for parameter in group["params"] if parameter.requires_grad]
    return [group for group in groups if group["params"]]


def _converted(model: nn.Module) -> dict[str, SparseWeight]:
    weights = sparse_weights(model)
    if not weights:
        raise ValueError("this model has no sparse weights: convert it with gossamer.bayesianize(model) first")
    return weights


def regrown_raw_std(raw_std: Tensor, how: RegrowStd, average: Callable[[Tensor], Tensor]) -> Tensor:
    """The raw std of a new entry, for one weight or many; ``average`` takes the mean over the entries that stay."""
    if how == "mean_raw":
        return average(raw_std)
    std = std_of(raw_std)
    return inverse_softplus(average(std) if how == "mean" else std.new_full((), how))


def std_of(raw_std: Tensor) -> Tensor:
    """σ = softplus(raw_std), with a floor."""
    std: Tensor = _Softplus.apply(raw_std)
    return std


def raw_std_gradient(raw_std: Tensor, std_gradient: Tensor) -> Tensor:
    """The gradient of the raw std from that of σ: softplus' is the sigmoid."""
    return std_gradient * raw_std.sigmoid()


class _Softplus(Function):
    """log(1 + eˣ) with a floor; saves the extra passes that the gradient of a clamp would take."""

    generate_vmap_rule = True

    @staticmethod
    def forward(raw: Tensor) -> Tensor:
        return torch.nn.functional.softplus(raw).clamp_min_(max(STD_FLOOR, torch.finfo(raw.dtype).tiny))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return raw_std_gradient(ctx.saved_tensors[0], grads[0])


def inverse_softplus(std: Tensor) -> Tensor:
    """The x with softplus(x) = std, accurate from the smallest numbers to the largest.

    Example:
        >>> torch.nn.functional.softplus(inverse_softplus(torch.tensor([1e-6, 1.0, 100.0])))
        tensor([1.0000e-06, 1.0000e+00, 1.0000e+02])
    """
    return std + torch.log(-torch.expm1(-std))
