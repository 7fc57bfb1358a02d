"""What only a GPU can decide, because Inductor times it there: compiled one way or the other, and said so."""

from __future__ import annotations

PADDING = "padding of matrix products"
_met: list[str] = []


def met() -> tuple[str, ...]:
    """The questions that came up since the last call, once each, in order."""
    questions = tuple(dict.fromkeys(_met))
    _met.clear()
    return questions


def pad(*args: object, **kwargs: object) -> bool:
    """Whether a matrix product is padded: a GPU would time both; here ``force_shape_pad`` says it."""
    import torch._inductor.config as inductor

    _met.append(PADDING)
    return bool(inductor.force_shape_pad)
