"""Draws cases: the Hypothesis strategy of a profile, cases from choices, and cases as files."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count
from pathlib import Path
from typing import Any, Literal

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from fuzzcompile.fuzz.aliased_programs.grammar import draw_aliased
from fuzzcompile.fuzz.distributed_programs.collective_programs import draw_kind, draw_program
from fuzzcompile.fuzz.generation.inputs import fit_spec
from fuzzcompile.fuzz.generation.profile import CPU_REPERTOIRE, GPU_REPERTOIRE, Profile, Repertoire
from fuzzcompile.fuzz.generation.rendering import render
from fuzzcompile.fuzz.generation.spec import (
    Attention,
    Block,
    CaseSpec,
    Compile,
    Dims,
    FurtherCall,
    Layout,
    Mark,
    Mask,
    OperatorProgram,
    Part,
    Pen,
    Placement,
    Size,
    Weights,
)
from fuzzcompile.fuzz.idioms.registry import Role, find_attention_traits, idiom, idioms
from fuzzcompile.fuzz.near_misses.near_miss_registry import apply_near_misses
from fuzzcompile.fuzz.operator_programs.elements import DRAWING
from fuzzcompile.fuzz.operator_programs.production import add_program, add_programs_beside
from fuzzcompile.fuzz.stateful_programs.grammar import draw_state
from fuzzcompile.model.compiler_toggles import EAGER_NUMBERS, FOR_GPU, OWN_RANDOM_STREAM
from fuzzcompile.model.contract import AOTI, CACHED, COMPILE, EXPORT, EXPORTED
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.programs.edits.tensor_values import InputLayout

# Percentage of cases that are a plain attention, without a near miss; of stateful programs among the others; of aliased
# programs among these others; and of operator programs among the rest. They can be steered by the names that such cases
# have: bench/steering.py compares other shares.
_PLAIN, _STATEFUL, _ALIASED, _PROGRAMS = 10, 20, 8, 50
# Percentage of stateful programs that end in an operator program.
_COMPUTED = 55
# How often each choice is drawn among the others, the simplest first.
_PLAIN_LAYOUTS: Weights[Layout] = (("heads_last", 60), ("heads_first", 40))
_LAYOUTS: Weights[Layout] = (("heads_first", 45), ("heads_last", 45), ("flat", 10))
_PLACEMENTS: Weights[Placement] = (("pre", 50), ("post", 35), ("sandwich", 15))
_GRADS: Weights[str | None] = ((None, 80), ("inference_mode", 10), ("enabled", 10))
_MARKS: Weights[Mark | None] = ((None, 80), ("maybe_mark_dynamic", 10), ("mark_dynamic", 8), ("mark_unbacked", 2))
_BATCHES: Weights[Size] = (
    ("same", 40), ("more", 30), ("one", 12), ("many", 6), ("sequence", 6), ("heads", 3), ("none", 3),
)  # fmt: skip
_SEQUENCES: Weights[Size] = (
    ("more", 35), ("plus_five", 20), ("same", 10), ("one", 10), ("many", 6), ("batch", 6), ("heads", 5),
    ("head_dim", 5), ("none", 3),
)  # fmt: skip
_INPUTS: Weights[InputLayout] = (("contiguous", 76), ("transposed", 8), ("outer_last", 8), ("sliced", 8))


CaseKind = Literal["block", "plain", "stateful", "aliased_program", "program", "distributed"]
"""What a case is on the whole: parts around an attention, or another program."""
KINDS: tuple[CaseKind, ...] = ("block", "plain", "stateful", "aliased_program", "program", "distributed")


def list_kinds(profile: Profile) -> tuple[CaseKind, ...]:
    """The kinds of case that a profile allows."""
    if profile.nproc is not None:
        return KINDS[-1:]
    return KINDS[:-1] if profile.near_misses else KINDS[:2]


@st.composite
def case_strategy(draw: st.DrawFn, profile: Profile, wanted: CaseKind | None = None) -> CaseSpec:
    """All cases that a profile allows, or those of a kind. Every one of them renders to a program that runs in eager.

    Every choice is drawn, even one without effect, except those within a block or an idiom: lowering a choice then
    leaves the meaning of all later ones unchanged, as shrinking needs it.
    """
    pen = Pen(draw, {**dict(profile.weights), **dict.fromkeys(profile.without, 0)})
    kind = _draw_kind(pen, profile)
    if wanted is not None and kind != wanted:
        reject()  # before what takes time is drawn
    return replace(_DRAWN_AS[kind](pen, profile), seed=pen.number(999_999))


def _draw_kind(pen: Pen, profile: Profile) -> CaseKind:
    if profile.nproc is not None:
        return "distributed"
    if pen.chance(_PLAIN, "plain"):
        return "plain"
    if pen.chance(_STATEFUL, "stateful") and profile.near_misses:
        return "stateful"
    if pen.chance(_ALIASED, "aliased_program") and profile.near_misses:
        return "aliased_program"
    if pen.chance(_PROGRAMS, "program") and profile.near_misses:
        return "program"
    return "block"


def _draw_parts(pen: Pen, profile: Profile) -> CaseSpec:
    """An attention of drawn parts, or a layer in its place, and what stands around it."""
    repertoire = _choose_repertoire(profile)
    block, embedding = _draw_block(pen)
    layer = _draw_part(pen, "layer", percent=28)  # in place of an attention of drawn parts
    attention = _draw_attention(pen, within=block is not None)
    head = _draw_part(pen, "head", percent=16 if block else 4)
    training = pen.chance(25) and profile.training
    drops = pen.draw_weighted([(0.1, 60), (0.0, 40)])
    if pen.chance(35) and training:
        attention = replace(attention, dropout=drops)
    dims = _draw_dims(pen, profile)
    spec = CaseSpec(
        attention=attention,
        dims=dims,
        block=block,
        layer=layer,
        embedding=embedding,
        head=head,
        dtype=pen.draw_weighted([(dtype, repertoire.dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=pen.chance(85 if training else 7) and profile.training,
        compile=_draw_compile(pen, profile, layer),
    )
    if profile.near_misses:
        spec = add_programs_beside(pen, fit_spec(apply_near_misses(pen, fit_spec(spec))))
    elif layer is not None and idiom(layer.name).traits.own_strides and block is None:
        spec = replace(spec, block=Block())  # on its own its strides are not those of eager
    return _choose_random_numbers(pen, fit_spec(spec))


def _choose_repertoire(profile: Profile) -> Repertoire:
    return GPU_REPERTOIRE if profile.gpu else CPU_REPERTOIRE


def _draw_plain(pen: Pen, profile: Profile) -> CaseSpec:
    """One attention over query, key and value and nothing else, as rewrites look for it: half of them trained.

    A near miss means something only if its plain neighbour is known to be rewritten.
    """
    weights = [(idiom.name, idiom.attention.plain) for idiom in idioms("attention")]
    attention = idiom(pen.draw_named(weights)).draw_attention(pen)
    mask, wide = attention.mask, pen.chance(35)
    if mask is not None and mask.use == "add" and mask.dtype != "bool":  # to a rewrite one bias is like another
        dtype = "float32" if wide and find_attention_traits(attention).widens_plain_mask else mask.dtype
        attention = replace(attention, mask=Mask(shape="key" if mask.shape == "key" else "square", dtype=dtype))
    repertoire, dims = _choose_repertoire(profile), _draw_dims(pen, replace(profile, near_misses=False))
    layout = pen.draw_weighted(_PLAIN_LAYOUTS)
    training = pen.chance(60) and profile.training
    drops, own_stream = pen.chance(60), pen.chance(90)
    toggles: tuple[str, ...] = (OWN_RANDOM_STREAM.name,) if training and drops and own_stream else ()
    if repertoire.plain_toggled and pen.chance(repertoire.plain_toggled):
        toggles += (pen.draw_named([(toggle.name, toggle.weight) for toggle in FOR_GPU]),)
    spec = CaseSpec(
        attention=replace(attention, layout=layout, dropout=0.1 if training and drops else None),
        dims=replace(dims, batch=1) if pen.chance(40) and profile.near_misses else dims,
        dtype=pen.draw_weighted([(dtype, repertoire.plain_dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=training,
        compile=Compile(toggles=tuple(name for name in toggles if pen.weights.get(name, 100))),
    )
    return fit_spec(spec)


def _draw_program(pen: Pen, profile: Profile) -> CaseSpec:
    """An operator program in the place of the model: over an activation, further inputs and parameters."""
    repertoire = _choose_repertoire(profile)
    training = pen.chance(15) and profile.training
    dims = _draw_dims(pen, profile)
    spec = CaseSpec(
        attention=Attention(idioms("attention")[0].name),
        dims=dims,
        program=OperatorProgram((), ()),
        dtype=pen.draw_weighted([(dtype, repertoire.dtypes[dtype]) for dtype in profile.dtypes]),
        training=training,
        backward=pen.chance(80 if training else 10) and profile.training,
        compile=_draw_compile(pen, profile, None),
    )
    # Sizes may be symbols from the first call on.
    dynamic = spec.compile.dynamic or pen.draw_weighted([(None, 75), (True, 25)])
    spec = replace(spec, compile=replace(spec.compile, dynamic=dynamic, captured=pen.chance(30)))
    spec = add_program(pen, fit_spec(apply_near_misses(pen, fit_spec(spec))))
    if "called" in spec.operators:  # some calls depend on values, which neither an export nor a full graph allows
        path = COMPILE if spec.compile.path in EXPORTED else spec.compile.path
        spec = replace(spec, compile=replace(spec.compile, fullgraph=False, path=path))
    return _choose_random_numbers(pen, spec)


def _draw_stateful(pen: Pen, profile: Profile) -> CaseSpec:
    """Python state around a short operator program, called again after the state has changed."""
    repertoire = _choose_repertoire(profile)
    dtype = pen.draw_weighted([(dtype, 3 if dtype == "float32" else 1) for dtype in profile.dtypes])
    training, computed = pen.chance(15) and profile.training, pen.chance(_COMPUTED)
    spec = CaseSpec(
        attention=Attention(idioms("attention")[0].name),
        dims=repertoire.limit_dims(_draw_dims(pen, profile)),
        program=OperatorProgram((), (), ("x",)),
        dtype=dtype,
        training=training,
        backward=pen.chance(35) and profile.training and dtype == "float32",  # some operators lack it in half
        compile=Compile(
            grad=pen.draw_weighted(_GRADS),
            dynamic=pen.draw_weighted([(None, 65), (True, 25), (False, 10)]),
            captured=pen.chance(30),
        ),
    )
    if computed:
        spec = add_program(pen, fit_spec(spec), refusable=False)
        assert spec.program is not None
        outputs = spec.program.outputs
        spec = replace(spec, program=replace(spec.program, outputs=("x", *(name for name in outputs if name != "x"))))
    spec = replace(spec, state=draw_state(pen, spec))
    return fit_spec(_choose_random_numbers(pen, spec))


def _draw_aliased(pen: Pen, profile: Profile) -> CaseSpec:
    """Reads and writes of tensors that share memory, which nothing else stands beside."""
    grad = pen.draw_weighted(_GRADS)
    dynamic = pen.draw_weighted([(None, 75), (True, 25)])
    attention = Attention(idioms("attention")[0].name)
    dtype = pen.one_of(profile.dtypes)
    aliases = draw_aliased(pen, dtype, gradients=profile.training)
    return CaseSpec(
        attention=attention,
        dims=Dims(1, 1, 1, 1),
        aliases=aliases,
        dtype=dtype,
        backward=aliases.differentiated,
        compile=Compile(grad=None if aliases.differentiated else grad, dynamic=dynamic),
    )


def _draw_distributed(pen: Pen, profile: Profile) -> CaseSpec:
    """A program of several processes: a module that is wrapped or planned, collectives, or tensors in parts."""
    assert profile.nproc is not None
    nproc = profile.nproc
    kind, wraps = draw_kind(pen, nproc)
    backward = pen.chance(60) and profile.training
    how = Compile(dynamic=pen.draw_weighted([(None, 80), (True, 15), (False, 5)]), fullgraph=pen.chance(8))
    attention = Attention(idioms("attention")[0].name)
    spec = CaseSpec(attention=attention, dims=Dims(1, 1, 1, 1), backward=backward, compile=how)
    spec = _draw_wrapped(pen, profile, spec) if wraps else spec
    stacked = spec.block is not None and spec.block.layers > 1
    program, dtype = draw_program(pen, kind, nproc, backward=spec.backward, stacked=stacked if wraps else None)
    how = replace(spec.compile, fullgraph=how.fullgraph and not program.breaks_graphs)
    return replace(spec, distributed=program, dtype=dtype or spec.dtype, compile=how)


def _draw_wrapped(pen: Pen, profile: Profile, spec: CaseSpec) -> CaseSpec:
    """A module with parameters: what wraps one has nothing to do otherwise."""
    block, embedding = _draw_block(pen)
    layer = _draw_part(pen, "layer", percent=15) if block is not None else None
    attention = _draw_attention(pen, within=True)
    attention = replace(attention, projection=attention.projection or pen.one_of(idioms("projection")).name)
    training, repertoire = pen.chance(30) and profile.training, _choose_repertoire(profile)
    drops = pen.draw_weighted([(0.1, 60), (0.0, 40)])
    spec = replace(
        spec,
        attention=replace(attention, dropout=drops) if pen.chance(35) and training else attention,
        dims=_draw_dims(pen, profile),
        block=block,
        layer=layer,
        embedding=embedding,
        head=_draw_part(pen, "head", percent=16),
        dtype=pen.draw_weighted(
            [(dtype, repertoire.dtypes[dtype] * (3 if dtype == "float32" else 1)) for dtype in profile.dtypes]
        ),
        training=training,
    )
    return _choose_random_numbers(pen, fit_spec(spec))


def _choose_random_numbers(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The case, compiled with eager's own random numbers in four fifths of the draws if it draws any.

    Where they are promised they are compared value by value; otherwise by their distribution at best.
    """
    toggles = spec.compile.toggles
    programs = [program for _, program in spec.programs] + ([spec.program] if spec.program is not None else [])
    draws = any(name in DRAWING for program in programs for name in program.operators)
    draws = draws or bool(spec.training and spec.attention.dropout) or bool(spec.state and spec.state.draws)
    if not draws or spec.compile.mode is not None or OWN_RANDOM_STREAM.name in toggles or not pen.chance(80):
        return spec
    if not pen.weights.get(EAGER_NUMBERS.name, 100):
        return spec
    wanted = tuple(dict.fromkeys((*toggles, EAGER_NUMBERS.name)))
    return replace(spec, compile=replace(spec.compile, toggles=wanted))


