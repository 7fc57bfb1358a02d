"""The idioms by name: adding one takes a template and a unit, in this package or outside of it.

The unit, a row of ``parts.toml`` (outside of this package, a function that draws an attention), says how often the
idiom is drawn, its choices, and what it can do: near misses, settings and choices that give way to each other ask for
these capabilities, never for a name.

The template is ``templates/idioms/NAME.py.j2``, or the idiom's ``source``. ``n`` are the sizes as source text, ``p``
the part's choices. What the template has to give depends on the role:

* ``attention``: extends ``idioms/attention.py.j2`` and fills its blocks; the unit is a function that
  draws an `Attention`.
* ``projection``: macros ``state(name, d, features)``, statements for ``__init__``, and ``apply(name, x)``, an
  expression; or, for one that makes query, key and value at once, ``fused_state(d, shared)`` and
  ``fused(x, d, shared)``.
* ``position`` and ``query_norm``: macro ``apply(name)``, an expression over (…, T, D), and where needed ``state(d)``.
* ``grouping``: macro ``apply(name, d)``, an expression that brings (B, G, S, D) to all heads.
* ``norm``, ``feed_forward`` and ``layer``: a macro ``new(d, p)``, an expression for the module, and where it
  needs a class of its own, a macro ``definition(d, n, p)`` with that class. A layer is a module from (B, T, C) to
  (B, T, C) that stands in the place of the attention.
* ``residual``: macro ``apply(branch, name)``, an expression over x, and where needed ``state(name, d)``.
* ``embedding``: macros ``state(d)`` and ``apply(d, n)``, from token ids to activations.
* ``head``: macros ``state(d, p, tied)`` and ``apply(p, tied)``, statements that end in a return.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import msgspec
from jinja2 import Template

from fuzzcompile.fuzz.generation.spec import Attention, CaseSpec, Choice, Choices, Dims, Layout, Part, Pen
from fuzzcompile.model.compiler_toggles import Stirred
from fuzzcompile.model.package_files import get_template

Role = Literal[
    "attention", "projection", "position", "query_norm", "grouping", "norm", "feed_forward", "residual", "layer",
    "embedding", "head",
]  # fmt: skip
DrawAttention = Callable[[Pen], Attention]
ChoiceTable = Mapping[str, Sequence[Choice] | int]


@dataclass(frozen=True, kw_only=True)
class AttentionTraits:
    """Capabilities of an attention idiom; the defaults hold where it fills no block of the frame but ``scores``."""

    layouts: tuple[Layout, ...] = ()  # the layouts that it is written for; all if none are given
    # How often it is drawn where there is nothing else, in proportion to the variants of rewrites for it.
    plain: int = 0
    # Scores and weights are tensors of the program, not within ``F.scaled_dot_product_attention``.
    has_scores: bool = True
    # Its ``scale`` multiplies or divides the scores, or multiplies query and key each.
    scale: Literal["factor", "divisor", "of_each"] = "divisor"
    # What may stand for ``scale``: the usual number only, any number, or a tensor.
    scale_takes: Literal["usual", "number", "tensor"] = "usual"
    softcap: bool = True  # the frame may cap the scores
    sink: bool = True  # the frame may add a sink to the scores
    softmax_axis: bool = True  # the softmax may run over another axis
    key_permuted: bool = True  # its scores are the frame's ``product``, so that the key may come as (B, H, D, T)
    shared_heads: bool = True  # query heads may share heads of key and value
    leading: bool = False  # query, key and value may have a dimension more
    empty: bool = True  # it runs on no samples and on no tokens
    hides_keys: bool = False  # it takes keys out itself, as a mask does
    own_mask: bool = False  # its mask has one form; dtype and rank stay
    # The dtypes of additive masks that it draws itself; with another one it is a near miss.
    mask_dtypes: tuple[str, ...] = ("model",)
    widens_plain_mask: bool = False  # its mask is drawn wider than the scores at times where there is nothing else
    # Names and expressions of what it takes beside query, key, value and mask.
    inputs: Callable[[Attention, Dims], Mapping[str, str]] = lambda attention, dims: {}


@dataclass(frozen=True, kw_only=True)
class GivingWay:
    """A choice of a part that ``becomes`` another one ``under`` a gradient, unless it is ``unless``."""

    under: Literal["backward", "grad_mode"]
    choice: str
    becomes: Choice
    unless: Choice | None = None


@dataclass(frozen=True, kw_only=True)
class PartTraits:
    """Requirements and capabilities of an idiom of another role."""

    # The sizes that its parameters or its code are made for, so that a second call cannot have others.
    fixes: tuple[Literal["batch", "sequence"], ...] = ()
    fit: tuple[GivingWay, ...] = ()  # choices that give way to a gradient
    autocast: bool = True  # it runs under autocast: it writes into no buffer whose dtype autocast does not know
    graph_break: bool = False  # Dynamo cannot trace it as one graph
    recalled: bool = False  # it keeps Python state from call to call, so that calls of the same sizes differ
    own_strides: bool = False  # compiled on its own, its output has other strides than in eager mode
    # What it has that few passes look for; settings that act on this are drawn more often with it.
    stirs: tuple[Stirred, ...] = ()
    uneven: bool = False  # it has a choice ``uneven``, under which its equal operators differ
    # The choices under which a head compares with tokens that are given; None if it never does.
    targets: Mapping[str, Choice] | None = None
    sdpa_argument: str = ""  # the argument by which ``F.scaled_dot_product_attention`` does a grouping's work


@dataclass(frozen=True)
class Idiom:
    """One piece of a transformer: its name, what it is, how often it is drawn among its role, and what it allows."""

    name: str
    role: Role
    summary: str
    weight: int = 1
    drawn: DrawAttention | None = None
    choices: ChoiceTable = field(default_factory=dict)
    attention: AttentionTraits = AttentionTraits()
    traits: PartTraits = PartTraits()
    source: str | None = None

    def draw_choices(self, pen: Pen) -> Part:
        """The idiom with its choices drawn."""
        return Part(self.name, tuple(draw_choices(pen, self.choices).items()))

    def draw_attention(self, pen: Pen) -> Attention:
        """An attention of this idiom, with its choices drawn."""
        return self.drawn(pen) if self.drawn else Attention(self.name, form=self.draw_choices(pen).choices)

    def load(self) -> Template:
        """The template that renders it."""
        return get_template(f"idioms/{self.name}.py.j2", self.source)


def draw_choices(pen: Pen, choices: ChoiceTable) -> Choices:
    """Any of a list; true or, for a negative percentage, false in that percentage of draws; or a fixed truth value."""

    def draw(value: Sequence[Choice] | int) -> Choice:
        if isinstance(value, bool):
            return value
        if isinstance(value, int):
            return pen.chance(value) if value > 0 else not pen.chance(-value)
        return pen.one_of(value)

    return {name: draw(value) for name, value in choices.items()}


def read_idiom(name: str, row: dict[str, Any]) -> Idiom:
    """The idiom of a row of ``parts.toml``."""
    own = {key: row.pop(key) for key in ("role", "summary", "weight", "choices") if key in row}
    if own["role"] == "attention":
        traits: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
        return Idiom(name, attention=AttentionTraits(**traits), **own)
    return Idiom(name, traits=msgspec.convert(row, PartTraits), **own)


_IDIOMS: dict[str, Idiom] = {}


def register(idiom: Idiom) -> Idiom:
    """Make an idiom known; the first of a role is its simplest."""
    if idiom.name in _IDIOMS:
        raise ValueError(f"two idioms are called {idiom.name}")
    _IDIOMS[idiom.name] = idiom
    idioms.cache_clear()
    return idiom


def attention_idiom(
    weight: int, traits: AttentionTraits, source: str | None = None
) -> Callable[[DrawAttention], DrawAttention]:
    """Register the decorated function as an attention idiom under its own name."""

    def decorate(draw: DrawAttention) -> DrawAttention:
        summary = " ".join((draw.__doc__ or "").split())
        register(Idiom(draw.__name__, "attention", summary, weight, draw, attention=traits, source=source))
        return draw

    return decorate


def idiom(name: str) -> Idiom:
    """The idiom of that name."""
    return _IDIOMS[name]


@cache
def idioms(role: Role | None = None) -> tuple[Idiom, ...]:
    """All idioms, or those of one role, the simplest first."""
    return tuple(idiom for idiom in _IDIOMS.values() if role in (None, idiom.role))


def find_attention_traits(attention: Attention) -> AttentionTraits:
    """Return the capabilities of an attention's idiom."""
    return idiom(attention.idiom).attention


