"""All active vectors of a network in one flat buffer, and the dense working weights written from it.

The time of a step on a GPU is mostly the number of its kernels. Here softplus, KL, its gradient, the gather of the
gradients and the scatter of the new weights are each one kernel over the active entries of the whole network.

Where training draws weights (``noise="weights"``) the working weights are μ + σ ε, rewritten for every pass, and there
are no dense variances: if g is the gradient of a drawn weight, the gradient of μ is g and that of σ is g ε.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from gossamer.kernels.dispatch import move_means, std_of_means
from gossamer.layers import CurvatureWeight, DenseCopy, GaussianWeight, PointWeight, SparseWeight, sparse_weights
from gossamer.layers.curvature import count_estimate, rate_of
from gossamer.layers.gaussian import raw_std_gradient, std_of
from gossamer.priors import normal_kl_gradients, normal_kl_sum


class FlatWeights:
    """Dense weights of a converted network in the precision ``dtype``, kept in step with its active vectors.

    The network's parameters stay the same objects with the same values, but become slices of flat buffers, and so do
    their gradients. The network computes with the dense weights until :meth:`close`.

    Attributes:
        dense: The flat buffers of the dense weights.
        leaves: The dense leaves of all weights, which are slices of these.
        gradients: What a pass leaves for the active entries, and several ranks average.
        learnt: What :meth:`learn` changes beside them.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.weights = list(sparse_weights(model).values())
        kinds = {type(weight) for weight in self.weights}
        if len(kinds) != 1 or not kinds <= {CurvatureWeight, GaussianWeight, PointWeight}:
            raise ValueError("a working copy needs sparse weights of one kind, Gaussian or point")
        self.is_gaussian, self.has_curvature = kinds != {PointWeight}, kinds == {CurvatureWeight}
        gaussians = [weight for weight in self.weights if isinstance(weight, GaussianWeight)]
        if len({weight.noise for weight in gaussians}) > 1:
            raise ValueError("a working copy needs weights with one kind of noise, local or of weights")
        self.draws_weights = any(weight.noise == "weights" for weight in gaussians)
        self.has_variance = self.is_gaussian and not self.draws_weights
        lengths = [weight.support.n_active for weight in self.weights]
        # Each weight starts at a multiple of 16 bytes, so that kernels may load eight entries at once.
        sizes = [-(-math.prod(weight.support.shape) // 8) * 8 for weight in self.weights]
        self.mean, self.mean_grad = flatten([weight.mean for weight in self.weights])
        self.dense_mean = self.mean.new_zeros(sum(sizes), dtype=dtype)
        self.grad_of_mean = torch.zeros_like(self.dense_mean)
        self.dense, self.gradients, self.learnt = [self.dense_mean], [self.mean_grad], list[Tensor]()
        self._taken: list[Tensor | None] = [None] * len(self.weights)  # from the weights, the last time one had looked
        if self.has_curvature:
            weights = [weight for weight in self.weights if isinstance(weight, CurvatureWeight)]
            self.curvature, self.grad_square = (
                flatten([getattr(weight, name) for weight in weights])[0] for name in ("curvature", "grad_square")
            )
            self.damping = _spread(weights, [weight.damping for weight in weights])
            self.noise_scale = _spread(weights, [weight.noise_scale for weight in weights])
            self.prior_mean = _prior_means(weights)
            self.learns = _spread(weights, [float(weight.mean.requires_grad) for weight in weights])
            self.rate = self.curvature.new_zeros(())  # of the running mean, for the pass at hand
            self.estimate = torch.zeros_like(self.curvature)  # ĥ of the pass at hand
            self.gradients.append(self.estimate)
            self.learnt += [self.curvature, self.grad_square]
            self.shrinkage = self.curvature.new_zeros(len(weights), 4)  # a row per weight, which refresh() writes
            layers = torch.arange(len(weights), device=self.mean.device)
            self._layer = layers.repeat_interleave(torch.tensor(lengths, device=self.mean.device))
        elif self.is_gaussian:
            self.raw_std, self.raw_std_grad = flatten([weight.raw_std for weight in gaussians])
            self.prior_std = _spread(gaussians, [weight.prior_std for weight in gaussians])
            self.gradients.append(self.raw_std_grad)
        if self.has_variance:
            self.dense_variance = torch.zeros_like(self.dense_mean)
            self.grad_of_variance = torch.zeros_like(self.dense_mean)
            self.dense.append(self.dense_variance)
        if self.draws_weights:
            self.noise = torch.zeros_like(self.mean)  # ε of the pass at hand
        self.address = torch.zeros(sum(lengths), dtype=torch.int64, device=self.mean.device)
        self.starts = [sum(sizes[:i]) for i in range(len(sizes))]
        shapes = [weight.support.shape for weight in self.weights]
        # For each weight: its start in the flat dense buffers, its entries per channel, its channels.
        layout = [self.starts, [math.prod(s[2:]) for s in shapes], [s[1] if len(s) > 2 else 1 for s in shapes]]
        # On the device from the start: sending them at each update would make the host wait for the device.
        self._layout = torch.tensor(layout, device=self.mean.device)
        self._lengths = torch.tensor(lengths, device=self.mean.device)
        self._connect()
        self.refresh()

    @property
    def std(self) -> Tensor:
        """σ of all active entries."""
        if self.has_curvature:
            shrinkage = self.shrinkage.T[:, self._layer]
            return std_of_means(self.curvature, self.grad_square, shrinkage, self.noise_scale, self.damping)
        return std_of(self.raw_std)

    def _connect(self) -> None:
        """Give every weight its slice of the dense buffers, as leaves of autograd."""
        self.targets: list[Tensor] = []
        self.leaves: list[Tensor] = []
        for weight, start in zip(self.weights, self.starts, strict=True):
            mean = _part(self.dense_mean, start, weight).requires_grad_()
            self.targets.append(_part(self.grad_of_mean, start, weight))
            variance = None
            if self.has_variance:
                variance = _part(self.dense_variance, start, weight).requires_grad_()
                self.targets.append(_part(self.grad_of_variance, start, weight))
            weight.dense_copy = DenseCopy(mean, variance)
            self.leaves += weight.dense_copy.leaves

    def set_rate(self, noisy: bool) -> None:
        """How far the coming pass moves the running means of the curvature: not at all if it has no noise."""
        learning = [w for w in self.weights if isinstance(w, CurvatureWeight) and w.mean.requires_grad]
        for weight in learning[:1]:
            self.rate.fill_(rate_of(weight) if noisy else 0.0)
            if not self.noise_scale.dim():  # one for all weights, which may have changed its temperature
                self.noise_scale.fill_(weight.noise_scale)

    def count_pass(self, noisy: bool) -> None:
        """The pass is over, and the curvature has moved."""
        if self.has_curvature and noisy:
            estimates = self.estimate.split([len(weight.mean) for weight in self.weights])
            for weight, estimate in zip(self.weights, estimates, strict=True):
                if isinstance(weight, CurvatureWeight) and weight.mean.requires_grad:
                    count_estimate(weight, estimate)
            self._take_shrinkage()

    @torch.no_grad()
    def _take_shrinkage(self) -> None:
        """Follow what the weights know of the noise of their curvatures, where one of them has looked again."""
        rows = [weight.shrinkage for weight in self.weights if isinstance(weight, CurvatureWeight)]
        if rows and any(row is not taken for row, taken in zip(rows, self._taken, strict=True)):
            self._taken = [*rows]
            self.shrinkage.copy_(torch.stack(rows))

    @torch.no_grad()
    def draw(self, noisy: bool = True) -> None:
        """New ε for a pass that draws weights, zeros for a pass at the means; call :meth:`write` afterwards."""
        if self.draws_weights and noisy:
            self.noise.normal_()
        elif self.draws_weights:
            self.noise.zero_()

    def prepare_noise(self, run: Callable[[], object]) -> Tensor | None:
        """One buffer for the noise of a whole pass, to be filled before each pass; ``run`` makes a pass to measure it.

        One kernel then draws all normals. A weight that is used twice goes on drawing its own noise.
        """
        workings = self.forget_noise()
        with torch.no_grad():
            run()
        single = [working for working in workings if len(working.outputs) == 1]
        if not single:
            return None
        sizes = [working.outputs[0].numel() for working in single]
        flat = torch.empty(sum(sizes), dtype=self.dense_mean.dtype, device=self.dense_mean.device)
        for working, part in zip(single, flat.split(sizes), strict=True):
            working.noise = _channels_last(part, tuple(working.outputs[0]))
        return flat

    def forget_noise(self) -> list[DenseCopy]:
        """Let every product draw its own noise again; returns the dense copies."""
        workings = [weight.dense_copy for weight in self.weights if weight.dense_copy is not None]
        for working in workings:
            working.noise = None
            working.outputs.clear()
        return workings

    @torch.no_grad()
    def refresh(self) -> None:
        """Follow moved positions: recompute everything in place."""
        start, space, width = self._layout.repeat_interleave(self._lengths, dim=1, output_size=len(self.address))
        position = torch.cat([weight.support.positions(self.address.device) for weight in self.weights]).long()
        rest = position // space  # dense weights have their second dimension last
        self.address.copy_((rest // width * space + position % space) * width + rest % width + start)
        if self.has_curvature:
            self.prior_mean.copy_(_prior_means([w for w in self.weights if isinstance(w, CurvatureWeight)]))
        self._take_shrinkage()
        for flat in self.dense:
            flat.zero_()
        self.write()

    @torch.no_grad()
    def write(self) -> None:
        """Write the active entries into the dense weights: means and variances, or weights drawn with ε."""
        values = torch.addcmul(self.mean, self.std, self.noise) if self.draws_weights else self.mean
        self.dense_mean[self.address] = values.to(self.dense_mean.dtype)
        if self.has_variance:
            std = self.std
            self.dense_variance[self.address] = (std * std).to(self.dense_variance.dtype)

    @torch.no_grad()
    def collect(self) -> None:
        """Copy the gradients of the leaves into the flat buffers."""
        copy_gradients(self.leaves, self.targets)

    @torch.no_grad()
    def differentiate(self, scale: Tensor, *, alone: bool = True) -> Tensor:
        """Gradients of the active entries, of the loss plus ``scale · KL``, after :meth:`collect`; returns the latter.

        One kernel when compiled. Where a rank is not ``alone``, call :meth:`learn` once :attr:`gradients` are averaged.
        """
        grad = self.grad_of_mean[self.address].to(self.mean.dtype)
        if not self.is_gaussian:
            self.mean_grad.copy_(grad)
            return torch.zeros_like(scale)
        std = self.std
        if self.draws_weights:
            grad_of_std = grad * self.noise
        else:
            grad_of_std = 2 * std * self.grad_of_variance[self.address].to(std.dtype)
        if self.has_curvature:
            self.mean_grad.copy_(grad)
            self.estimate.copy_(grad_of_std / std)
            if alone:
                self.learn()
            return torch.zeros_like(scale)
        of_mean, of_std = normal_kl_gradients(self.mean, std, self.prior_std, scale)
        self.mean_grad.copy_(grad + of_mean)
        self.raw_std_grad.copy_(raw_std_gradient(self.raw_std, grad_of_std + of_std))
        return scale * normal_kl_sum(self.mean, std, self.prior_std)

    @torch.no_grad()
    def learn(self) -> None:
        """Move the curvatures towards the estimates, and add the prior's part to the gradients of the means."""
        rate = (self.rate * self.learns).to(self.curvature)
        move_means(self.curvature, self.grad_square, self.estimate, self.mean_grad, rate)
        self.mean_grad.add_(self.damping * (self.mean - self.prior_mean if self.prior_mean.dim() else self.mean))

    def close(self) -> None:
        """Return the network to computing with its active vectors."""
        for weight in self.weights:
            weight.dense_copy = None


def copy_gradients(tensors: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy the gradients of the tensors to their targets; zeros for one that the loss does not depend on."""
    pairs = [(to, tensor.grad) for to, tensor in zip(targets, tensors, strict=True)]
    torch._foreach_copy_([to for to, grad in pairs if grad is not None], [g for _, g in pairs if g is not None])
    for to, grad in pairs:
        if grad is None:
            to.zero_()


def flatten(parameters: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """One buffer that holds all parameters, and one for their gradients."""
    flat = torch.cat([parameter.detach() for parameter in parameters])
    grad = torch.zeros_like(flat)
    start = 0
    for parameter in parameters:
        end = start + len(parameter)
        parameter.data = flat[start:end]
        if parameter.requires_grad:
            parameter.grad = grad[start:end]
        start = end
    return flat, grad


def _spread(weights: Sequence[SparseWeight], values: list[float]) -> Tensor:
    """One number per weight, for all its entries; a scalar where it is the same for all weights."""
    if len(set(values)) == 1:
        return weights[0].mean.new_tensor(values[0])
    return torch.cat([w.mean.new_full((len(w.mean),), value) for w, value in zip(weights, values, strict=True)])


def _prior_means(weights: Sequence[CurvatureWeight]) -> Tensor:
    """Means of the priors of all active entries; a scalar where all are zero."""
    if not any(weight.prior_spread for weight in weights):
        return weights[0].mean.new_zeros(())
    return torch.cat([weight.prior_mean.expand_as(weight.mean) for weight in weights])


def _part(flat: Tensor, start: int, weight: SparseWeight) -> Tensor:
    """A weight's slice of a flat buffer in its dense shape, channels last for fast convolutions."""
    shape = weight.support.shape
    return _channels_last(flat[start : start + math.prod(shape)], shape)


def _channels_last(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    if len(shape) < 3:
        return flat.view(shape)
    return flat.view(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
