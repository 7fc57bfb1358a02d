"""The idioms: one unit a role, each registering its own, the simplest first."""

from fuzzcompile.generation.idioms import (
    attention,
    embedding,
    feed_forward,
    head,
    layer,
    norm,
    projection,
    residual,
    scores,
)
from fuzzcompile.generation.registry import Idiom, idiom, idioms

__all__ = [
    "Idiom",
    "attention",
    "embedding",
    "feed_forward",
    "head",
    "idiom",
    "idioms",
    "layer",
    "norm",
    "projection",
    "residual",
    "scores",
]
