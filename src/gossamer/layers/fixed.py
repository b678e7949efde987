"""What takes the place of a weight in its passes: draws of it, to predict with, or a dense copy, to train with."""

from typing import Any

import torch
from torch import Tensor

from gossamer import kernels
from gossamer.kernels import WeightMap, reference
from gossamer.kernels.dispatch import kernel_of
from gossamer.layers.support import Support
from gossamer.layers.weight import Pass, RegrowStd, SparseWeight, without_autocast


class FixedWeight(SparseWeight):
    """The weight ``source``, whose positions it shares, with given values of the active entries.

    ``mean`` are those that a pass computes with: of one draw or, under ``torch.vmap``, of several.
    """

    mean: Any
    source: SparseWeight
    _dense: Tensor | None

    def __init__(self, source: SparseWeight) -> None:
        torch.nn.Module.__init__(self)
        vars(self).update(source=source)  # not a module of this network: its mode is that of the trained one
        self.probe = self.sink = self.dense_copy = None
        self.noisy = self.trains_at_mean = False
        self.n_outputs = 0  # numbers in the largest output so far, of one draw
        self.hold(torch.empty(0))

    @property
    def support(self) -> Support:  # type: ignore[override]
        """Where the entries are: as in the source, which may move."""
        return self.source.support

    @property
    def std(self) -> None:
        return None

    def hold(self, values: Tensor) -> None:
        """Compute with these values from now on."""
        own = vars(self)  # this is done for each draw and layer, and a module looks at each attribute before it sets it
        own["mean"] = values
        own["_dense"] = None  # formed once for all batches of a draw, where a dense weight is faster

    def multiply(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        x, plain = without_autocast(x)
        support = self.source.support
        where = (support.position, support.shape, weight_map)
        with plain:
            if torch._C._functorch.is_batchedtensor(self.mean):
                rest = None if self.source.rest is None else self.source.rest.product(x, bias, weight_map)
                y = kernels.mapped(x, self.mean, bias if rest is None else None, *where)
                y = y if rest is None else rest + y.to(rest.dtype)
            elif self.source.rest is not None or (kernel := kernel_of(x, *where)) is reference:
                y = self._dense_product(x, bias, weight_map)
            else:
                y = kernel.product(x, self.mean, bias, *where)
        if not torch.compiler.is_exporting():  # where a batch has any size
            own = vars(self)  # as in hold
            own["n_outputs"] = max(own["n_outputs"], y.numel())
        return y

    def placed(self, values: Tensor, probe: Tensor | None = None) -> Tensor:
        return self.source.placed(values)

    def _dense_product(self, x: Tensor, bias: Tensor | None, weight_map: WeightMap) -> Tensor:
        if self._dense is None or self._dense.dtype is not x.dtype:
            dense = self.placed(self.mean)
            self._dense = dense.to(x.dtype) if x.is_floating_point() else dense
        y: Tensor = weight_map(x, self._dense, None if bias is None else bias.to(self._dense.dtype))
        return y

    def sample(self, generator: torch.Generator | None = None, std: Tensor | None = None) -> Tensor:
        values: Tensor = self.mean
        return values

    def this_pass(self, *, drawn: bool = False) -> Pass:
        return Pass(self.mean)

    def regrown(self, kept: Tensor, regrow_std: RegrowStd | None = None) -> dict[str, Tensor]:
        raise TypeError("the draws of a network are fixed: move the subspace of the network that they were drawn from")


class DenseCopy:
    """A dense copy of a sparse weight to compute with, on devices that multiply dense matrices fastest.

    The active vectors stay what is trained and stored: ``gossamer.train.capture`` writes them into the copy after each
    step and gathers their gradients from those of the copy. ``mean`` and ``variance`` σ² are dense leaves in the
    precision of the arithmetic, zero where nothing is active. For a weight that trains with drawn weights ``mean`` is a
    draw; then, and for a weight without a distribution, ``variance`` is ``None``.
    """

    def __init__(self, mean: Tensor, variance: Tensor | None = None) -> None:
        self.mean, self.variance = mean, variance
        self.noise: Tensor | None = None  # drawn elsewhere, for outputs of its shape; otherwise it is drawn here
        self.outputs: list[torch.Size] = []  # shapes of the noisy products so far, to draw their noise in advance

    @property
    def leaves(self) -> list[Tensor]:
        """What autograd gives gradients to."""
        return [self.mean] if self.variance is None else [self.mean, self.variance]

    def drawn(self, noisy: bool) -> Tensor:
        """One draw of the weight, or its means."""
        if self.variance is None or not noisy:
            return self.mean
        tiny = torch.finfo(self.variance.dtype).tiny  # at zero, the root has no gradient
        return torch.addcmul(self.mean, self.variance.clamp_min(tiny).sqrt(), torch.randn_like(self.mean))

    def multiply(
        self, x: Tensor, bias: Tensor | None, weight_map: WeightMap, *, noisy: bool = True, floor: float | None = None
    ) -> Tensor:
        """The map with fresh noise for each output, or at the means."""
        dtype = self.mean.dtype
        x = x.to(dtype) if x.is_floating_point() else x
        bias = None if bias is None else bias.to(dtype)
        m = weight_map(x, self.mean, bias)
        if self.variance is None or not noisy:
            return m
        if not torch.compiler.is_compiling():
            self.outputs.append(m.shape)
        given = self.noise
        noise = given if given is not None and given.shape == m.shape else torch.randn_like(m)
        return reference.perturb(m, weight_map(weight_map.square(x), self.variance), noise, floor)
