"""Multi-head attention with sparse projections: the fused input projection and the output projection."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.kernels import LinearMap
from gossamer.layers.modules import DenseWeight, SparseLinear, SparseModule
from gossamer.layers.weight import SparseWeight

_SEPARATE = ("q_proj_weight", "k_proj_weight", "v_proj_weight")


class SparseAttention(SparseModule):
    """``nn.MultiheadAttention`` whose projections are sparse; the same arguments, the same results."""

    replaces, kind, map = (nn.MultiheadAttention,), "attention", LinearMap()
    # TransformerEncoder and its layers read both, and take no fused path, which needs dense weights, without a bias.
    in_proj_weight: None = None
    in_proj_bias: None = None

    def __init__(self, layer: Any, weights: Mapping[str, SparseWeight]) -> None:
        super().__init__(layer)
        width = layer.embed_dim
        if "in_proj_weight" in weights:
            self.in_proj = _linear(width, 3 * width, weights["in_proj_weight"], layer.in_proj_bias)
        else:
            parts = zip(_SEPARATE, (width, layer.kdim, layer.vdim), _thirds(layer.in_proj_bias), strict=True)
            self.q_proj, self.k_proj, self.v_proj = (
                _linear(size, width, weights[name], bias) for name, size, bias in parts
            )
        self.out_proj = _linear(width, width, weights["out_proj.weight"], layer.out_proj.bias)
        self.bias_k, self.bias_v = layer.bias_k, layer.bias_v

    @classmethod
    def dense_weights(cls, layer: Any) -> list[DenseWeight]:
        names = ["in_proj_weight"] if layer.in_proj_weight is not None else list(_SEPARATE)
        weights = [(name, layer.get_parameter(name)) for name in [*names, "out_proj.weight"]]
        return [DenseWeight(name, tensor, fan_in=tensor.shape[1]) for name, tensor in weights]

    def named_weights(self) -> dict[str, SparseWeight]:
        names = ("in_proj_weight",) if hasattr(self, "in_proj") else _SEPARATE
        parts = {name: getattr(self, name.removesuffix("_weight")).weight for name in names}
        return {**parts, "out_proj.weight": self.out_proj.weight}

    def named_rest(self) -> dict[str, nn.Parameter]:
        rest = {"bias_k": self.bias_k, "bias_v": self.bias_v, "out_proj.bias": self.out_proj.bias}
        if hasattr(self, "in_proj"):
            rest["in_proj_bias"] = self.in_proj.bias
        elif self.q_proj.bias is not None:
            parts = [self.q_proj.bias, self.k_proj.bias, self.v_proj.bias]
            whole = torch.cat([part.detach() for part in parts if part is not None])
            rest["in_proj_bias"] = nn.Parameter(whole, self.q_proj.bias.requires_grad)
        return {name: parameter for name, parameter in rest.items() if parameter is not None}

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        plain: Any = self.template
        batched = query.dim() == 3
        q, k, v = self._project(query, key, value)
        if not batched:
            q, k, v = (part.unsqueeze(0) for part in (q, k, v))
            key_padding_mask = None if key_padding_mask is None else key_padding_mask.unsqueeze(0)
        elif not plain.batch_first:
            q, k, v = (part.transpose(0, 1) for part in (q, k, v))
        k, v, extra = self._extend(k, v)
        mask = _merge_masks(attn_mask, key_padding_mask, q, k.shape[1] - extra, plain.num_heads, is_causal)
        if mask is not None and extra:
            mask = F.pad(mask, (0, extra))  # the appended keys are open to everyone

        q, k, v = (part.unflatten(-1, (plain.num_heads, -1)).transpose(1, 2) for part in (q, k, v))
        attended, weights = _attend(q, k, v, mask, plain.dropout if self.training else 0.0, need_weights)
        y = self.out_proj(attended.transpose(1, 2).flatten(-2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return y.squeeze(0), None if weights is None else weights.squeeze(0)
        return y if plain.batch_first else y.transpose(0, 1), weights

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if not hasattr(self, "in_proj"):
            return self.q_proj(query), self.k_proj(key), self.v_proj(value)
        width = self.out_proj.in_features
        if query is key and key is value:
            q, k, v = self.in_proj(query).chunk(3, -1)
        elif key is value:
            q = self.in_proj(query, rows=(0, width))
            k, v = self.in_proj(key, rows=(width, 3 * width)).chunk(2, -1)
        else:
            parts = zip((query, key, value), range(3), strict=True)
            q, k, v = (self.in_proj(x, rows=(i * width, (i + 1) * width)) for x, i in parts)
        return q, k, v

    def _extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, int]:
        """Append the learnt and the zero key, where the module has them."""
        batch, extra = k.shape[0], 0
        if self.bias_k is not None and self.bias_v is not None:
            k = torch.cat([k, self.bias_k.to(k).expand(batch, 1, -1)], 1)
            v = torch.cat([v, self.bias_v.to(v).expand(batch, 1, -1)], 1)
            extra += 1
        if self.template.add_zero_attn:
            k, v, extra = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1)), extra + 1
        return k, v, extra


def _thirds(bias: nn.Parameter | None) -> Sequence[nn.Parameter | None]:
    if bias is None:
        return None, None, None
    return [nn.Parameter(part.clone(), bias.requires_grad) for part in bias.detach().chunk(3)]


def _linear(n_in: int, n_out: int, weight: SparseWeight, bias: nn.Parameter | None) -> SparseLinear:
    shell = nn.Linear(n_in, n_out, bias=bias is not None, device="meta")
    layer = SparseLinear(shell, {"weight": weight})
    layer.bias = bias
    return layer


def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    if not need_weights and not torch._C._are_functorch_transforms_active():  # which would take it apart in Python
        return F.scaled_dot_product_attention(q, k, v, mask, dropout), None
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    weights = F.dropout((scores if mask is None else scores + mask).softmax(-1), dropout)
    return weights @ v, weights


def _merge_masks(
    attn_mask: Tensor | None, padding: Tensor | None, q: Tensor, n_keys: int, n_heads: int, is_causal: bool
) -> Tensor | None:
    """One additive mask that broadcasts over ``(batch, heads, queries, keys)``; a true or −∞ entry is closed."""
    batch, n_queries = q.shape[:2]
    if is_causal and attn_mask is None:
        attn_mask = torch.ones(n_queries, n_keys, dtype=torch.bool, device=q.device).triu(1)
    merged = None
    if attn_mask is not None:
        merged = _additive(attn_mask, q)
        if merged.dim() == 3:
            merged = merged.view(batch, n_heads, n_queries, n_keys)
    if padding is not None:
        closed = _additive(padding, q).view(batch, 1, 1, n_keys)
        merged = closed if merged is None else merged + closed
    return merged


def _additive(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(mask, -math.inf)
