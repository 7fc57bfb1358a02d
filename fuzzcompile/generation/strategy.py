"""From a profile to a Hypothesis strategy of case specs.

In every draw the first choice is the simplest one: no block, no projection, the smallest sizes,
float32, eval, no near miss. Shrinking therefore ends at one attention over q, k and v.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

from hypothesis import strategies as st

from fuzzcompile.generation.drawing import Draw, chance, one_of, weighted
from fuzzcompile.generation.idioms import idioms
from fuzzcompile.generation.near_misses import apply_near_misses
from fuzzcompile.generation.profile import Profile
from fuzzcompile.generation.registry import Role
from fuzzcompile.generation.spec import Attention, Block, CaseSpec, Dims, Layout

_SEQUENCES = tuple(range(2, 17))
_HEADS = (1, 2, 3, 4, 6, 8)
_HEAD_DIMS = (2, 3, 4, 8, 16)
_DTYPE_WEIGHTS = {"float32": 2, "bfloat16": 1, "float16": 1}
_SEEDS = st.integers(0, 9999)


@cache
def case_strategy(profile: Profile) -> st.SearchStrategy[CaseSpec]:
    """All cases that a profile allows. Every one of them renders to a program that runs in eager."""
    return _cases(profile)


@st.composite
def _cases(draw: Draw, profile: Profile) -> CaseSpec:
    block = _block(draw)
    attention = _attention(draw, within=block is not None)
    embedding = _idiom(draw, "embedding", percent=30) if block else None
    training = profile.training and chance(draw, 25)
    if training and chance(draw, 20) and attention.idiom != "attention_sdpa":
        attention = replace(attention, dropout=0.0)
    spec = CaseSpec(
        attention=attention,
        dims=_dims(draw, profile),
        block=block,
        embedding=embedding,
        dtype=weighted(draw, [(dtype, _DTYPE_WEIGHTS[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=profile.training and chance(draw, 85 if training else 7),
    )
    if profile.near_misses:
        spec = apply_near_misses(draw, spec)
    return replace(spec, seed=draw(_SEEDS))


def _idiom(draw: Draw, role: Role, percent: int) -> str | None:
    if not chance(draw, percent):
        return None
    return weighted(draw, [(idiom.name, idiom.weight) for idiom in idioms(role)])


def _block(draw: Draw) -> Block | None:
    """Nothing, a residual around the attention, a full block, or two or three of them."""
    kind = weighted(draw, [("none", 45), ("residual", 15), ("full", 30), ("stack", 10)])
    if kind == "none":
        return None
    if kind == "residual":
        return Block()
    return Block(
        layers=one_of(draw, (2, 3)) if kind == "stack" else 1,
        norm=_idiom(draw, "norm", percent=85),
        norm_first=not chance(draw, 45),
        feed_forward=_idiom(draw, "feed_forward", percent=85),
    )


def _attention(draw: Draw, *, within: bool) -> Attention:
    form = weighted(draw, [(idiom.draw, idiom.weight) for idiom in idioms("attention")])
    assert form is not None, "an attention idiom draws its own parameters"
    projection = _idiom(draw, "projection", percent=85 if within else 45)
    layouts: list[tuple[Layout, int]] = [("heads_last", 45), ("flat", 10)]
    if not within and projection is None:
        layouts.insert(0, ("heads_first", 45))
    layout = weighted(draw, layouts)
    return replace(form(draw), projection=projection, layout=layout)


def _dims(draw: Draw, profile: Profile) -> Dims:
    """Sizes; without near misses none that coincide."""
    batch = one_of(draw, (1, 2, 3, 4) if profile.near_misses else (2, 3, 4))
    heads, head_dim = one_of(draw, _HEADS), one_of(draw, _HEAD_DIMS)
    apart = () if profile.near_misses else (heads, head_dim)
    sequence = one_of(draw, [length for length in _SEQUENCES if length not in apart])
    return Dims(batch, sequence, heads, head_dim)
