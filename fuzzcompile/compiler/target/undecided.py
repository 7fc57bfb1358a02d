"""What only a GPU can decide, because Inductor times it there: compiled one way or the other, and said so."""

from __future__ import annotations

_PAD_MM = "torch._inductor.fx_passes.pad_mm"
#: Names of the decisions that came up since the last call of :func:`taken`.
_met: list[str] = []


def taken() -> tuple[str, ...]:
    """The decisions that came up since the last call, without repetition, in order."""
    met = tuple(dict.fromkeys(_met))
    _met.clear()
    return met


def pad(*args: object, **kwargs: object) -> bool:
    """Whether a matmul is padded: a GPU would time both; here ``force_shape_pad`` says it."""
    import torch._inductor.config as inductor

    _met.append("pad_mm")
    return bool(inductor.force_shape_pad)


PLACES = ((_PAD_MM, "_should_pad", pad),)