def _draw_name(pen: Pen, role: Role, percent: int) -> str | None:
    known = idioms(role)
    total = sum(idiom.weight for idiom in known)
    choices: list[tuple[str | None, int]] = [(None, total * (100 - percent))]
    return pen.draw_named(choices + [(idiom.name, idiom.weight * percent) for idiom in known])


def _draw_part(pen: Pen, role: Role, percent: int) -> Part | None:
    name = _draw_name(pen, role, percent)
    return idiom(name).draw_choices(pen) if name else None


def _draw_block(pen: Pen) -> tuple[Block | None, str | None]:
    """No block, a residual around the attention, a full block, or a stack of two to four; and an embedding in front."""
    kind = pen.draw_weighted([("none", 50), ("residual", 14), ("full", 27), ("stack", 9)])
    if kind == "none":
        return None, None
    embedding = _draw_name(pen, "embedding", percent=25)
    if kind == "residual":
        return Block(residual=_draw_name(pen, "residual", percent=20)), embedding
    block = Block(
        norm=_draw_name(pen, "norm", percent=85),
        placement=pen.draw_weighted(_PLACEMENTS),
        feed_forward=_draw_part(pen, "feed_forward", percent=85),
        residual=_draw_name(pen, "residual", percent=20),
    )
    if kind == "stack":
        block = replace(block, layers=pen.draw_weighted([(2, 6), (3, 3), (4, 1)]))
    return block, embedding


