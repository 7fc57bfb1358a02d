"""Reference for PrefixLM attention over packed sequences of different lengths: forward and gradients.

The sequences lie one behind the other along the first dimension, without padding. Row ``i`` belongs to sequence
``n(i)`` and is its position ``t(i)``; ``p`` is the length of that sequence's prefix. The prefix is bidirectional, what
follows it is causal (Raffel et al., "Exploring the Limits of Transfer Learning", JMLR 21 (2020), section 3.2.1 and
figure 4)::

    sees(i, j) = n(i) == n(j) and (t(j) < p or t(j) <= t(i))
    S = scale * Q K^T, and -inf where i does not see j
    P = softmax(S) over j
    O = P V

and for the gradient dO of the output (Dao et al., "FlashAttention", NeurIPS 2022, appendix B.2)::

    dV = P^T dO
    dP = dO V^T
    dS = P * (dP - D), with D_i the sum over j of P_ij dP_ij
    dQ = scale * dS K
    dK = scale * dS^T Q

A prefix of 0 is plain causal attention; one that is longer than its sequence is plain bidirectional attention. Every
row sees at least itself. float16 and bfloat16 are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch

_HALF = (torch.float16, torch.bfloat16)
Numbers = torch.Tensor | Sequence[int]


def prefix_lm(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: Numbers,
    prefixes: Numbers,
    *,
    scale: float | None = None,
) -> torch.Tensor:
    """PrefixLM attention; differentiable.

    Args:
        query: shape (tokens, heads, E), floating.
        key: shape (tokens, key heads, E); query head ``h`` reads key head ``h // (heads / key heads)``.
        value: shape (tokens, key heads, V).
        offsets: where each sequence begins, and last the number of tokens: ``cu_seqlens`` of variable-length kernels.
        prefixes: how many positions at the start of each sequence all of it sees.
        scale: factor of the scores; default 1 / sqrt(E).

    Returns:
        Shape (tokens, heads, V), in the dtype of the query.

    Raises:
        ValueError: offsets that do not run from 0 to the number of tokens, another number of prefixes than of
            sequences, a negative prefix, or numbers of heads that do not divide.
    """
    output = query.new_empty(*query.shape[:2], value.size(-1), dtype=_wide(query.dtype))
    for rows, weights in _weights(query, key, offsets, prefixes, scale):
        part = torch.einsum("hgij,jhv->ihgv", weights, _raised(value[rows]))
        output[rows] = part.flatten(1, 2)
    return output.to(query.dtype)


def prefix_lm_gradients(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    offsets: Numbers,
    prefixes: Numbers,
    *,
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Gradients of query, key and value by the formulas above, without autograd.

    Args:
        grad_output: shape (tokens, heads, V), the gradient of what :func:`prefix_lm` returns for the other arguments.
        query: as there, and so are the remaining arguments.
        key: as there.
        value: as there.
        offsets: as there.
        prefixes: as there.
        scale: as there.

    Returns:
        Tensors of the shapes and dtypes of query, key and value.

    Raises:
        ValueError: as there.
    """
    given = query, key, value
    gradients = [torch.empty_like(tensor, dtype=_wide(tensor.dtype)) for tensor in given]
    factor = _scale(query, scale)
    for rows, weights in _weights(query, key, offsets, prefixes, scale):
        grad = _grouped(_raised(grad_output[rows]), key)
        grad_weights = torch.einsum("ihgv,jhv->hgij", grad, _raised(value[rows]))
        grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
        of_query = factor * torch.einsum("hgij,jhe->ihge", grad_scores, _raised(key[rows]))
        gradients[0][rows] = of_query.flatten(1, 2)
        gradients[1][rows] = factor * torch.einsum("hgij,ihge->jhe", grad_scores, _grouped(_raised(query[rows]), key))
        gradients[2][rows] = torch.einsum("hgij,ihgv->jhv", weights, grad)
    of_query, of_key, of_value = (grad.to(like.dtype) for grad, like in zip(gradients, given, strict=True))
    return of_query, of_key, of_value


def prefix_lm_mask(offsets: Numbers, prefixes: Numbers, device: torch.device | str = "cpu") -> torch.Tensor:
    """``sees`` for all rows at once: boolean, shape (tokens, tokens), True where a query takes part.

    Raises:
        ValueError: as :func:`prefix_lm`.
    """
    pairs = list(_sequences(offsets, prefixes))
    tokens = sum(rows.stop - rows.start for rows, _ in pairs)
    mask = torch.zeros(tokens, tokens, dtype=torch.bool, device=device)
    for rows, prefix in pairs:
        mask[rows, rows] = _sees(rows.stop - rows.start, prefix, mask.device)
    return mask


def _weights(
    query: torch.Tensor, key: torch.Tensor, offsets: Numbers, prefixes: Numbers, scale: float | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """For each sequence its rows, and P with shape (key heads, group, queries, keys)."""
    _check(query, key, offsets)
    for rows, prefix in _sequences(offsets, prefixes):
        queries = _grouped(_raised(query[rows]), key)
        scores = _scale(query, scale) * torch.einsum("ihge,jhe->hgij", queries, _raised(key[rows]))
        seen = _sees(rows.stop - rows.start, prefix, query.device)
        yield rows, scores.masked_fill(~seen, -math.inf).softmax(-1)


def _sees(length: int, prefix: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(length, device=device)
    return (position < prefix) | (position <= position.unsqueeze(1))


def _sequences(offsets: Numbers, prefixes: Numbers) -> Iterator[tuple[slice, int]]:
    bounds, lengths = _integers(offsets), _integers(prefixes)
    if not bounds or bounds[0] != 0 or sorted(bounds) != bounds:
        raise ValueError(f"offsets begin with 0 and do not decrease; these are {bounds}")
    if len(lengths) != len(bounds) - 1 or min(lengths, default=0) < 0:
        raise ValueError(f"{len(bounds) - 1} sequences need as many prefixes, none negative; these are {lengths}")
    for start, end, prefix in zip(bounds, bounds[1:], lengths, strict=False):
        yield slice(start, end), prefix


def _check(query: torch.Tensor, key: torch.Tensor, offsets: Numbers) -> None:
    bounds = _integers(offsets)
    if bounds[-1:] != [query.size(0)]:
        raise ValueError(f"offsets end with the number of tokens, {query.size(0)}; these are {bounds}")
    if key.size(1) == 0 or query.size(1) % key.size(1):
        raise ValueError(f"{query.size(1)} heads of the query are no multiple of {key.size(1)} heads of key or value")


def _integers(numbers: Numbers) -> list[int]:
    return [int(number) for number in (numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers)]


def _grouped(tensor: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(rows, heads, width) as (rows, key heads, group, width)."""
    return tensor.reshape(tensor.size(0), key.size(1), tensor.size(1) // key.size(1), tensor.size(2))


def _raised(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_wide(tensor.dtype))


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def _scale(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
