"""Embeddings with a sparse weight."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from gossamer.kernels import EmbeddingMap
from gossamer.layers.module import DenseWeight, SparseLayer
from gossamer.layers.weight import SparseWeight

__all__ = ["SparseEmbedding"]


class SparseEmbedding(SparseLayer):
    """Rows of a sparse matrix. The padding row holds no active entry, ever, so padding stays exactly zero.

    Example:
        >>> import torch, gossamer
        >>> layer = gossamer.bayesianize(nn.Embedding(100, 8, padding_idx=0), density=0.1)
        >>> layer(torch.tensor([[0, 5]]))[0, 0].abs().sum().item()
        0.0
    """

    replaces = (nn.Embedding,)

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer, weights)
        padding_idx = -1 if layer.padding_idx is None else layer.padding_idx
        self.map = EmbeddingMap(layer.num_embeddings, padding_idx, layer.scale_grad_by_freq)

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        """The one weight; an output is one entry of it."""
        row, width = layer.padding_idx, layer.embedding_dim
        frozen = (0, 0) if row is None else (row * width, (row + 1) * width)
        return [DenseWeight("weight", layer.weight, fan_in=1, frozen=frozen)]

    @classmethod
    def refusal(cls, layer: Any) -> str | None:
        """What a table of independent Gaussians cannot do."""
        if layer.max_norm is not None:
            return "max_norm rescales the weight in place"
        if layer.padding_idx is not None and bool(layer.weight[layer.padding_idx].any()):
            return "its padding row is not zero"
        return None

    def forward(self, x: Tensor) -> Tensor:
        """The rows named by the integer tensor ``x``, each with noise of its own."""
        return self.weight.multiply(x, None, self.map)