def list_traits(spec: CaseSpec) -> set[str]:
    """The names of what a case has and its idioms allow, by which near misses apply to it or not."""
    a, block, attends = spec.attention, spec.block, spec.attends
    traits, mask = find_attention_traits(a), a.mask if spec.attends else None
    named = {
        "attends": attends,
        "heads": attends and a.layout != "flat",
        "heads first": a.layout == "heads_first",
        "several heads": spec.dims.heads > 1,
        "qkv": attends and block is None and a.projection is None,
        "one source": block is not None and a.projection is None,
        "scores": attends and traits.has_scores,
        "softmax": traits.softmax_axis,
        "softmax over keys": a.softmax_axis == -1,
        "hidden keys": traits.hides_keys or (a.mask is not None and a.mask.hides),
        "permutable key": traits.key_permuted,
        "permuted key": a.key_permuted,
        "shared heads": traits.shared_heads,
        "leading dimension": traits.leading,
        "tensor scale": traits.scale_takes == "tensor",
        "any scale": traits.scale_takes != "usual",
        "own mask": traits.own_mask,
        "mask": mask,
        "added mask": mask and mask.use == "add",
        "mask of pairs": mask and mask.shape not in ("key", "row") and mask.dtype != "int64",
        "returns": a.returns,
        "returned keys": a.returns == "keys",
        "norm first": block and block.placement == "pre",
        "residual": block and block.residual,
        "stack": block and block.layers > 1,
        "uneven parts": spec.layer and idiom(spec.layer.name).traits.uneven,
        **{name: getattr(a, name) for name in ("position", "norm", "grouping", "cross", "sink", "expanded", "leading")},
        **{name: getattr(spec, name) for name in ("block", "head", "program", "embedding", "training")},
    }
    return {name for name, present in named.items() if present}
