"""Choices that only a GPU can make, because Inductor times them there: made one way here, and reported."""

from __future__ import annotations

PADDING = "padding of matrix products"
_met: list[str] = []


def met() -> tuple[str, ...]:
    """The questions that came up since the last call, once each, in order."""
    questions = tuple(dict.fromkeys(_met))
    _met.clear()
    return questions


def pad(*args: object, **kwargs: object) -> bool:
    """Return whether a matrix product is padded: a GPU would time both; here ``force_shape_pad`` decides."""
    import torch._inductor.config as inductor

    _met.append(PADDING)
    return bool(inductor.force_shape_pad)
