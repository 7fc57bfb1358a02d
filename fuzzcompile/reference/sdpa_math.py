"""Reference for ``torch.nn.functional.scaled_dot_product_attention``: what its MATH backend computes, bit for bit.

The order of operations is ATen's (``_scaled_dot_product_attention_math``), because another order rounds in another
way:

1. a boolean mask becomes an additive one (0 or -inf) in the dtype of the query;
2. bfloat16 and float16 inputs are raised to float32, unless the user allowed reductions in half precision
   (``torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp``); float32 and float64 stay as they are;
3. query and key are *each* multiplied by the square root of the scale (so that their product cannot overflow
   before it is scaled); a negative scale gives the query its sign;
4. heads of key and value are repeated for grouped queries;
5. the mask is added to ``query @ key^T``;
6. softmax over the keys; a row with nothing but -inf gives zeros, not NaN;
7. dropout of the weights, ``weights @ value``, and back to the dtype of the query.

Causal masks are aligned to the top left corner: query ``i`` sees the keys ``0..i``, whatever the two lengths.
"""

from __future__ import annotations

import math

import torch

_HALF = (torch.float16, torch.bfloat16)


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
    additive = as_additive(attn_mask, query.dtype)
    dtype = query.dtype
    query, key, value = (raised(tensor) for tensor in (query, key, value))
    if enable_gqa:
        key, value = (repeated_heads(tensor, query.size(-3)) for tensor in (key, value))
    weights = torch.ops.aten._safe_softmax(scores(query, key, additive, is_causal=is_causal, scale=scale), -1)
    if dropout_p > 0.0:
        weights = torch.dropout(weights, dropout_p, True)
    return torch.matmul(weights, value).to(dtype)


def scores(
    query: torch.Tensor,
    key: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> torch.Tensor:
    """What goes into the softmax: the scaled product of ``query`` and ``key`` with the additive ``mask``.

    Args:
        query: shape (..., L, E), already raised.
        key: shape (..., S, E), already raised, with the heads of the query.
        mask: additive, broadcast against (..., L, S); None with ``is_causal``.
        is_causal: mask what comes later.
        scale: factor of the scores; default 1 / sqrt(E).

    Returns:
        Shape (..., L, S).
    """
    root = math.sqrt(abs(_scale(query, scale)))
    query = query * (-root if scale is not None and scale < 0.0 else root)
    if is_causal:
        seen = torch.ones(query.size(-2), key.size(-2), dtype=torch.bool, device=query.device).tril()
        mask = as_additive(seen, query.dtype)
    product = torch.matmul(query, key.transpose(-2, -1) * root)
    return product if mask is None else product.add_(mask)


def as_additive(mask: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor | None:
    """A boolean mask as 0 and -inf in ``dtype``; an additive one as it is."""
    if mask is None or mask.dtype != torch.bool:
        return mask
    taken = torch.zeros((), dtype=dtype, device=mask.device)
    left_out = torch.full((), -math.inf, dtype=dtype, device=mask.device)
    return torch.where(mask, taken, left_out)


def raised(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the dtype that the MATH backend computes in."""
    keeps = torch.backends.cuda.fp16_bf16_reduction_math_sdp_allowed()  # type: ignore[no-untyped-call]
    return tensor if keeps or tensor.dtype not in _HALF else tensor.to(torch.float32)


def repeated_heads(tensor: torch.Tensor, heads: int) -> torch.Tensor:
    """Keys or values with each head repeated, so that there are as many as the query has.

    Raises:
        ValueError: ``heads`` is no multiple of the number of heads there are.
    """
    own = tensor.size(-3)
    if own == heads:
        return tensor
    if own == 0 or heads % own:
        raise ValueError(f"{heads} heads of the query are no multiple of {own} heads of key or value")
    return tensor.repeat_interleave(heads // own, dim=-3)


def _scale(query: torch.Tensor, scale: float | None) -> float:
    if scale is not None:
        return scale
    return 1.0 / math.sqrt(query.size(-1)) if query.size(-1) else math.inf