def _draw_attention(pen: Pen, *, within: bool) -> Attention:
    name = pen.draw_named([(idiom.name, idiom.weight) for idiom in idioms("attention")])
    attention = idiom(name).draw_attention(pen)
    projection = _draw_name(pen, "projection", percent=85 if within else 40)
    layout = pen.draw_weighted(_LAYOUTS)
    return replace(
        attention,
        projection=projection,
        layout=layout,
        cross=pen.chance(12),
        position=_draw_name(pen, "position", percent=10),
        norm=_draw_name(pen, "query_norm", percent=8),
        grouping=_draw_name(pen, "grouping", percent=12),
        softcap=pen.chance(4, "softcap"),
        sink=pen.chance(4, "sink"),
    )


def _draw_dims(pen: Pen, profile: Profile) -> Dims:
    """Sizes, of which no two coincide without near misses."""
    sizes, apart = _choose_repertoire(profile), not profile.near_misses
    batch = pen.one_of((2, 3, 4) if apart else (1, 2, 3, 4))
    heads, head_dim = pen.one_of(sizes.heads), pen.one_of(sizes.head_dims)
    heads = max(heads, 2) if apart else heads
    sequence, source = pen.one_of(sizes.sequences), pen.one_of(sizes.sources)
    while apart and sequence in (heads, head_dim):
        sequence += 1
    while apart and source in (heads, head_dim, sequence):
        source += 1
    return sizes.limit_dims(Dims(batch, sequence, heads, head_dim, source))


