"""Conversion of any ``nn.Module`` into a sparse Bayesian network, or into a sparse deterministic one."""

import math
from collections.abc import Callable, Container, Sequence
from contextlib import nullcontext
from numbers import Real
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from gossamer._text.names import lookup
from gossamer.kernels.ordered import top_mask
from gossamer.layers import (
    CurvatureWeight,
    DenseWeight,
    Found,
    GaussianWeight,
    PointWeight,
    SparseWeight,
    Support,
    find,
    match_names,
    sparse_weights,
    swap,
)
from gossamer.layers.summary import warn_of_the_rest
from gossamer.sparsity.allocation import ALLOCATION, global_, uniform, uniform_reference
from gossamer.types import Allocation, LayerStats, Mode, Noise, Std

Init = Literal["fresh", "pretrained", "pretrained_random"]

# In units of 1/√(active fan-in), the scale at which the inputs of a unit add up to one; chosen on held-out digits.
PRIOR_SCALE = 2.0
INIT_STD_SCALE = 0.1

# σ of a pretrained weight as a share of the rms of the weights of its layer: small enough to predict as before.
PRETRAINED_STD = 0.05

# The released code of the SSVI paper: one scale for every layer, whatever its fan-in.
REFERENCE_PRIOR_STD = 0.005
REFERENCE_MEAN_STD = 0.01
REFERENCE_STD = (0.0006, 0.0005)


def bayesianize(
    model: nn.Module,
    density: float = 0.05,
    *,
    prior_std: float | None = None,
    init_std: float | None = None,
    relative_std: float | None = None,
    allocation: str | Allocation = "uniform",
    keep_dense: str | Sequence[str] = "first_conv",
    exclude: Sequence[str | type[nn.Module]] = (),
    init: Init = "fresh",
    mode: Mode = "default",
    noise: Noise = "local",
    std: Std | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Convert ``model`` in place into a Bayesian network of which only a share ``density`` of the weights is active.

    Linear and convolutional layers (transposed ones too), embeddings, attention and recurrent layers are converted;
    biases, normalisation layers and everything else stay deterministic (:func:`gossamer.summary` says what and why).
    Every active weight has a mean and a standard deviation; the others are exactly zero and stored nowhere. A pass
    through the network is one draw, in ``train()`` and in ``eval()`` mode alike.

    Args:
        model: Any module. It is changed and returned, except for a bare layer, of which a new one is returned.
        density: Share of active weights, in (0, 1]; 1.0 is dense variational inference.
        prior_std: Prior standard deviation of every weight; ``None`` takes 2/√(active fan-in) of each layer.
        init_std: Initial standard deviation of every weight; ``None`` takes a tenth of 1/√(active fan-in) for fresh
            weights and ``relative_std`` for pretrained ones.
        relative_std: Initial standard deviation of every weight as a share of the root mean square of the weights that
            its layer starts with; ``None`` is 0.05 for pretrained weights. Smaller values predict closer to the given
            network.
        allocation: ``"uniform"``, ``"erk"``, ``"global"`` (a budget that :class:`gossamer.Subspace` moves between
            layers), or a function of (layers, density).
        keep_dense: Layers whose every weight is active: ``"first_conv"`` (the first layer if it is a convolution, as in
            the paper), or names; ``()`` for none. Names may hold ``*``.
        exclude: Names or types of modules that stay as they are.
        init: ``"fresh"`` draws means at the scale of the given weights over √density, so that signals keep their size;
            ``"pretrained"`` keeps the largest given weights, ``"pretrained_random"`` a random choice of them.
        mode: ``"reference"`` starts and computes as the released code of the paper does.
        noise: What a pass in ``train()`` mode draws: ``"local"`` draws noise for each output (local
            reparameterization); ``"weights"`` draws the weights, once for the whole batch: half the products, and a
            noisier gradient.
        std: How the standard deviations learn: ``"curvature"``, by :class:`gossamer.Curvature` beside the optimizer, or
            ``"gradient"``, as parameters of the optimizer with :func:`gossamer.kl` in the loss. ``None`` is the first,
            and the second in reference mode.
        generator: Random generator for the choice of active weights and for the initial draws.

    Example:
        >>> import gossamer
        >>> model = gossamer.bayesianize(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), density=0.1)
        >>> gossamer.layers.active_parameters(model), model[0].mean.shape, model[0].support.shape
        (1894, torch.Size([1638]), (256, 64))
    """
    check_choice("mode", mode, get_args(Mode))
    check_choice("noise", noise, get_args(Noise))
    std = std or ("gradient" if mode == "reference" else "curvature")
    check_choice("std", std, get_args(Std))
    if mode == "reference" and std == "curvature":
        raise ValueError("mode='reference' does what the released code does, which has std='gradient'")
    kind = GaussianWeight if std == "gradient" else CurvatureWeight
    for name, value in (("prior_std", prior_std), ("init_std", init_std), ("relative_std", relative_std)):
        check_positive(name, value)
    if init_std is not None and relative_std is not None:
        raise ValueError("init_std and relative_std both set the initial standard deviation: give one of them")
    reference = mode == "reference"

    def gaussian(dense: DenseWeight, support: Support) -> GaussianWeight:
        scale = _scale(dense, support)
        share = relative_std
        if reference:
            mean = _normal(support, generator) * REFERENCE_MEAN_STD if init == "fresh" else support.gather(dense.values)
            first_std = _reference_std(support, generator) if init_std is None else _full(support, init_std)
            prior = prior_std or REFERENCE_PRIOR_STD
        else:
            mean = _initial_mean(dense, support, init, generator)
            first_std = _full(support, init_std or INIT_STD_SCALE * scale)
            prior = prior_std or PRIOR_SCALE * scale
            share = share or (PRETRAINED_STD if init != "fresh" and init_std is None else None)
        if share is not None:
            first_std = _full(support, share * (rms(mean) or scale))  # weights that are all zero have no scale
        like = dense.tensor.detach()
        return kind(support, mean.detach().to(like), first_std.to(like), prior, mode, noise)

    is_released = reference and allocation == "uniform"
    budget = uniform_reference if is_released else lookup("allocation", allocation, ALLOCATION)
    return convert(model, gaussian, density, budget, keep_dense, exclude, init, generator)


def sparsify(
    model: nn.Module,
    density: float = 0.05,
    *,
    allocation: str | Allocation = "uniform",
    keep_dense: str | Sequence[str] = "first_conv",
    exclude: Sequence[str | type[nn.Module]] = (),
    init: Init = "fresh",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Convert ``model`` in place into a deterministic network of which only a share ``density`` of weights is active.

    The same conversion and the same storage as :func:`bayesianize`, without standard deviations; with
    ``Subspace(removal="magnitude")`` this is RigL.

    Example:
        >>> import gossamer
        >>> model = gossamer.sparsify(nn.Linear(100, 10), density=0.05)
        >>> model.mean.shape, model.std
        (torch.Size([50]), None)
    """

    def point(dense: DenseWeight, support: Support) -> PointWeight:
        mean = _initial_mean(dense, support, init, generator)
        return PointWeight(support, mean.detach().to(dense.tensor.detach()))

    budget = lookup("allocation", allocation, ALLOCATION)
    return convert(model, point, density, budget, keep_dense, exclude, init, generator)


