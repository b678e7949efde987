"""Divergences from priors, as functions of the mean and the standard deviation of each weight."""

import math
from typing import Any

import torch
from torch import Tensor

from gossamer.kernels.reference import Function

__all__ = ["log_uniform_kl", "normal_kl", "normal_kl_gradients", "normal_kl_sum"]


def normal_kl(mean: Tensor, std: Tensor, prior_std: float | Tensor) -> Tensor:
    r"""KL( N(μ, σ²) ‖ N(0, s²) ), summed over all entries, in nats; s may differ from entry to entry.

    .. math:: \sum_i \log\frac{s}{\sigma_i} + \frac{\sigma_i^2 + \mu_i^2}{2 s^2} - \frac12

    It is a sum over weights and does not know the batch; divide it by the number of training examples when the loss is
    a mean over examples. Half-precision inputs are summed in float32.

    Example:
        >>> normal_kl(torch.tensor([1.0]), torch.tensor([1.0]), prior_std=1.0)
        tensor(0.5000)
    """
    if mean.dtype in (torch.float16, torch.bfloat16):
        mean, std = mean.float(), std.float()
    divergence: Tensor = _NormalKL.apply(mean, std, prior_std)
    return divergence


def log_uniform_kl(mean: Tensor, std: Tensor) -> Tensor:
    r"""KL( N(μ, σ²) ‖ p(w) ∝ 1/|w| ) of each entry, in nats, up to the constant that makes it 0 where α = σ²/μ² → ∞.

    The approximation of Molchanov, Ashukha and Vetrov (ICML 2017, eq. 14), with s the logistic function:

    .. math:: k_1 \, s(-k_2 - k_3 \log\alpha) + \tfrac12 \log(1 + 1/\alpha), \qquad k = (0.63576, 1.87320, 1.48695)

    Example:
        >>> log_uniform_kl(torch.tensor([1.0, 1.0, 0.0]), torch.tensor([0.1, 10.0, 1.0])).round(decimals=3)
        tensor([2.9390, 0.0050, 0.0000])
    """
    log_alpha = log_noise(mean, std)
    return 0.63576 * torch.sigmoid(-1.87320 - 1.48695 * log_alpha) + 0.5 * torch.nn.functional.softplus(-log_alpha)


def log_noise(mean: Tensor, std: Tensor) -> Tensor:
    """Logarithm of the noise α = σ²/μ², finite where μ = 0; in float32 at least."""
    dtype = torch.promote_types(mean.dtype, torch.float32)
    mean, std = mean.to(dtype), std.to(dtype)
    return 2 * std.log() - mean.square().clamp_min(1e-30).log()


def normal_kl_sum(mean: Tensor, std: Tensor, prior_std: float | Tensor) -> Tensor:
    """The value of :func:`normal_kl`, without a gradient; ``prior_std`` may differ from entry to entry."""
    log_prior = prior_std.log() if isinstance(prior_std, Tensor) else math.log(prior_std)
    squares = (std / prior_std).square_().sum() + (mean / prior_std).square_().sum()
    # log σ - log s, not log(σ/s): the quotient of the smallest std would be subnormal.
    return 0.5 * (squares - std.numel()) - std.log().sub_(log_prior).sum()


def normal_kl_gradients(mean: Tensor, std: Tensor, prior_std: float | Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of ``scale`` times the KL with respect to μ and σ: μ/s² and σ/s² - 1/σ, times the scale."""
    precision = scale / prior_std**2
    return mean * precision, torch.addcdiv(std * precision, scale, std, value=-1)


class _NormalKL(Function):
    """The sum and its gradient in closed form: a third of the passes over the weights that autograd would make."""

    generate_vmap_rule = True

    @staticmethod
    def forward(mean: Tensor, std: Tensor, prior_std: float | Tensor) -> Tensor:
        return normal_kl_sum(mean, std, prior_std)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        mean, std, ctx.prior_std = inputs
        ctx.save_for_backward(mean, std)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        mean, std = ctx.saved_tensors
        return *normal_kl_gradients(mean, std, ctx.prior_std, grads[0]), None
