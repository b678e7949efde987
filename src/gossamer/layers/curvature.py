r"""A Gaussian weight whose standard deviations follow from the curvature of the loss.

Mean-field variational inference minimises, per example, the mean loss plus T/N times the KL to the prior N(0, s²).
Where its derivative with respect to σ² is zero,

.. math::
    \sigma^2 = \frac{T}{N (h + \delta)}, \qquad h = E_q \frac{\partial^2 L}{\partial\theta^2}, \qquad
    \delta = \frac{T}{N s^2}

so σ needs no parameter, no learning rate and no momentum: it is the curvature h, kept as a running mean. A backward
pass gives an estimate of h for both kinds of noise, ĥ = (∂L/∂σ)/σ. For weights drawn as μ + σε that is gε/σ, with g the
gradient at the drawn weight; for noise of the outputs it is 2 ∂L/∂σ².

The estimates are unbiased and noisy: the variance of gε/σ is that of the gradient times N(h + δ)/T, so the colder the
posterior, the less one weight alone says about its curvature. What is always well known is the mean square v of its
gradient, to which the curvature of a likelihood is proportional (Bartlett's identity), and, from all weights of a layer
together, the factor c. The running mean h̄ of the estimates is therefore drawn towards c·v by as much as noise explains
its distance from there (James and Stein 1961),

.. math:: h = c v + w (\bar h - c v), \qquad c = \frac{\sum \bar h}{\sum v}, \qquad
    w = 1 - \frac{\text{noise of } \bar h}{\sum (\bar h - c v)^2},

which is also what keeps h + δ positive. At T = 1 w is near one; in a cold or a short training it is near zero.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.kernels.dispatch import move_means, shrunk_curvature, std_of_means
from gossamer.kernels.reference import Function
from gossamer.layers.gaussian import GaussianWeight, set_options
from gossamer.layers.passes import GradientSum
from gossamer.layers.support import normals_at, version_of
from gossamer.layers.weight import RegrowStd, mean_among
from gossamer.priors import normal_kl

LEAST_MEMORY = 10  # estimates: the first ones are those of a network that knows nothing yet
EARLY, PERIOD = (1, 2, 4, 8, 16), 25  # estimates after which their noise is looked at: some, and then every so many
LEAST = 0.1  # of c·v: noise alone can make an entry look flatter
NO_SQUARE = 1e-30  # before the first gradient: its product with the least of AS_IS is below any curvature
AS_IS = (0.0, 1.0, -1e38, 0.0)  # a shrinkage that changes nothing, and knows nothing
IDLE = (
    "the standard deviations of this network do not learn: give them gossamer.Curvature(model, optimizer, n_data), or "
    "convert with gossamer.bayesianize(model, std='gradient') and add gossamer.kl(model) / n_data to the loss"
)
COUNTED = (
    "gossamer.Curvature puts the prior into the gradients, and the KL would count it twice: leave gossamer.kl(model) "
    "out of the loss, and compute it under torch.no_grad() to look at it"
)


class CurvatureWeight(GaussianWeight):
    """Active entries with a mean and a curvature h, from which the standard deviation follows.

    ``noise_scale`` is T/N and ``damping`` δ. Until :class:`gossamer.Curvature` sets them, ``noise_scale`` is 1 and h a
    precision: the weight is the Gaussian that it was made as. ``curvature`` is the running mean h̄ of the estimates,
    ``grad_square`` that of squared gradients, and ``shrunk`` the h that σ is computed from. The prior N(m, T/Nδ) has
    m = 0 or, with a ``prior_spread``, normal numbers of that standard deviation.

    Example:
        >>> from gossamer.layers import Support
        >>> weight = CurvatureWeight(Support((2, 2)), torch.zeros(4), torch.full((4,), 0.5), prior_std=1.0)
        >>> weight.std, weight.curvature
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([3., 3., 3., 3.]))
        >>> attach(weight, noise_scale=0.01)
        >>> weight.std.detach(), weight.curvature, weight.damping
        (tensor([0.5000, 0.5000, 0.5000, 0.5000]), tensor([0.0300, 0.0300, 0.0300, 0.0300]), 0.01)
    """

    vectors = ("mean", "curvature", "grad_square")
    alike_on_ranks = ("curvature", "grad_square", "shrinkage")
    curvature: Tensor
    grad_square: Tensor
    shrinkage: Tensor

    def _start(self, std: Tensor, prior_std: float) -> None:
        self.noise_scale, self.damping = 1.0, prior_std**-2
        self.memory, self.n_estimates = 0.1, -1  # of the running mean; -1 before anything learns
        self.prior_seed, self.prior_spread = 0, 0.0  # of the prior's mean, which is zero without a spread
        self._prior_mean: tuple[Tensor | None, Any, Tensor] | None = None  # and the positions that it was computed for
        self.learner: object = None  # who takes the estimates; the last one that asked
        self.estimates = Estimates()
        # In float32 at least, whatever the network is in: a running mean moves by less than bfloat16 can show.
        std = std.to(torch.promote_types(std.dtype, torch.float32))
        self.register_buffer("curvature", curvature_of_std(std, self.noise_scale, self.damping))
        self.register_buffer("grad_square", torch.full_like(self.curvature, NO_SQUARE))
        # c, w, the least h/v, the noise of h̄. Never changed in place: copies of a network share it.
        self.register_buffer("shrinkage", self.curvature.new_tensor(AS_IS), persistent=False)

    @property
    def prior_std(self) -> float:  # type: ignore[override]
        """Standard deviation of the prior, √(T / Nδ)."""
        return math.sqrt(self.noise_scale / self.damping)

    @property
    def prior_mean(self) -> Tensor:
        """Mean of the prior: zero, or normal numbers of its own, which follow from a seed and the positions alone."""
        if not self.prior_spread:
            return self.mean.new_zeros(())
        position = self.support.position
        now = version_of(position), self.mean.device, self.mean.dtype
        if self._prior_mean is None or self._prior_mean[0] is not position or self._prior_mean[1] != now:
            numbers = normals_at(self.support.positions(self.mean.device), self.prior_seed)
            self._prior_mean = position, now, (self.prior_spread * numbers).to(self.mean)
        return self._prior_mean[2]

    def kl(self) -> Tensor:
        """KL(q ‖ prior) of what training learns, before any calibration: summed over the active entries, in nats."""
        return normal_kl(deviation(self, self.mean), self.learnt_std(), self.prior_std)

    def learnt_std(self, factor: float = 1.0) -> Tensor:
        """σ = √(T / N(h + δ)). Its gradient, if it is asked for, goes to the estimate of h."""
        held: Any = self._parameters or vars(self)  # replicas of nn.DataParallel have no parameters
        mean, means, variance = held["mean"], _means(self), factor * self.noise_scale
        if self.learner is None or not (torch.is_grad_enabled() and mean.requires_grad):
            return std_of_means(*means, variance, self.damping).to(mean.dtype)
        leaf = self.estimates.leaf
        if leaf is None or leaf.shape != means[0].shape:  # was frozen, or has another length
            leaf = self.estimates.listen(mean, means[0])
        std: Tensor = _Std.apply(leaf, *means, variance, self.damping)
        return std.to(mean.dtype)

    @property
    def shrunk(self) -> Tensor:
        """h, from the running means and what is known of their noise."""
        return shrunk_curvature(*_means(self))

    @torch.no_grad()
    def set_std(self, std: Tensor) -> None:
        """Hold these standard deviations from now on, without a calibration."""
        self.calibration = 1.0
        self.shrinkage = self.curvature.new_tensor(AS_IS)
        self.grad_square.clamp_min_(NO_SQUARE)
        self.curvature.copy_(curvature_of_std(std.to(self.curvature), self.noise_scale, self.damping))

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        """A new entry starts at mean 0 and the mean curvature of its layer, or at the curvature of a given σ."""
        among = kept | ~kept.any()  # all of them where none is kept
        fill = mean_among(self.curvature, among)
        return {
            "mean": self.mean.detach().new_zeros(()),
            "curvature": regrown_curvature(self, fill, regrow_std),
            "grad_square": mean_among(self.grad_square, among),
        }

    def get_extra_state(self, *shrinkage: float) -> Tensor:
        """12 numbers: 4 of any Gaussian, 4 of the curvature, and 4 of its noise; 2 more if the prior has a mean."""
        shrinkage = shrinkage or tuple(self.shrinkage.tolist())
        numbers = [self.noise_scale, self.damping, self.memory, self.n_estimates, *shrinkage]
        numbers += [self.prior_seed, self.prior_spread] if self.prior_spread else []
        return torch.cat([super().get_extra_state(), torch.tensor(numbers, dtype=torch.float64)])

    def set_extra_state(self, state: Tensor) -> None:
        of_gaussian, own, shrinkage, of_prior = state.tensor_split((4, 8, 12))
        prior_std, *options = of_gaussian.tolist()
        self.damping = self.noise_scale / prior_std**2
        set_options(self, *options)
        seed, self.prior_spread = of_prior.tolist() or (0, 0.0)
        self.prior_seed, self._prior_mean = int(seed), None
        if not len(own):  # of std="gradient"
            return
        # After it, and to the bit: the prior std is a root of their ratio.
        self.noise_scale, self.damping, self.memory, n_estimates = own.tolist()
        self.n_estimates = int(n_estimates)
        # The running mean of the first networks of version 0.3 was positive by itself: they have no shrinkage.
        factor, share, least, noise = shrinkage.tolist() or AS_IS
        self.shrinkage = self.curvature.new_tensor([factor, share, least, noise])

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        if prefix + "curvature" in state_dict:  # of a posterior in a file
            unknown = torch.full_like(state_dict[prefix + "curvature"], NO_SQUARE)
            state_dict.setdefault(prefix + "grad_square", unknown)
        super()._load_from_state_dict(state_dict, prefix, *args)

    def stored(self) -> dict[str, Tensor]:
        """The curvature as σ uses it, and nothing that only training needs."""
        return {"mean": self.mean.detach(), "curvature": self.shrunk, "_extra_state": self.get_extra_state(*AS_IS)}

    @property
    def objection(self) -> str | None:
        return IDLE if self.learner is None else COUNTED

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"learner": None, "estimates": Estimates(), "_prior_mean": None}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self.curvature, self.grad_square, self.shrinkage
        super()._apply(fn, recurse)
        if self.curvature.dtype in (torch.float16, torch.bfloat16):
            device = self.curvature.device
            self.curvature, self.grad_square, self.shrinkage = (one.to(device) for one in before)
        if self.learner is not None:
            self.estimates.listen(self.mean, self.curvature)  # on the new device
        return self


class Estimates:
    """The sum of the estimates ĥ of the backward passes that ``mean.grad`` holds: the gradient of a leaf beside h.

    Each pass is followed, since a loop may clear ``mean.grad`` between two of them, until it calls :meth:`zero_grad`.
    """

    def __init__(self) -> None:
        self.leaf: Tensor | None = None
        self.follows = True
        self._sum: GradientSum | None = None

    def listen(self, mean: nn.Parameter, like: Tensor) -> Tensor | None:
        """Begin anew, with a leaf of this length, type and device."""
        if self._sum is not None:
            self._sum.detach()
        self._sum = self.leaf = None
        if not mean.requires_grad:  # a frozen weight listens when it is used again
            return None
        # An expanded zero takes the memory of one number.
        self.leaf = torch.zeros((), dtype=like.dtype, device=like.device).expand(like.shape).requires_grad_()
        if self.follows:
            self._sum = GradientSum(mean, self.clear)
            self._sum.attach(self.leaf)
        return self.leaf

    def zero_grad(self) -> None:
        """Forget the passes so far, now and whenever ``mean.grad`` is cleared."""
        if self._sum is not None:
            self._sum.detach()
        self.follows, self._sum = False, None
        self.clear()

    def clear(self) -> None:
        """Forget the passes so far."""
        if self.leaf is not None:
            self.leaf.grad = None

    def take(self, mean: nn.Parameter) -> Tensor | None:
        """The sum, to begin another; ``None`` if there was no pass."""
        taken = None if self.leaf is None or mean.grad is None else self.leaf.grad
        self.clear()
        return taken

    def put(self, estimate: Tensor | None, mean: nn.Parameter) -> None:
        """What :meth:`take` is to return, unless a backward pass adds to it."""
        if estimate is not None and (self.leaf is None or self.leaf.shape != estimate.shape):
            self.listen(mean, estimate)
        if self.leaf is not None:
            self.leaf.grad = estimate


@torch.no_grad()
def attach(
    weight: CurvatureWeight,
    noise_scale: float,
    damping: float | None = None,
    memory: float = 0.1,
    learner: object = None,
) -> None:
    """Learn h from now on, with T/N and δ as given; the prior stays as it is where δ is ``None``.

    σ is the same before and after the first call, but not wider than the prior. Later calls keep h, which does not
    depend on T and N; the estimates then go to the last ``learner``.
    """
    std, prior_std = weight.learnt_std(), weight.prior_std
    weight.learner = learner or object()
    weight.noise_scale = noise_scale
    weight.damping = noise_scale / prior_std**2 if damping is None else damping
    weight.calibration, weight.memory = 1.0, memory
    if weight.n_estimates < 0:
        weight.n_estimates = 0
        weight.set_std(std)
        weight.curvature.clamp_min_(0)
    weight.estimates.follows = True
    weight.estimates.listen(weight.mean, weight.curvature)


def _means(weight: CurvatureWeight) -> tuple[Tensor, Tensor, Tensor]:
    held: Any = weight._buffers
    like = held["curvature"]  # a state may have been assigned in another precision
    return like, held["grad_square"].to(like.dtype), held["shrinkage"].to(like.dtype)


def deviation(weight: CurvatureWeight, mean: Tensor) -> Tensor:
    """μ - m, the distance from the mean of the prior."""
    return mean - weight.prior_mean if weight.prior_spread else mean


def learn(weight: CurvatureWeight, estimate: Tensor, grad: Tensor) -> None:
    """Move h towards an estimate, given the gradient of the means without the prior's part."""
    held: Any = weight._buffers
    move_means(held["curvature"], held["grad_square"], estimate, grad, rate_of(weight))
    count_estimate(weight, estimate)