def convert(
    model: nn.Module,
    make: Callable[[DenseWeight, Support], SparseWeight],
    density: float = 1.0,
    budget: Allocation = uniform,
    keep_dense: str | Sequence[str] = (),
    exclude: Sequence[str | type[nn.Module]] = (),
    init: Init = "pretrained",
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Convert ``model`` in place: ``make`` turns a plain weight and its support into a weight of any kind.

    Example:
        >>> model = convert(nn.Linear(3, 2), lambda dense, support: PointWeight(support, support.gather(dense.values)))
        >>> model.mean.shape
        torch.Size([6])
    """
    check_model(model)
    check_density(density)
    check_choice("init", init, get_args(Init))
    found = find(model, (exclude,) if isinstance(exclude, str | type) else exclude)
    converted = replace(model, found, _dense_names(found, keep_dense), make, density, budget, init, generator)
    warn_of_the_rest(converted)
    return converted


def replace(
    model: nn.Module,
    found: Sequence[Found],
    dense: Container[str],
    make: Callable[[DenseWeight, Support], SparseWeight],
    density: float,
    budget: Allocation,
    init: Init,
    generator: torch.Generator | None,
) -> nn.Module:
    """Put sparse modules in place of those found, all entries of those called ``dense`` active."""
    chosen: dict[int, tuple[DenseWeight, LayerStats]] = {}
    for item in found:
        for name, weight in zip(item.weight_names(), item.weights, strict=True):
            key, keeps = id(weight.tensor), item.name in dense
            if key in chosen:  # a tied weight is one weight, whichever of its layers comes first
                weight, name, keeps = _tied(chosen[key], weight, keeps)
            n_frozen = weight.frozen[1] - weight.frozen[0]
            chosen[key] = (weight, LayerStats(name, tuple(weight.values.shape), keeps, n_frozen))
    counts = budget([stats for _, stats in chosen.values()], density)
    weights = {}
    for (key, (weight, stats)), count in zip(chosen.items(), counts, strict=True):
        shares_budget = budget is global_ and not stats.keep_dense
        with weight.tensor.device if weight.tensor.is_meta else nullcontext():
            position = _choose(weight, count, init, generator)
            weights[key] = make(weight, Support(stats.shape, position, weight.frozen, shares_budget))
    return swap(model, found, weights)


def _tied(first: tuple[DenseWeight, LayerStats], second: DenseWeight, keeps: bool) -> tuple[DenseWeight, str, bool]:
    """One weight for two layers that share it: the larger fan-in sets the scale, and what either freezes is frozen."""
    weight, stats = first
    if weight.transposed != second.transposed:
        raise ValueError(f"{stats.name} shares its weight with a layer that stores it transposed: exclude one of them")
    fan_in = max(weight.fan_in or 0, second.fan_in or 0) or None
    frozen = max(weight.frozen, second.frozen, key=lambda part: part[1] - part[0])
    return weight._replace(fan_in=fan_in, frozen=frozen), stats.name, stats.keep_dense or keeps


def _dense_names(found: Sequence[Found], keep_dense: str | Sequence[str]) -> set[str]:
    """Names of the modules that stay dense."""
    if keep_dense == "first_conv":
        is_conv = isinstance(found[0].module, nn.Conv1d | nn.Conv2d | nn.Conv3d)
        # A network that is nothing but one convolution would not be sparse at all.
        return {found[0].name} if is_conv and len(found) > 1 else set()
    names = [keep_dense] if isinstance(keep_dense, str) else list(keep_dense)
    return match_names([item.name for item in found], names, "keep_dense")


def _choose(dense: DenseWeight, n_active: int, init: Init, generator: torch.Generator | None) -> Tensor | None:
    """Sorted flat positions of the first active entries; ``None`` when that is all of them."""
    size, (start, stop) = dense.tensor.numel(), dense.frozen
    if n_active == size:
        return None
    if dense.tensor.is_meta:  # which has no positions, so none are drawn
        return torch.empty(n_active, dtype=torch.int64)
    if init == "pretrained":
        magnitude = dense.values.abs().flatten()
        magnitude[start:stop] = -math.inf
        return top_mask(magnitude, n_active).nonzero().flatten()
    allowed = size - (stop - start)
    device = None if generator is None else generator.device
    drawn = torch.randperm(allowed, generator=generator, device=device)[:n_active].sort().values
    position = torch.where(drawn >= start, drawn + (stop - start), drawn)
    return position.to(dense.tensor.device)


def _initial_mean(dense: DenseWeight, support: Support, init: Init, generator: torch.Generator | None) -> Tensor:
    given = dense.values
    if init != "fresh":
        return support.gather(given)
    # The given weights set the scale; with fewer inputs per unit, each must be larger.
    rms = given.float().square().mean().sqrt()
    return _normal(support, generator).to(rms.device) * rms / math.sqrt(support.n_active / support.size)


def _scale(dense: DenseWeight, support: Support) -> float:
    """1/√(active fan-in); for an embedding, whose entries do not add up, the rms of the given ones over √density."""
    share = support.n_active / support.size
    if dense.fan_in is None:
        return (rms(dense.tensor.detach()) or 1.0) / math.sqrt(share)
    return 1 / math.sqrt(dense.fan_in * share)


def rms(values: Tensor) -> float:
    """The root mean square; zero for what has no numbers."""
    return 0.0 if values.is_meta or not values.numel() else float(values.float().square().mean().sqrt())


def _reference_std(support: Support, generator: torch.Generator | None) -> Tensor:
    mean, spread = REFERENCE_STD
    std = (mean + spread * _normal(support, generator)).abs()
    # The released code redraws all of them while any inverse softplus is infinite; only an exact zero is.
    return std.clamp_min(torch.finfo(std.dtype).tiny)


def _normal(support: Support, generator: torch.Generator | None) -> Tensor:
    device = None if generator is None else generator.device
    return torch.randn(support.n_active, generator=generator, device=device)


def _full(support: Support, value: float) -> Tensor:
    return torch.full((support.n_active,), value)


def check_model(model: nn.Module) -> None:
    """Raise unless it is a plain network, not yet wrapped."""
    if not isinstance(model, nn.Module):
        raise TypeError(f"model must be an nn.Module, got {type(model).__name__}")
    if sparse_weights(model):
        raise ValueError("this model is already converted; convert a fresh copy of the plain model instead")
    # Both keep what they were given: a compiled layer would compute with its old weight, and DDP would average the
    # gradients of parameters that are gone.
    if any(hasattr(parameter, "full_tensor") for parameter in model.parameters()):
        raise ValueError("convert the plain network first, then shard it (fully_shard)")
    for module in model.modules():
        if "_orig_mod" in module._modules or isinstance(module, nn.parallel.DistributedDataParallel):
            raise ValueError("convert the plain network first, then compile it or wrap it in DistributedDataParallel")


def check_density(density: float) -> None:
    """Raise unless it is a share."""
    if not _is_number(density) or not 0 < density <= 1:
        raise ValueError(
            f"density must be a number in (0, 1], got {density!r}: it is the share of active weights "
            "(95 % sparsity is density=0.05, dense is density=1.0)"
        )


def check_positive(name: str, value: float | None) -> None:
    """Raise unless the value is positive or not given."""
    if value is not None and not (_is_number(value) and value > 0 and math.isfinite(value)):
        raise ValueError(f"{name} must be a positive number, or None to choose it by the layer; got {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def check_choice(name: str, value: str, known: Sequence[str]) -> None:
    """Raise unless the value is known."""
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, known))}; got {value!r}")
