"""From a profile to a Hypothesis strategy of case specs.

In every draw the first choice is the simplest one: no block, no projection, the smallest sizes,
float32, eval, no near miss. Shrinking therefore ends at one attention over q, k and v.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from hypothesis import strategies as st

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.fitting import fitted
from fuzzcompile.generation.idioms import idiom, idioms
from fuzzcompile.generation.near_misses import apply_near_misses
from fuzzcompile.generation.profile import Profile
from fuzzcompile.generation.programs.numbers import DRAWING
from fuzzcompile.generation.programs.placing import with_program, with_programs_beside
from fuzzcompile.generation.registry import Role, form_of
from fuzzcompile.generation.repertoire import CPU, GPU, Repertoire
from fuzzcompile.generation.spec import (
    Attention,
    Block,
    Call,
    CaseSpec,
    Compile,
    Dims,
    InputLayout,
    Layout,
    Mark,
    Mask,
    Part,
    Placement,
    Program,
    Size,
)
from fuzzcompile.generation.toggles import EAGER_NUMBERS, FOR_GPU, OWN_RANDOM_STREAM
from fuzzcompile.sides import AOTI, COMPILE, EXPORT

# Percentage of cases that are a plain attention, without a near miss; and of operator programs among the others.
# Both can be steered by the names that such cases have: bench/steering.py compares other shares.
_PLAIN, _PROGRAMS = 10, 50


@lru_cache(maxsize=64)
def case_strategy(profile: Profile) -> st.SearchStrategy[CaseSpec]:
    """All cases that a profile allows. Every one of them renders to a program that runs in eager."""
    return _cases(profile)


@st.composite
def _cases(draw: st.DrawFn, profile: Profile) -> CaseSpec:
    """Draws every choice, even one without effect, except those within a block or an idiom.

    Lowering a choice then leaves the meaning of all later ones unchanged, as shrinking needs it.
    """
    pen, repertoire = Pen(draw, profile.steering), _repertoire(profile)
    if pen.chance(_PLAIN, "plain"):
        return replace(fitted(_plain(pen, profile)), seed=pen.number(999_999))
    if pen.chance(_PROGRAMS, "program") and profile.near_misses:
        return replace(_program(pen, profile), seed=pen.number(999_999))
    block, embedding = _block(pen)
    layer = _part(pen, "layer", percent=28)  # in place of an attention of drawn parts
    attention = _attention(pen, within=block is not None)
    head = _part(pen, "head", percent=16 if block else 4)
    training = pen.chance(25) and profile.training
    drops = pen.weighted([(0.1, 60), (0.0, 40)])
    if pen.chance(35) and training:
        attention = replace(attention, dropout=drops)
    dims = _dims(pen, profile)
    spec = CaseSpec(
        attention=attention,
        dims=dims,
        block=block,
        layer=layer,
        embedding=embedding,
        head=head,
        dtype=pen.weighted([(dtype, repertoire.dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=pen.chance(85 if training else 7) and profile.training,
        compile=_compile(pen, profile, layer),
    )
    if profile.near_misses:
        spec = with_programs_beside(pen, fitted(apply_near_misses(pen, fitted(spec))))
    elif layer is not None and idiom(layer.name).traits.own_strides and block is None:
        spec = replace(spec, block=Block())  # on its own its strides are not those of eager
    return replace(_with_numbers(pen, fitted(spec)), seed=pen.number(999_999))


def _repertoire(profile: Profile) -> Repertoire:
    return GPU if profile.gpu else CPU


def _plain(pen: Pen, profile: Profile) -> CaseSpec:
    """One attention over query, key and value and nothing else, as rewrites look for it: half of them trained.

    A near miss means something only if its plain neighbour is known to be rewritten.
    """
    attention = _form(pen, [(idiom.name, idiom.attention.plain) for idiom in idioms("attention")])
    mask, wide = attention.mask, pen.chance(35)
    if mask is not None and mask.use == "add" and mask.dtype != "bool":  # to a rewrite one bias is like another
        dtype = "float32" if wide and form_of(attention).widens_plain_mask else mask.dtype
        attention = replace(attention, mask=Mask(shape="key" if mask.shape == "key" else "square", dtype=dtype))
    repertoire, dims = _repertoire(profile), _dims(pen, replace(profile, near_misses=False))
    layouts: list[tuple[Layout, int]] = [("heads_last", 60), ("heads_first", 40)]
    layout = pen.weighted(layouts)
    training = pen.chance(60) and profile.training
    drops, own_stream = pen.chance(60), pen.chance(90)
    toggles: tuple[str, ...] = (OWN_RANDOM_STREAM.name,) if training and drops and own_stream else ()
    if repertoire.plain_toggled and pen.chance(repertoire.plain_toggled):
        toggles += (pen.named([(toggle.name, toggle.weight) for toggle in FOR_GPU]),)
    return CaseSpec(
        attention=replace(attention, layout=layout, dropout=0.1 if training and drops else None),
        dims=replace(dims, batch=1) if pen.chance(40) and profile.near_misses else dims,
        dtype=pen.weighted([(dtype, repertoire.plain_dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=training,
        compile=Compile(toggles=tuple(name for name in toggles if pen.weights.get(name, 100))),
    )


def _program(pen: Pen, profile: Profile) -> CaseSpec:
    """An operator program in the place of the model: over an activation, further inputs and parameters."""
    repertoire = _repertoire(profile)
    training = pen.chance(15) and profile.training
    dims = _dims(pen, profile)
    spec = CaseSpec(
        attention=Attention(idioms("attention")[0].name),
        dims=dims,
        program=Program((), ()),
        dtype=pen.weighted([(dtype, repertoire.dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=pen.chance(80 if training else 10) and profile.training,
        compile=_compile(pen, profile, None),
    )
    return _with_numbers(pen, with_program(pen, fitted(apply_near_misses(pen, fitted(spec)))))


def _with_numbers(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The case, compiled with eager's own random numbers in four fifths of the draws if it draws any.

    Where they are promised they are compared value by value; otherwise by their distribution at best.
    """
    toggles = spec.compile.toggles
    programs = [program for _, program in spec.programs] + ([spec.program] if spec.program is not None else [])
    draws = any(name in DRAWING for program in programs for name in program.operators)
    draws = draws or bool(spec.training and spec.attention.dropout)
    if not draws or spec.compile.mode is not None or OWN_RANDOM_STREAM.name in toggles or not pen.chance(80):
        return spec
    if not pen.weights.get(EAGER_NUMBERS.name, 100):
        return spec
    wanted = tuple(dict.fromkeys((*toggles, EAGER_NUMBERS.name)))
    return replace(spec, compile=replace(spec.compile, toggles=wanted))


