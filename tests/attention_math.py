"""Reference for ``torch.nn.functional.scaled_dot_product_attention``: what its MATH backend computes, bit for bit."""

from __future__ import annotations

import torch

from fuzzcompile.run.reference.fused_attention import compute_scores, make_additive, raise_dtype, repeat_heads


def sdpa_math(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> torch.Tensor:
    """Attention as the MATH backend computes it; differentiable.

    Args:
        query: shape (..., heads, L, E), or (L, E) and up.
        key: shape (..., key heads, S, E).
        value: shape (..., key heads, S, V).
        attn_mask: boolean (True takes part) or additive, broadcast against (..., L, S).
        dropout_p: probability of dropping a weight; drawn from the global generator, as ATen draws.
        is_causal: mask what comes later; ``attn_mask`` must be None then.
        scale: factor of the scores; default 1 / sqrt(E).
        enable_gqa: repeat the heads (third dimension from the right) of key and value for those of the query.

    Returns:
        Shape (..., heads, L, V), in the dtype of the query.

    Raises:
        ValueError: a mask together with ``is_causal``, or numbers of heads that do not divide.
    """
    if is_causal and attn_mask is not None:
        raise ValueError("an explicit mask and is_causal exclude each other")
    additive = make_additive(attn_mask, query.dtype)
    dtype = query.dtype
    query, key, value = (raise_dtype(tensor) for tensor in (query, key, value))
    if enable_gqa:
        key, value = (repeat_heads(tensor, query.size(-3)) for tensor in (key, value))
    weights = torch.ops.aten._safe_softmax(compute_scores(query, key, additive, is_causal=is_causal, scale=scale), -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value).to(dtype)
