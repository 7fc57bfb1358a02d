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
    """Each choice is drawn whether or not it comes to anything, but for those within a block or an idiom.

    So lowering one choice leaves the meaning of all later ones as it is, which is what shrinking needs.
    """
    block, embedding = _block(draw)
    attention = _attention(draw, within=block is not None)
    training = chance(draw, 25) and profile.training
    if chance(draw, 20) and training and attention.idiom != "attention_sdpa":
        attention = replace(attention, dropout=0.0)
    dims = _dims(draw, profile)
    spec = CaseSpec(
        attention=attention,
        dims=dims,
        block=block,
        embedding=embedding,
        dtype=weighted(draw, [(dtype, _DTYPE_WEIGHTS[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=chance(draw, 85 if training else 7) and profile.training,
    )
    if profile.near_misses:
        spec = apply_near_misses(draw, spec)
    return replace(spec, seed=draw(_SEEDS))


def _idiom(draw: Draw, role: Role, percent: int) -> str | None:
    """An idiom of that role in ``percent`` of the draws."""
    known = idioms(role)
    total = sum(idiom.weight for idiom in known)
    choices: list[tuple[str | None, int]] = [(None, total * (100 - percent))]
    return weighted(draw, choices + [(idiom.name, idiom.weight * percent) for idiom in known])


def _block(draw: Draw) -> tuple[Block | None, str | None]:
    """Nothing, a residual around the attention, a full block, or two or three; and an embedding before."""
    kind = weighted(draw, [("none", 45), ("residual", 15), ("full", 30), ("stack", 10)])
    if kind == "none":
        return None, None
    embedding = _idiom(draw, "embedding", percent=30)
    if kind == "residual":
        return Block(), embedding
    block = Block(
        norm=_idiom(draw, "norm", percent=85),
        norm_first=not chance(draw, 45),
        feed_forward=_idiom(draw, "feed_forward", percent=85),
    )
    if kind == "stack":
        block = replace(block, layers=one_of(draw, (2, 3)))
    return block, embedding


def _attention(draw: Draw, *, within: bool) -> Attention:
    form = weighted(draw, [(idiom.draw, idiom.weight) for idiom in idioms("attention")])
    assert form is not None, "an attention idiom draws its own parameters"
    attention = form(draw)
    projection = _idiom(draw, "projection", percent=85 if within else 45)
    layouts: list[tuple[Layout, int]] = [("heads_first", 45), ("heads_last", 45), ("flat", 10)]
    layout = weighted(draw, layouts)
    if layout == "heads_first" and (within or projection):
        layout = "heads_last"
    return replace(attention, projection=projection, layout=layout)


def _dims(draw: Draw, profile: Profile) -> Dims:
    """Sizes; without near misses none that coincide."""
    batch = one_of(draw, (1, 2, 3, 4) if profile.near_misses else (2, 3, 4))
    heads, head_dim = one_of(draw, _HEADS), one_of(draw, _HEAD_DIMS)
    sequence = one_of(draw, _SEQUENCES)
    while not profile.near_misses and sequence in (heads, head_dim):
        sequence += 1
    return Dims(batch, sequence, heads, head_dim)