def _form(pen: Pen, weights: Sequence[tuple[str, int]]) -> Attention:
    """An attention with the choices that only its idiom has."""
    form = idiom(pen.named(weights)).draw_attention
    assert form is not None, "an attention idiom draws its own parameters"
    return form(pen)


def _name(pen: Pen, role: Role, percent: int) -> str | None:
    """An idiom of that role in ``percent`` of the draws."""
    known = idioms(role)
    total = sum(idiom.weight for idiom in known)
    choices: list[tuple[str | None, int]] = [(None, total * (100 - percent))]
    return pen.named(choices + [(idiom.name, idiom.weight * percent) for idiom in known])


def _part(pen: Pen, role: Role, percent: int) -> Part | None:
    """An idiom of that role with its choices, in ``percent`` of the draws."""
    name = _name(pen, role, percent)
    return idiom(name).part(pen) if name else None


def _block(pen: Pen) -> tuple[Block | None, str | None]:
    """No block, a residual around the attention, a full block, or a stack of two to four; and an embedding in front."""
    kind = pen.weighted([("none", 50), ("residual", 14), ("full", 27), ("stack", 9)])
    if kind == "none":
        return None, None
    embedding = _name(pen, "embedding", percent=25)
    if kind == "residual":
        return Block(residual=_name(pen, "residual", percent=20)), embedding
    placements: list[tuple[Placement, int]] = [("pre", 50), ("post", 35), ("sandwich", 15)]
    block = Block(
        norm=_name(pen, "norm", percent=85),
        placement=pen.weighted(placements),
        feed_forward=_part(pen, "feed_forward", percent=85),
        residual=_name(pen, "residual", percent=20),
    )
    if kind == "stack":
        block = replace(block, layers=pen.weighted([(2, 6), (3, 3), (4, 1)]))
    return block, embedding


def _attention(pen: Pen, *, within: bool) -> Attention:
    attention = _form(pen, [(idiom.name, idiom.weight) for idiom in idioms("attention")])
    projection = _name(pen, "projection", percent=85 if within else 40)
    layouts: list[tuple[Layout, int]] = [("heads_first", 45), ("heads_last", 45), ("flat", 10)]
    layout = pen.weighted(layouts)
    return replace(
        attention,
        projection=projection,
        layout=layout,
        cross=pen.chance(12),
        position=_name(pen, "position", percent=10),
        norm=_name(pen, "query_norm", percent=8),
        grouping=_name(pen, "grouping", percent=12),
        softcap=pen.chance(4, "softcap"),
        sink=pen.chance(4, "sink"),
    )