def _draw_compile(pen: Pen, profile: Profile, layer: Part | None) -> Compile:
    """Settings other than the compiler's own are drawn only among near misses."""
    grad = pen.draw_weighted(_GRADS)
    again = pen.chance(12, "second_call")
    # At other sizes most of the time.
    calls = tuple(
        FurtherCall(
            pen.draw_weighted(_BATCHES), pen.draw_weighted(_SEQUENCES), pen.draw_weighted(_INPUTS), pen.chance(10)
        )
        for _ in range(pen.draw_weighted([(1, 60), (2, 25), (3, 15)]))
    )
    dynamic = pen.draw_weighted([(None, 40), (True, 50), (False, 10)])
    fullgraph = pen.chance(3)
    autocast = pen.chance(5, "autocast")
    repertoire = _choose_repertoire(profile)
    toggles = _draw_toggles(pen, repertoire, layer)
    mode = pen.draw_named([(None, 240), *repertoire.modes])
    odd = profile.near_misses
    mark = pen.draw_named(_MARKS)
    captured = pen.chance(50)
    path = pen.draw_weighted([(COMPILE, 930), (EXPORT, 30), (AOTI, 20), (CACHED, 20)])
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


def _draw_toggles(pen: Pen, repertoire: Repertoire, layer: Part | None) -> tuple[str, ...]:
    """No setting, one or two; more often, and among those that act on it, for a layer that stirs rare passes."""
    known, count = repertoire.toggles, pen.draw_weighted(repertoire.toggled)
    names = [(toggle.name, toggle.weight) for toggle in known]
    stirred = idiom(layer.name).traits.stirs if layer is not None else ()
    acting = [toggle.name for toggle in known if toggle.acts_on in stirred]
    if acting and pen.chance(75):
        count, names = 1 + pen.number(1), [(name, 1) for name in acting]
    drawn = [pen.draw_named(names) for _ in range(count)]
    return tuple(dict.fromkeys(name for name in drawn if pen.weights.get(name, 100)))


