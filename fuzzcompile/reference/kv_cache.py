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
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch

Layout = Literal["static", "appended", "ring", "shifted"]
_HALF = (torch.float16, torch.bfloat16)


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
        if slots != _slots(self.layout, self.window, self.tokens, slots):
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
    """Which positions a query sees.

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
    slots = _slots(cache.layout, cache.window, tokens, cache.keys.size(2))
    new = held(cache.layout, tokens, slots, keys.device)
    # What a slot holds next is in the one of the old slots or new tokens that has its position.
    source = (new.unsqueeze(-1) == _positions_with(cache, keys.size(2)).unsqueeze(-2)).int().argmax(-1)
    source = torch.where(new < 0, torch.arange(slots, device=keys.device), source)
    taken = (_gathered(torch.cat(pair, 2), source) for pair in ((cache.keys, keys), (cache.values, values)))
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
    positions = _positions_with(cache, query.size(2))
    seen = visible(positions[:, cache.keys.size(2) :], positions, cache.window)
    all_keys, all_values = (_raised(torch.cat(p, 2)) for p in ((cache.keys, keys), (cache.values, values)))
    # Whatever a slot holds that was never written, NaN too, must not reach the output.
    all_keys, all_values = (t.masked_fill(~seen.any(1)[:, None, :, None], 0.0) for t in (all_keys, all_values))
    factor = 1.0 / math.sqrt(query.size(-1)) if scale is None else scale
    batch, heads, length, width = query.shape
    queries = _raised(query).reshape(batch, keys.size(1), heads // keys.size(1), length, width)
    scores = factor * torch.einsum("bhgie,bhje->bhgij", queries, all_keys)
    weights = scores.masked_fill(~seen[:, None, None], -math.inf).softmax(-1)
    output = torch.einsum("bhgij,bhjv->bhgiv", weights, all_values).flatten(1, 2)
    return output.to(query.dtype), written(cache, keys, values)


def _positions_with(cache: KVCache, length: int) -> torch.Tensor:
    """The positions in the slots, and behind them those of the next ``length`` tokens."""
    first = torch.tensor(cache.tokens, dtype=torch.int64, device=cache.keys.device).unsqueeze(1)
    return torch.cat((cache.positions, first + torch.arange(length, device=first.device)), 1)


def _slots(layout: Layout, window: int | None, tokens: Sequence[int], slots: int) -> int:
    """How many slots there are once ``tokens`` are written, if there were ``slots``."""
    if layout != "appended":
        return slots
    total = max(tokens, default=0)
    return total if window is None else min(total, window - 1)


def _gathered(tensor: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """``tensor`` (batch, heads, slots, width) at the ``slots`` (batch, new slots) of each row."""
    index = slots[:, None, :, None].expand(-1, tensor.size(1), -1, tensor.size(3))
    return tensor.gather(2, index)


def _raised(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if tensor.dtype in _HALF else tensor