def _dims(pen: Pen, profile: Profile) -> Dims:
    """Sizes, of which no two coincide without near misses."""
    sizes = _repertoire(profile)
    batch = pen.one_of((1, 2, 3, 4) if profile.near_misses else (2, 3, 4))
    heads, head_dim = pen.one_of(sizes.heads), pen.one_of(sizes.head_dims)
    if not profile.near_misses and heads == 1:
        heads = 2
    sequence = pen.one_of(sizes.sequences)
    while not profile.near_misses and sequence in (heads, head_dim):
        sequence += 1
    source = pen.one_of(sizes.sources)
    while not profile.near_misses and source in (heads, head_dim, sequence):
        source += 1
    return sizes.affordable(Dims(batch, sequence, heads, head_dim, source))


def _compile(pen: Pen, profile: Profile, layer: Part | None) -> Compile:
    """Draw the settings of compiling the case; settings other than the compiler's own only among near misses."""
    grads: list[tuple[str | None, int]] = [(None, 80), ("inference_mode", 10), ("enabled", 10)]
    grad = pen.weighted(grads)
    again = pen.chance(12, "second_call")
    calls = _calls(pen)
    dynamic = pen.weighted([(None, 40), (True, 50), (False, 10)])
    fullgraph = pen.chance(3)
    autocast = pen.chance(5, "autocast")
    repertoire = _repertoire(profile)
    toggles = _toggles(pen, repertoire, layer)
    modes: list[tuple[str | None, int]] = [(None, 240), *repertoire.modes]
    mode = pen.named(modes)
    odd = profile.near_misses
    marks: list[tuple[Mark | None, int]] = [
        (None, 80),
        ("maybe_mark_dynamic", 10),
        ("mark_dynamic", 8),
        ("mark_unbacked", 2),
    ]
    mark = pen.named(marks)
    captured = pen.chance(50)
    path = pen.weighted([(COMPILE, 950), (EXPORT, 30), (AOTI, 20)])
    return Compile(
        grad=grad,
        dynamic=dynamic if again else None,
        calls=(calls if odd else calls[:1]) if again else (),
        mode=mode if odd and not toggles else None,
        fullgraph=fullgraph,
        autocast="bfloat16" if autocast and odd else None,
        toggles=toggles if odd else (),
        mark=mark if again and odd else None,
        captured=captured,
        path=path if odd else COMPILE,
    )


def _calls(pen: Pen) -> tuple[Call, ...]:
    """One to three further calls, at other sizes most of the time."""
    return tuple(_call(pen) for _ in range(pen.weighted([(1, 60), (2, 25), (3, 15)])))


def _call(pen: Pen) -> Call:
    batches: list[tuple[Size, int]] = [
        ("same", 40), ("more", 30), ("one", 12), ("many", 6), ("sequence", 6), ("heads", 3), ("none", 3),
    ]  # fmt: skip
    sequences: list[tuple[Size, int]] = [
        ("more", 35), ("plus_five", 20), ("same", 10), ("one", 10), ("many", 6), ("batch", 6), ("heads", 5),
        ("head_dim", 5), ("none", 3),
    ]  # fmt: skip
    layouts: list[tuple[InputLayout, int]] = [
        ("contiguous", 76), ("transposed", 8), ("outer_last", 8), ("sliced", 8),
    ]  # fmt: skip
    return Call(pen.weighted(batches), pen.weighted(sequences), pen.weighted(layouts), pen.chance(10))


def _toggles(pen: Pen, repertoire: Repertoire, layer: Part | None) -> tuple[str, ...]:
    """No setting, one or two; more often, and among those that act on it, for a layer that stirs rare passes."""
    known, count = repertoire.toggles, pen.weighted(repertoire.toggled)
    names = [(toggle.name, toggle.weight) for toggle in known]
    stirred = idiom(layer.name).traits.stirs if layer is not None else ()
    acting = [toggle.name for toggle in known if toggle.acts_on in stirred]
    if acting and pen.chance(75):
        count, names = 1 + pen.number(1), [(name, 1) for name in acting]
    drawn = [pen.named(names) for _ in range(count)]
    return tuple(dict.fromkeys(name for name in drawn if pen.weights.get(name, 100)))