_DRAWN_AS: Mapping[CaseKind, Callable[[Pen, Profile], CaseSpec]] = {
    "block": _draw_parts,
    "plain": _draw_plain,
    "stateful": _draw_stateful,
    "aliased_program": _draw_aliased,
    "program": _draw_program,
    "distributed": _draw_distributed,
}

# Several times as many as the longest case reads.
_BUFFER_BYTES = 4096


@dataclass(frozen=True)
class GeneratedCase:
    """A spec, its source, and the bytes it was drawn from.

    ``choices`` replay under the same profile and Hypothesis version; they are empty for a case that
    was shrunk, whose spec is all there is.
    """

    spec: CaseSpec
    source: str
    choices: bytes = b""

    @classmethod
    def of(cls, spec: CaseSpec, choices: bytes = b"") -> GeneratedCase:
        """Render a spec."""
        return cls(spec, render(spec), choices)

    @property
    def features(self) -> tuple[str, ...]:
        """The names of the idioms, near misses and choices that made it (see `fuzzcompile.fuzz.generation.profile`)."""
        return self.spec.features

    @cached_property
    def sha256(self) -> str:
        """Identity of the case: the hash of its source."""
        return hash_source(self.source)


def draw_case_at(seed: int, index: int, profile: Profile, kind: CaseKind | None = None) -> GeneratedCase:
    """The ``index``-th case of a campaign, or the first of its kind: the same for the same arguments on any machine."""
    labels = (f"fuzzcompile {seed} {index} {attempt}" for attempt in count())
    drawn = (_draw_from_bytes(random.Random(label).randbytes(_BUFFER_BYTES), profile, kind) for label in labels)
    return next(filter(None, drawn))