def rate_of(weight: CurvatureWeight) -> float:
    """1 - b of the running mean: it averages over a share of the estimates so far, and at least over some."""
    return 1 / min(weight.n_estimates + 2, LEAST_MEMORY + weight.memory * weight.n_estimates)


def count_estimate(weight: CurvatureWeight, estimate: Tensor) -> None:
    """One more estimate is in the running means."""
    rate = rate_of(weight)
    weight.n_estimates += 1
    if weight.n_estimates in EARLY or weight.n_estimates % PERIOD == 0:
        since = min(PERIOD, weight.n_estimates - max((n for n in EARLY if n < weight.n_estimates), default=0))
        means = weight.curvature, weight.grad_square
        weight.shrinkage = shrinkage_of(*means, estimate, weight.shrinkage, rate, since)


def regrown_curvature(weight: CurvatureWeight, mean: Tensor, regrow_std: RegrowStd | None) -> Tensor:
    """Curvature of a new entry, given the mean of those that stay."""
    if regrow_std is None or isinstance(regrow_std, str):
        return mean
    return mean.new_full((), weight.noise_scale / regrow_std**2 - weight.damping)


def curvature_of_std(std: Tensor, variance: float, damping: float) -> Tensor:
    """The h of a given σ: the largest finite number where that of a tiny σ is none."""
    return (variance / std.square()).clamp_max_(torch.finfo(std.dtype).max) - damping


