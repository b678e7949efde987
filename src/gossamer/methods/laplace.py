"""Laplace approximation of the last layer (Daxberger et al., NeurIPS 2021), computed by ``laplace-torch``.

    q(w) = N(w*, (H + δI)⁻¹),   H = Σ_n J_nᵀ Λ_n J_n

w* are the weights of the last linear layer after ordinary training, H is the generalised Gauss-Newton matrix of the sum
of the losses, full, diagonal or as Kronecker factors, and δ the precision of a normal prior, chosen by the NLL on the
held-out examples or by the marginal likelihood of the training data. The network is linear in its last layer, so draws
of these weights are the linearised predictive of the paper. Needs the extra: ``pip install 'gossamer[laplace]'``.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.optim import Optimizer
from torch.utils.data import DataLoader, TensorDataset, default_collate

from gossamer.files.container import OTHER_NETWORK, tensor
from gossamer.layers import replica
from gossamer.methods._parts import with_options_of
from gossamer.methods.sgd import sgd
from gossamer.posterior.in_layers import OneNetwork, ready
from gossamer.types import Collector, Method, Posterior, Saved, Split, Task

__all__ = ["laplace"]

Structure = Literal["full", "kron", "diag"]
Tuning = Literal["held_out", "marglik"]
GRID = [10 ** (power / 4) for power in range(-8, 21)]  # of δ
N_DRAWS = 50  # that judge each
AT_ONCE = 256  # examples

MISSING = (
    "the method laplace needs laplace-torch: pip install 'gossamer[laplace]', with -c and a file that names the "
    "installed torch (torch==…) to keep it"
)


@with_options_of(sgd, "optimizer")
def laplace(
    task: Task,
    steps: int,
    *,
    structure: Structure = "kron",
    tuning: Tuning = "held_out",
    prior_precision: float | None = None,
    **training: Any,
) -> Method:
    """Last-layer Laplace: ordinary training, then a Gaussian over the weights of the last linear layer.

    Args:
        task: The task: classes, or numbers with a known noise.
        structure: How H is stored: ``"full"``, ``"kron"`` (Kronecker factors) or ``"diag"``.
        tuning: How δ is chosen: by the NLL on the ``"held_out"`` examples, whose own figures are then too good,
            or by the marginal likelihood, ``"marglik"``. That is the paper's default, and far too wide where a network
            fits few examples perfectly, such as digits.
        prior_precision: δ itself, if it is known.
    """
    if importlib.util.find_spec("laplace") is None:
        raise ImportError(MISSING)
    if structure not in ("full", "kron", "diag"):
        raise ValueError(f"structure must be 'full', 'kron' or 'diag'; got {structure!r}")
    if tuning not in ("held_out", "marglik"):
        raise ValueError(f"tuning must be 'held_out' or 'marglik'; got {tuning!r}")
    if tuning == "held_out" and prior_precision is None and not len(task.val[1]):
        raise ValueError(
            "tuning='held_out' needs held-out examples: hold some out with n_val, or give tuning='marglik'"
        )
    if task.kind == "regression" and task.likelihood.noise_std is None:
        raise ValueError("laplace takes classes, or numbers with a known noise: likelihood=Gaussian(noise_std=…)")
    collector = partial(LastLayerFit, task, structure, prior_precision, tuning)
    return replace(sgd(task, steps, **training), collector=collector)


class LastLayerFit(Collector):
    """Collector that fits the approximation to the training data, once the network is trained."""

    def __init__(
        self, task: Task, structure: Structure, prior_precision: float | None = None, tuning: Tuning = "held_out"
    ) -> None:
        self.task, self.structure, self.prior_precision, self.tuning = task, structure, prior_precision, tuning

    def posterior(self, model: nn.Module, optimizer: Optimizer | None = None) -> Posterior:
        with warnings.catch_warnings(), torch.enable_grad():
            warnings.simplefilter("ignore")  # of packages that the extra brings
            fitted = self._fit(replica(model).eval())
        return self._around(model, fitted)

    def _around(self, model: nn.Module, fitted: Any, generator: torch.Generator | None = None) -> LastLayerPosterior:
        spread = fitted.posterior_precision if self.structure == "kron" else fitted.posterior_scale
        return LastLayerPosterior(model, fitted.model._last_layer_name, fitted.mean.detach(), spread, generator)

    @torch.no_grad()
    def _held_out_nll(self, features: Tensor, layer: nn.Module, fitted: Any, prior_precision: float) -> float:
        """NLL of the held-out examples by draws, which are the same for every prior precision but for their width.

        ``features`` are what the last layer reads of them: all before it is the same in every draw.
        """
        fitted.prior_precision = prior_precision
        noise = torch.Generator(fitted.mean.device).manual_seed(0)
        posterior, parameters, outputs = self._around(layer, fitted, noise), list(layer.parameters()), []
        for _ in range(N_DRAWS):
            nn.utils.vector_to_parameters(posterior.sample(), parameters)
            outputs.append(layer(features))
        log_predictive = self.task.likelihood.log_predictive(torch.stack(outputs), self.task.val[1].to(features.device))
        return -float(log_predictive.mean())

    @torch.no_grad()
    def _features(self, extractor: Any, x: Tensor) -> Tensor:
        parts = [self.task.transform(part).to(next(extractor.parameters()).device) for part in x.split(AT_ONCE)]
        return torch.cat([extractor.forward_with_features(part)[1] for part in parts])

    def _fit(self, network: nn.Module) -> Any:
        from laplace import Laplace

        fitted = Laplace(network, self.task.kind, subset_of_weights="last_layer", hessian_structure=self.structure)
        fitted.fit(self._loader(self.task.train))
        if self.task.kind == "regression":
            fitted.sigma_noise = self.task.likelihood.noise_std
        if self.prior_precision is not None:
            fitted.prior_precision = self.prior_precision
        elif self.tuning == "marglik":
            fitted.optimize_prior_precision(method="marglik")
        else:
            features, layer = self._features(fitted.model, self.task.val[0]), replica(fitted.model.last_layer)
            fitted.prior_precision = min(GRID, key=partial(self._held_out_nll, features, layer, fitted))
        return fitted

    def _loader(self, split: Split) -> DataLoader[Any]:
        # A generator of its own, because a loader draws a seed from the global one.
        collate = partial(_collate, self.task.transform)
        return DataLoader(TensorDataset(*split), batch_size=AT_ONCE, collate_fn=collate, generator=torch.Generator())


class LastLayerPosterior(OneNetwork):
    """N(mean, covariance) over the parameters of one layer of ``model``, as one vector.

    ``spread`` is a root of the covariance: stds ``(n,)``, a matrix ``(n, n)``, or laplace-torch's Kronecker factors of
    the precision.
    """

    def __init__(
        self, model: nn.Module, layer: str, mean: Tensor, spread: Any, generator: torch.Generator | None = None
    ) -> None:
        self.model, self.layer, self.mean, self.spread, self.generator = model, layer, mean, spread, generator

    def to_tree(self) -> dict[str, Any]:
        return super().to_tree() | {"layer": self.layer, "mean": self.mean, "spread": self.dense_spread()}

    @classmethod
    def from_tree(cls, tree: Saved) -> Self:
        model, layer = tree.network(), tree.get("layer", str)
        if layer not in dict(model.named_modules()):
            raise tree.error("layer", f"is {layer!r:.50}, which the network does not have", OTHER_NETWORK)
        mean = tensor(tree, "mean", parameters_to_vector(model.get_submodule(layer).parameters()).detach())
        spread = tensor(tree, "spread", mean, rows=tree.get("spread", Tensor).dim() == 2)
        if spread.dim() == 2 and len(spread) != len(mean):
            raise tree.error("spread", "must be a vector or a square matrix")
        return cls(model, layer, mean, spread)

    def draws(self, n: int) -> Iterator[nn.Module]:
        twin = replica(self.model)
        parameters = list(twin.get_submodule(self.layer).parameters())
        for _ in range(n):
            nn.utils.vector_to_parameters(self.sample(), parameters)
            yield ready(twin, None)

    def dense_spread(self) -> Tensor:
        """The root of the covariance as stds or as a matrix: Kronecker factors multiplied out."""
        if isinstance(self.spread, Tensor):
            return self.spread.detach()
        root: Tensor = self.spread.bmm(torch.eye(len(self.mean)).to(self.mean), exponent=-0.5)
        return root.detach().T

    @property
    def n_bytes(self) -> int:
        spread = self.spread
        factors = _tensors(spread if isinstance(spread, Tensor) else [spread.eigenvalues, spread.eigenvectors])
        return super().n_bytes + sum(factor.nbytes for factor in factors)

    def sample(self) -> Tensor:
        """The parameters of the layer in a draw."""
        noise = torch.empty_like(self.mean).normal_(generator=self.generator)
        if not isinstance(self.spread, Tensor):
            step: Tensor = self.spread.bmm(noise[None], exponent=-0.5).flatten()
            return self.mean + step.detach()
        return self.mean + (self.spread * noise if self.spread.dim() == 1 else self.spread @ noise).detach()


def _collate(transform: Callable[[Tensor], Tensor], rows: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    x, y = default_collate(rows)
    return transform(x), y


def _tensors(nested: Any) -> list[Tensor]:
    return [nested] if isinstance(nested, Tensor) else [tensor for part in nested for tensor in _tensors(part)]