def from_choices(choices: bytes, profile: Profile) -> GeneratedCase:
    """The case that these bytes spell, then the simplest choices; `ValueError` if Hypothesis rejects them."""
    case = _draw_from_bytes(choices + bytes(_BUFFER_BYTES), profile)
    if case is None:
        raise ValueError("Hypothesis rejects these choices")
    return case


def _draw_from_bytes(buffer: bytes, profile: Profile, kind: CaseKind | None = None) -> GeneratedCase | None:
    seen, fuzz = _make_reader(profile, kind)
    seen.clear()
    choices = fuzz(buffer)
    return None if choices is None else GeneratedCase.of(seen[0], choices)


@lru_cache(maxsize=64)
def _make_reader(profile: Profile, kind: CaseKind | None) -> tuple[list[CaseSpec], Callable[[bytes], bytes | None]]:
    seen: list[CaseSpec] = []
    read: Any = given(case_strategy(profile, kind))(
        lambda spec: seen.append(spec)
    )  # ``given`` does not type what it adds
    return seen, settings(database=None, suppress_health_check=list(HealthCheck))(read).hypothesis.fuzz_one_input


def write_cases(folder: Path, seed: int, count: int, profile: Profile, *, start: int = 0) -> list[Path]:
    """Write ``count`` distinct cases into ``folder``, from index ``start`` of the seed on.

    Files are named after seed and index, so that a case can be drawn again, and their docstrings list what is in it.

    Raises:
        UsageError: the folder cannot be written to.
    """
    paths: list[Path] = []
    seen: set[str] = set()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        index = start
        while len(paths) < count:
            case = draw_case_at(seed, index, profile)
            path = folder / f"case_{seed}_{index}.py"
            index += 1
            if case.sha256 not in seen:
                seen.add(case.sha256)
                path.write_text(render(case.spec, described=True), encoding="utf-8")
                paths.append(path)
    except OSError as error:
        raise UsageError(f"Cannot write cases to {folder}: {error.strerror or error}; name another folder.") from error
    return paths
