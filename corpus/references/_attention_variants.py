"""Reference for key-value caches: where a prefill and decode steps write, and which positions a query sees.

A cache has slots; every token has a position, 0 for the first of its row. Which position a slot holds once ``n``
tokens of a row are written depends on the layout alone, and everything else follows from it. With ``S`` slots, slot
``s`` holds

``static``
    position ``s`` if ``s < n``; no more than ``S`` tokens fit.
``appended``
    position ``s``, and there are ``n`` slots: ``torch.cat`` at every step. With a ``window`` only the last
    ``window - 1`` are kept, as a later query sees no more than those and itself.
``ring``
    the last position below ``n`` that is ``s`` modulo ``S``: a token goes to slot ``position % S``.
``shifted``
    position ``s`` while ``n <= S``, then position ``n - S + s``: the oldest token leaves at slot 0 and the newest
    comes in at slot ``S - 1``.

A slot that holds no position yet is never written, and no query sees it. A query at position ``q`` sees position ``k``
if ``k <= q`` and, with a window of ``W``, ``q - k < W``: itself and ``W - 1`` before it (Child et al., "Generating Long
Sequences with Sparse Transformers", 2019, section 4; Jiang et al., "Mistral 7B", 2023, section 2, which also describes
the ring). The queries of a prefill see all keys of that prefill that the rule allows, those included for which the
cache has no slot.

The output is ``softmax(scale * q k^T) v`` over the keys seen. float16 and bfloat16 are computed in float32 and rounded
once, at the end; what is written keeps its bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

Layout = Literal["static", "appended", "ring", "shifted"]
_CACHE_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class KVCache:
    """Keys and values, and what they hold; never changed in place.

    Attributes:
        keys: shape (batch, key heads, slots, E).
        values: shape (batch, key heads, slots, V).
        tokens: for each row of the batch, how many tokens were written so far.
        layout: where tokens lie.
        window: how many positions a query sees, itself included; None: all up to its own.
    """

    keys: torch.Tensor
    values: torch.Tensor
    tokens: tuple[int, ...]
    layout: Layout = "static"
    window: int | None = None

    def __post_init__(self) -> None:
        """Check what the parts say of each other.

        Raises:
            ValueError: rows without a number of tokens, more tokens than fit, slots that lose tokens which the
                window still shows, or an appended cache with rows of different lengths or another number of slots.
        """
        slots = self.keys.size(2)
        if len(self.tokens) != self.keys.size(0) or min(self.tokens, default=0) < 0:
            raise ValueError(f"{self.keys.size(0)} rows of a batch need as many numbers of tokens, not {self.tokens}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"a query sees at least itself: window {self.window} is less than 1")
        if self.layout in ("ring", "shifted") and (self.window is None or slots < self.window - 1):
            raise ValueError(f"a {self.layout} cache of {slots} slots needs a window of at most {slots + 1}")
        if self.layout == "static" and max(self.tokens, default=0) > slots:
            raise ValueError(f"{max(self.tokens)} tokens do not fit into a static cache of {slots} slots")
        if self.layout == "appended" and len(set(self.tokens)) > 1:
            raise ValueError(f"rows of an appended cache have the same number of tokens, not {self.tokens}")
        if slots != _count_slots(self.layout, self.window, self.tokens, slots):
            raise ValueError(f"an appended cache of {max(self.tokens)} tokens does not have {slots} slots")

    @property
    def positions(self) -> torch.Tensor:
        """The position that each slot holds, -1 for none: integers, shape (batch, slots)."""
        return held(self.layout, self.tokens, self.keys.size(2), self.keys.device)


def held(layout: Layout, tokens: Sequence[int], slots: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """The position that each slot holds once each row has written its ``tokens``, -1 for none.

    Returns:
        Integers, shape (rows, slots).
    """
    slot = torch.arange(slots, device=device)
    total = torch.tensor(list(tokens), dtype=torch.int64, device=device).unsqueeze(1)
    if layout == "ring":
        position = total - 1 - (total - 1 - slot) % max(slots, 1)
    elif layout == "static":
        position = slot.expand(total.size(0), slots)
    else:
        position = slot + (total - slots).clamp_min(0)
    return torch.where((position >= 0) & (position < total), position, -1)


def visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None = None) -> torch.Tensor:
    """Return the positions that a query sees.

    Args:
        queries: positions, shape (batch, L).
        keys: positions, shape (batch, S), -1 for none.
        window: how many positions a query sees, itself included.

    Returns:
        Boolean, shape (batch, L, S).
    """
    behind = queries.unsqueeze(-1) - keys.unsqueeze(-2)
    seen = (behind >= 0) & (keys >= 0).unsqueeze(-2)
    return seen if window is None else seen & (behind < window)


def written(cache: KVCache, keys: torch.Tensor, values: torch.Tensor) -> KVCache:
    """The cache after the next tokens: each in its slot with the same bits, everything else as it was.

    Args:
        cache: the cache so far.
        keys: shape (batch, key heads, L, E): the next ``L`` positions of every row.
        values: shape (batch, key heads, L, V).

    Raises:
        ValueError: the tokens do not fit.
    """
    tokens = tuple(count + keys.size(2) for count in cache.tokens)
    slots = _count_slots(cache.layout, cache.window, tokens, cache.keys.size(2))
    new = held(cache.layout, tokens, slots, keys.device)
    # What a slot holds next is in the one of the old slots or new tokens that has its position.
    source = (new.unsqueeze(-1) == _append_positions(cache, keys.size(2)).unsqueeze(-2)).int().argmax(-1)
    source = torch.where(new < 0, torch.arange(slots, device=keys.device), source)
    taken = (_gather_slots(torch.cat(pair, 2), source) for pair in ((cache.keys, keys), (cache.values, values)))
    return replace(cache, keys=next(taken), values=next(taken), tokens=tokens)


def attend(
    cache: KVCache, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, *, scale: float | None = None
) -> tuple[torch.Tensor, KVCache]:
    """A prefill or a decode step: write the next tokens, and attend to all that each of them sees; differentiable.

    Args:
        cache: the cache so far.
        query: shape (batch, heads, L, E): the next ``L`` positions of every row.
        keys: shape (batch, key heads, L, E); query head ``h`` reads key head ``h // (heads / key heads)``.
        values: shape (batch, key heads, L, V).
        scale: factor of the scores; default 1 / sqrt(E).

    Returns:
        The output, shape (batch, heads, L, V) in the dtype of the query, and the cache after the write.

    Raises:
        ValueError: the tokens do not fit, or numbers of heads that do not divide.
    """
    if keys.size(1) == 0 or query.size(1) % keys.size(1):
        raise ValueError(f"{query.size(1)} heads of the query are no multiple of {keys.size(1)} heads of key or value")
    positions = _append_positions(cache, query.size(2))
    seen = visible(positions[:, cache.keys.size(2) :], positions, cache.window)
    all_keys, all_values = (_raise_cache_dtype(torch.cat(p, 2)) for p in ((cache.keys, keys), (cache.values, values)))
    # Whatever a slot holds that was never written, NaN too, must not reach the output.
    all_keys, all_values = (t.masked_fill(~seen.any(1)[:, None, :, None], 0.0) for t in (all_keys, all_values))
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    batch, heads, length, width = query.shape
    queries = _raise_cache_dtype(query).reshape(batch, keys.size(1), heads // keys.size(1), length, width)
    scores = factor * torch.einsum("bhgie,bhje->bhgij", queries, all_keys)
    weights = scores.masked_fill(~seen[:, None, None], -math.inf).softmax(-1)
    output = torch.einsum("bhgij,bhjv->bhgiv", weights, all_values).flatten(1, 2)
    return output.to(query.dtype), written(cache, keys, values)


def _append_positions(cache: KVCache, length: int) -> torch.Tensor:
    """The positions in the slots, and behind them those of the next ``length`` tokens."""
    first = torch.tensor(cache.tokens, dtype=torch.int64, device=cache.keys.device).unsqueeze(1)
    return torch.cat((cache.positions, first + torch.arange(length, device=first.device)), 1)


def _count_slots(layout: Layout, window: int | None, tokens: Sequence[int], slots: int) -> int:
    """Return the number of slots once ``tokens`` are written, if there were ``slots``."""
    if layout != "appended":
        return slots
    total = max(tokens, default=0)
    return total if window is None else min(total, window - 1)


def _gather_slots(tensor: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """``tensor`` (batch, heads, slots, width) at the ``slots`` (batch, new slots) of each row."""
    index = slots[:, None, :, None].expand(-1, tensor.size(1), -1, tensor.size(3))
    return tensor.gather(2, index)


def _raise_cache_dtype(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if tensor.dtype in _CACHE_HALF else tensor


# Reference for PrefixLM attention over packed sequences of different lengths: forward and gradients.

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
    output = query.new_empty(*query.shape[:2], value.size(-1), dtype=_widen_dtype(query.dtype))
    for rows, weights in _iter_weights(query, key, offsets, prefixes, scale):
        part = torch.einsum("hgij,jhv->ihgv", weights, _raise_dtype(value[rows]))
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
    gradients = [torch.empty_like(tensor, dtype=_widen_dtype(tensor.dtype)) for tensor in given]
    factor = _find_scale(query, scale)
    for rows, weights in _iter_weights(query, key, offsets, prefixes, scale):
        grad = _group_heads(_raise_dtype(grad_output[rows]), key)
        grad_weights = torch.einsum("ihgv,jhv->hgij", grad, _raise_dtype(value[rows]))
        grad_scores = weights * (grad_weights - (weights * grad_weights).sum(-1, keepdim=True))
        of_query = factor * torch.einsum("hgij,jhe->ihge", grad_scores, _raise_dtype(key[rows]))
        gradients[0][rows] = of_query.flatten(1, 2)
        gradients[1][rows] = factor * torch.einsum(
            "hgij,ihge->jhe", grad_scores, _group_heads(_raise_dtype(query[rows]), key)
        )
        gradients[2][rows] = torch.einsum("hgij,ihgv->jhv", weights, grad)
    of_query, of_key, of_value = (grad.to(like.dtype) for grad, like in zip(gradients, given, strict=True))
    return of_query, of_key, of_value


def prefix_lm_mask(offsets: Numbers, prefixes: Numbers, device: torch.device | str = "cpu") -> torch.Tensor:
    """``sees`` for all rows at once: boolean, shape (tokens, tokens), True where a query takes part.

    Raises:
        ValueError: as :func:`prefix_lm`.
    """
    pairs = list(_iter_sequences(offsets, prefixes))
    tokens = sum(rows.stop - rows.start for rows, _ in pairs)
    mask = torch.zeros(tokens, tokens, dtype=torch.bool, device=device)
    for rows, prefix in pairs:
        mask[rows, rows] = _make_mask(rows.stop - rows.start, prefix, mask.device)
    return mask


def _iter_weights(
    query: torch.Tensor, key: torch.Tensor, offsets: Numbers, prefixes: Numbers, scale: float | None
) -> Iterator[tuple[slice, torch.Tensor]]:
    """For each sequence its rows, and P with shape (key heads, group, queries, keys)."""
    _check_arguments(query, key, offsets)
    for rows, prefix in _iter_sequences(offsets, prefixes):
        queries = _group_heads(_raise_dtype(query[rows]), key)
        scores = _find_scale(query, scale) * torch.einsum("ihge,jhe->hgij", queries, _raise_dtype(key[rows]))
        seen = _make_mask(rows.stop - rows.start, prefix, query.device)
        yield rows, scores.masked_fill(~seen, -math.inf).softmax(-1)


def _make_mask(length: int, prefix: int, device: torch.device) -> torch.Tensor:
    position = torch.arange(length, device=device)
    return (position < prefix) | (position <= position.unsqueeze(1))


def _iter_sequences(offsets: Numbers, prefixes: Numbers) -> Iterator[tuple[slice, int]]:
    bounds, lengths = _as_integers(offsets), _as_integers(prefixes)
    if not bounds or bounds[0] != 0 or sorted(bounds) != bounds:
        raise ValueError(f"offsets begin with 0 and do not decrease; these are {bounds}")
    if len(lengths) != len(bounds) - 1 or min(lengths, default=0) < 0:
        raise ValueError(f"{len(bounds) - 1} sequences need as many prefixes, none negative; these are {lengths}")
    for start, end, prefix in zip(bounds, bounds[1:], lengths, strict=False):
        yield slice(start, end), prefix


def _check_arguments(query: torch.Tensor, key: torch.Tensor, offsets: Numbers) -> None:
    bounds = _as_integers(offsets)
    if bounds[-1:] != [query.size(0)]:
        raise ValueError(f"offsets end with the number of tokens, {query.size(0)}; these are {bounds}")
    if key.size(1) == 0 or query.size(1) % key.size(1):
        raise ValueError(f"{query.size(1)} heads of the query are no multiple of {key.size(1)} heads of key or value")


def _as_integers(numbers: Numbers) -> list[int]:
    return [int(number) for number in (numbers.tolist() if isinstance(numbers, torch.Tensor) else numbers)]


def _group_heads(tensor: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """(rows, heads, width) as (rows, key heads, group, width)."""
    return tensor.reshape(tensor.size(0), key.size(1), tensor.size(1) // key.size(1), tensor.size(2))


def _raise_dtype(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(_widen_dtype(tensor.dtype))


def _widen_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in _HALF else dtype


def _find_scale(query: torch.Tensor, scale: float | None) -> float:
    return 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
