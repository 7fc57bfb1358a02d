"""A case as plain data: which idioms, with which parameters, at which sizes, compiled how.

A spec is the whole recipe: `fuzzcompile.fuzz.generation.rendering.render` turns it into source without drawing
anything, and every name it reports is read off the data, so that it cannot say one thing and render another.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import accumulate
from typing import Literal, TypeVar

from hypothesis import strategies as st

from fuzzcompile.model.contract import COMPILE
from fuzzcompile.programs.edits.tensor_values import InputLayout

Choice = str | int | float | bool
Choices = Mapping[str, Choice]
Layout = Literal["heads_first", "heads_last", "flat"]
Scale = Literal["literal", "buffer", "parameter", "one_element"]
MaskKind = Literal["bias", "causal", "window", "alibi", "padding", "prefix", "documents"]
MaskShape = Literal["square", "key", "matrix", "heads", "row", "full"]
MaskUse = Literal["add", "fill", "where", "keep"]
Returns = Literal["", "weights", "keys"]
Container = Literal["tuple", "list", "dict", "dataclass"]
Placement = Literal["pre", "post", "sandwich"]

Size = Literal["same", "more", "plus_five", "many", "one", "none", "batch", "sequence", "heads", "head_dim"]
Mark = Literal["maybe_mark_dynamic", "mark_dynamic", "mark_unbacked"]

_SCHEMA = 4
WRAPPED, PLANNED, COLLECTIVES, SHARDED = "wrapped_module", "planned_module", "collectives", "sharded_tensors"
"""What a distributed program is: its first name."""


@dataclass(frozen=True)
class Dims:
    """Sizes: ``batch`` × ``sequence`` × (``heads`` · ``head_dim``); ``source`` keys in a cross attention."""

    batch: int
    sequence: int
    heads: int
    head_dim: int
    source: int = 0

    @property
    def keys(self) -> int:
        """Keys that each query sees."""
        return self.source or self.sequence

    @property
    def width(self) -> int:
        """Features of a token."""
        return self.heads * self.head_dim

    @property
    def shared_heads(self) -> int:
        """Heads of key and value where several query heads share one: half as many, or one."""
        return self.heads // 2 if self.heads % 2 == 0 else 1


@dataclass(frozen=True)
class Part:
    """A registered idiom or operator and the choices made within it, by name; in templates ``part.choice``."""

    name: str
    choices: tuple[tuple[str, Choice], ...] = ()

    def __getitem__(self, choice: str) -> Choice:
        return dict(self.choices)[choice]

    def with_choices(self, **choices: Choice) -> Part:
        """The same part with some choices made otherwise."""
        return Part(self.name, tuple({**dict(self.choices), **choices}.items()))


@dataclass(frozen=True)
class ProgramArgument:
    """An input or parameter of a program beside x: its name, sizes, dtype, and whether it is a parameter.

    A size is a number, or ``B``, ``T`` or ``C`` for one of the activation's. An input holds ``values`` in turn, random
    numbers where there are none.
    """

    name: str
    shape: tuple[str | int, ...]
    dtype: str
    parameter: bool = False
    values: tuple[float | str, ...] = ()
    layout: InputLayout = "contiguous"


@dataclass(frozen=True)
class OperatorProgram:
    """Statements of Python over values with names, and the productions that wrote them.

    One over an activation makes it anew and has no ``outputs``; one that stands in the place of a model returns them.
    """

    statements: tuple[str, ...]
    operators: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    arguments: tuple[ProgramArgument, ...] = ()


@dataclass(frozen=True)
class ClassText:
    """Lines of a class: of its ``__init__``, of its body, its methods, and of its forward pass."""

    init: tuple[str, ...] = ()
    body: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    forward: tuple[str, ...] = ()


@dataclass(frozen=True)
class StatefulProgram:
    """Python state around an operator program, and what changes it between calls.

    ``names`` are the rows that it is made of. ``module`` are definitions of the file, ``fields`` those of its dataclass
    ``Config``, ``prepare`` lines after the classes. ``reset`` and ``globals`` are what ``make`` sets back, ``run`` the
    statements of ``run``. The forward pass ``returns`` its outputs in a container. ``assumed`` are entries of dynamo's
    config that are switched off. A ``plain`` one is a function. One that ``draws`` has random numbers.
    """

    names: tuple[str, ...]
    model: ClassText
    layer: ClassText
    run: tuple[str, ...]
    module: tuple[tuple[str, ...], ...] = ()
    fields: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    globals: tuple[str, ...] = ()
    returns: Container = "tuple"
    assumed: tuple[str, ...] = ()
    plain: bool = False
    draws: bool = False


@dataclass(frozen=True)
class AliasedProgram:
    """A program over tensors that share memory.

    ``names`` are the rows that it is made of, ``base`` the expression of the tensor whose views the ``inputs`` are;
    with ``held``, a module has it as a buffer. ``run`` are the statements that call it, none for one plain call. If it
    is ``differentiated``, that tensor is computed of one that requires gradients, and ``run`` makes its views.
    """

    names: tuple[str, ...]
    base: str
    inputs: tuple[str, ...]
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    run: tuple[str, ...] = ()
    held: bool = False
    differentiated: bool = False


@dataclass(frozen=True)
class DistributedProgram:
    """A program that ``nproc`` processes run together.

    ``names`` are the rows that it is made of, ``imports`` the lines that it needs beside torch's. ``made`` are lines of
    ``make`` behind the group and a ``mesh`` of these sizes: they wrap ``model``, or define the function ``nested`` that
    is the program. Without ``classes`` the model is that of the rest of the case, and with none of its own ``inputs``
    these are too. Inputs are other ones in each process, or only along the dimensions of the mesh that are ``apart``.
    With a ``rank``, one process alone runs it as that one of them, and the others are imitated.
    """

    names: tuple[str, ...]
    nproc: int
    imports: tuple[str, ...]
    made: tuple[str, ...]
    mesh: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    nested: str | None = None
    apart: tuple[str, ...] | None = None
    rank: int | None = None

    @property
    def arguments(self) -> str:
        """The names of its own inputs, a letter each."""
        return ("xw" if COLLECTIVES in self.names else "x" if self.classes else "abcdefgh")[: len(self.inputs)]

    @property
    def breaks_graphs(self) -> bool:
        """True if hooks of its wrappers, or collectives in place, are more than dynamo captures in one graph."""
        made = "".join(self.made)
        return any(text in made for text in ("DistributedDataParallel(", "fully_shard(", "group="))

    @property
    def wraps(self) -> bool:
        """True if it wraps the model that the rest of the case describes."""
        return not self.classes and self.nested is None


@dataclass(frozen=True)
class Mask:
    """A mask over the scores.

    ``dtype`` is ``model`` for the dtype of the scores, else a torch name. A boolean mask is true where a key is
    hidden, except in ``F.scaled_dot_product_attention`` and where its use is ``keep``. With ``inside`` the module
    makes its mask itself. ``blocked`` hides every key from the first query.
    """

    kind: MaskKind = "bias"
    shape: MaskShape = "square"
    dtype: str = "model"
    use: MaskUse = "add"
    inside: bool = False
    blocked: bool = False

    @property
    def hides(self) -> bool:
        """True if some keys are hidden entirely."""
        return self.kind not in ("bias", "alibi") or self.dtype == "bool"


@dataclass(frozen=True)
class Attention:
    """One attention; the defaults are the plainest one.

    ``layout`` says how query, key and value arrive: (B, H, T, D), (B, T, H, D) to be permuted, or
    (B, T, C) without heads. Without a ``projection`` they are inputs of the module (or, within a
    block, the block's activation itself). ``position``, ``norm``, ``grouping`` name idioms that act on query and
    key. ``leading`` inputs have one more dimension in front, of size 2; ``form`` holds choices that only this idiom
    has.
    """

    idiom: str
    projection: str | None = None
    layout: Layout = "heads_first"
    mask: Mask | None = None
    is_causal: bool = False
    scale: Scale = "literal"
    key_permuted: bool = False
    softmax_axis: int = -1
    dropout: float | None = None
    expanded: bool = False
    returns: Returns = ""
    cross: bool = False
    position: str | None = None
    norm: str | None = None
    grouping: str | None = None
    softcap: bool = False
    sink: bool = False
    leading: bool = False
    form: tuple[tuple[str, Choice], ...] = ()

    @property
    def chosen(self) -> Choices:
        """The choices that only this idiom has."""
        return dict(self.form)


@dataclass(frozen=True)
class Block:
    """The residual block around the attention, ``layers`` times: of the same weights if ``tied``.

    ``in_place`` branches are added to the stream where it lies.
    """

    layers: int = 1
    norm: str | None = None
    placement: Placement = "pre"
    feed_forward: Part | None = None
    residual: str | None = None
    in_place: bool = False
    tied: bool = False


@dataclass(frozen=True)
class FurtherCall:
    """A further call: its sizes, named by how they relate to those of the first call, and its inputs' memory.

    Guards and symbolic sizes go wrong at boundaries: at one and at nothing, where a size equals another one, and past
    a size that was compiled for. With ``grad`` floating inputs require a gradient, whether or not one is asked for.
    """

    batch: Size = "same"
    sequence: Size = "more"
    inputs: InputLayout = "contiguous"
    grad: bool = False

    def dims(self, first: Dims) -> Dims:
        """The sizes of the call, given those of the first."""
        named = {"one": 1, "none": 0, "heads": first.heads, "head_dim": first.head_dim}
        named |= {"batch": first.batch, "sequence": first.sequence}
        batch, sequence = (
            {"same": own, "more": own + 1, "plus_five": own + 5, "many": 8 * own + 1, **named}[size]
            for size, own in ((self.batch, first.batch), (self.sequence, first.sequence))
        )
        return Dims(batch, sequence, first.heads, first.head_dim, first.source)


@dataclass(frozen=True)
class Compile:
    """Settings of compiling and calling the case, beyond ``torch.compile(model)`` under ``no_grad``.

    ``calls`` follow the first one. ``toggles`` name settings of `fuzzcompile.model.compiler_toggles`. ``mark`` is what
    the program says of its first input's batch before each call. With ``captured`` numbers and sizes that depend on
    values stay in the graph. ``path`` is what runs in the place of the program (`fuzzcompile.model.contract`).
    """

    grad: str | None = None
    dynamic: bool | None = None
    calls: tuple[FurtherCall, ...] = ()
    mode: str | None = None
    fullgraph: bool = False
    autocast: str | None = None
    toggles: tuple[str, ...] = ()
    mark: Mark | None = None
    captured: bool = False
    path: str = COMPILE


@dataclass(frozen=True)
class CaseSpec:
    """A whole case. Equal specs render to equal source.

    A ``layer`` takes the place of the attention, which then has no meaning; a ``program`` that of the whole model, with
    the Python ``state`` around it; ``aliases`` that of everything. What is ``distributed`` wraps the model, or is
    in its place.
    ``programs`` and ``detours`` are statements over the activation, each with its place: ``before`` or ``after`` the
    model's body. ``values`` names the operator that makes the floating inputs, ``inputs`` how they lie in memory;
    ``aliased`` inputs are one tensor.
    """

    attention: Attention
    dims: Dims
    block: Block | None = None
    layer: Part | None = None
    embedding: str | None = None
    head: Part | None = None
    program: OperatorProgram | None = None
    state: StatefulProgram | None = None
    aliases: AliasedProgram | None = None
    distributed: DistributedProgram | None = None
    programs: tuple[tuple[str, OperatorProgram], ...] = ()
    detours: tuple[tuple[str, Part], ...] = ()
    dtype: str = "float32"
    training: bool = False
    backward: bool = False
    values: str | None = None
    inputs: InputLayout = "contiguous"
    aliased: bool = False
    returns_activation: bool = False
    compile: Compile = Compile()
    seed: int = 0

    @property
    def idioms(self) -> tuple[str, ...]:
        """Names of the registered idioms in this case, the attention first."""
        block = self.block or Block()
        a = self.attention
        parts = (a.projection, a.position, a.norm, a.grouping)
        core = (
            ()
            if self.program or self.aliases or self._is_alone
            else (a.idiom, *parts)
            if self.layer is None
            else (self.layer.name,)
        )
        feed_forward, head = (part.name if part else None for part in (block.feed_forward, self.head))
        around = (block.norm, feed_forward, block.residual, self.embedding, head)
        return tuple(name for name in (*core, *around) if name)

    @property
    def _is_alone(self) -> bool:
        return self.distributed is not None and not self.distributed.wraps

    @property
    def operators(self) -> tuple[str, ...]:
        """Names of the productions in its operator programs, each once."""
        programs = [*((self.program,) if self.program else ()), *(program for _, program in self.programs)]
        return tuple(dict.fromkeys(name for program in programs for name in program.operators))

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the rows of its Python state."""
        return self.state.names if self.state is not None else ()

    @property
    def aliasing(self) -> tuple[str, ...]:
        """Names of the rows of its aliased program."""
        return self.aliases.names if self.aliases is not None else ()

    @property
    def distribution(self) -> tuple[str, ...]:
        """Names of the rows of its distributed program."""
        return self.distributed.names if self.distributed is not None else ()

    @property
    def attends(self) -> bool:
        """True if the case has an attention whose parts are drawn, and nothing in its place."""
        return self.layer is None and self.program is None and self.aliases is None and not self._is_alone

    @property
    def key_heads(self) -> int:
        """Heads of key and value."""
        a, d = self.attention, self.dims
        return 1 if a.expanded else d.shared_heads if a.grouping else d.heads

    @property
    def near_misses(self) -> tuple[str, ...]:
        """Names of the near misses that the case has, whether drawn or by coincidence."""
        return tuple(
            miss.name for miss in NEAR_MISSES if self.aliases is None and not self._is_alone and miss.present(self)
        )

    @property
    def plain(self) -> bool:
        """True if the case is one attention over query, key and value, of any batch, and nothing else."""
        inner = (self.layer, self.block, self.embedding, self.head, self.attention.projection)
        around = (*inner, self.aliases, self.distributed)
        plain = all(miss.keeps_plain or not miss.present(self) for miss in NEAR_MISSES)
        return plain and not any((*around, self.program, self.programs))

    @property
    def choices(self) -> tuple[str, ...]:
        """The names of the other choices: dtype, mode of training, and how it is compiled."""
        how, attention = self.compile, self.attention if self.attends else None
        mask = attention and attention.mask
        named = (
            f"dtype_{self.dtype}",
            self.training and "training",
            self.backward and "backward",
            self.block and ("stack" if self.block.layers > 1 else "block"),
            self.plain and "plain",
            self.program and not self.state and "program",
            self.state and "stateful",
            self.aliases and "aliased_program",
            self.distributed and "distributed",
            self.state and self.state.plain and "stateful_function",
            self.programs and "program_beside",
            attention and f"layout_{attention.layout}",
            mask and f"mask_{mask.kind}",
            mask and mask.dtype != "model" and f"mask_of_{mask.dtype}",
            *((attention and [f"form_{name}" for name, chosen in attention.form if chosen]) or ()),
            attention and attention.returns and f"returns_{attention.returns}",
            attention and attention.dropout and "dropout",
            attention and attention.cross and "cross_attention",
            attention and attention.softcap and "softcap",
            attention and attention.sink and "sink",
            how.grad,
            how.dynamic and "dynamic",
            how.calls and "second_call",
            *self._later,
            how.mark,
            how.captured and "captured_values",
            how.path != COMPILE and f"path_{how.path}",
            how.mode and f"mode_{how.mode}",
            how.fullgraph and "fullgraph",
            how.autocast and "autocast",
            *how.toggles,
        )
        return tuple(name for name in named if isinstance(name, str) and name)

    @property
    def _later(self) -> tuple[str, ...]:
        calls = self.compile.calls
        sizes = [call.dims(self.dims) for call in calls]
        named = {
            "same_sizes_again": self.dims in sizes,
            "one_later": any(1 in (dims.batch, dims.sequence) for dims in sizes),
            "empty_later": any(0 in (dims.batch, dims.sequence) for dims in sizes),
            "other_strides_later": any(call.inputs != self.inputs for call in calls),
            "requires_grad_later": any(call.grad and not self.backward for call in calls),
        }
        return tuple(name for name, present in named.items() if present)

    @property
    def features(self) -> tuple[str, ...]:
        """All names that describe the case: idioms, near misses, productions and choices, each once."""
        return tuple(
            dict.fromkeys(
                (
                    *self.idioms,
                    *self.near_misses,
                    *self.operators,
                    *self.states,
                    *self.aliasing,
                    *self.distribution,
                    *self.choices,
                )
            )
        )

    def to_json(self) -> dict[str, object]:
        """Plain data, with the names of idioms and near misses."""
        return {"schema": _SCHEMA, **asdict(self), "idioms": [*self.idioms], "near_misses": [*self.near_misses]}


# Cached here, because a look-up in Hypothesis's own cache costs more than the draw.
_integers = cache(st.integers)
T = TypeVar("T")
# Choices and their weights, the simplest first.
Weights = Sequence[tuple[T, int]]


@dataclass(frozen=True)
class Pen:
    """Draws choices. ``weights`` steer by name: 100 leaves a weight as it was registered, 0 rules a name out."""

    draw: st.DrawFn
    weights: Mapping[str, int]

    def number(self, most: int) -> int:
        """Any of 0 … ``most``, the smallest first."""
        return self.draw(_integers(0, most))

    def chance(self, percent: int, name: str | None = None) -> bool:
        """True in ``percent`` of the draws, steered by ``name``; false is the simpler answer."""
        if name is not None and name in self.weights:
            percent = min(95, percent * self.weights[name] // 100)
        return self.number(99) >= 100 - percent

    def one_of(self, choices: Sequence[T]) -> T:
        """Any of ``choices``, the simplest first."""
        return choices[self.number(len(choices) - 1)]

    def draw_weighted(self, choices: Weights[T]) -> T:
        """Any of the choices, in proportion to the weights."""
        ends = list(accumulate(weight for _, weight in choices))
        return choices[bisect(ends, self.number(ends[-1] - 1))][0]

    def draw_named(self, choices: Weights[T]) -> T:
        """As `draw_weighted`, steered where choices are names; the first is drawn if all are ruled out."""
        known = self.weights
        steered = [(choice, n * (known.get(choice, 100) if isinstance(choice, str) else 100)) for choice, n in choices]
        if not any(weight for _, weight in steered):
            steered[0] = (steered[0][0], 1)
        return self.draw_weighted(steered)


# Near misses by name. They register here, because this module may not import them.

Predicate = Callable[[CaseSpec], bool]
Change = Callable[[Pen, CaseSpec], CaseSpec]


@dataclass(frozen=True, kw_only=True)
class NearMiss:
    """An operator: drawn in ``percent`` of the cases that have all ``requires`` and none of ``excludes``.

    These name traits of a case, so that it applies to idioms that it does not know. ``present`` recognises what it
    leaves in the data. Of a ``family`` one operator is drawn, or a few, and ``percent`` is its weight there. One that
    ``keeps_plain`` leaves a plain attention plain. Where no ``percent`` is given, it is the common one: the premises of
    the SDPA patterns are broken equally often, so that none is drawn for the sake of a bug that is known there.
    """

    name: str
    summary: str
    present: Predicate
    change: Change
    percent: int = 12
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    family: str | None = None
    keeps_plain: bool = False


NEAR_MISSES: list[NearMiss] = []