def shrinkage_of(
    curvature: Tensor, square: Tensor, estimate: Tensor, before: Tensor, rate: float, since: int
) -> Tensor:
    """How much of the running mean of a layer is noise, once an ``estimate`` has moved it by ``rate``.

    Its noise, the squared error that the estimates bring into it, is what is left of that at the last look, ``since``
    so many estimates, and that of those since then, which are taken to be as noisy as this one. It is measured in units
    of v, in which the entries of a layer are about alike. A sum of curvatures that noise has made negative, or next to
    nothing, is lifted to a tenth of its standard error.
    """
    unit = square + square.mean()
    size = unit.square().mean()
    variance = ((estimate - curvature) / ((1 - rate) * unit)).square().mean()  # from the mean before it moved
    left = (1 - rate) ** (2 * since)
    noise = left * before[3] + (1 - left) * rate / (2 - rate) * variance * size
    noise = torch.where(noise.isfinite(), noise, before[3])
    factor = torch.maximum(curvature.sum(), LEAST * (noise * len(square)).sqrt()) / square.sum()
    share = (1 - noise / (((curvature - factor * square) / unit).square().mean() * size)).clamp(0, 1)
    looked = torch.stack([factor, share, LEAST * factor, noise])
    looked = torch.where(looked.isfinite().all(), looked, before)
    return torch.cat([looked[:2], looked[2:3].clamp_min(0), looked[3:]])


class _Std(Function):
    """σ from h; the gradient with respect to σ becomes the estimate ĥ = (∂L/∂σ)/σ, for the leaf beside h."""

    generate_vmap_rule = True

    @staticmethod
    def forward(
        estimate: Tensor, curvature: Tensor, square: Tensor, shrinkage: Tensor, variance: float, damping: float
    ) -> Tensor:
        return std_of_means(curvature, square, shrinkage, variance, damping)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(output)
        ctx.device = inputs[0].device

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        # Replicas of nn.DataParallel have their h on another device, and one leaf for all.
        return (grads[0] / ctx.saved_tensors[0]).to(ctx.device), None, None, None, None, None
