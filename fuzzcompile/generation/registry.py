"""The idioms by name. Adding one takes a template and a unit in `fuzzcompile.generation.idioms`.

The template is ``templates/idioms/NAME.py.j2``. ``n`` are the sizes as source text, ``p`` the part's choices. What
the template has to give depends on the role:

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

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.spec import Attention, Layout, Part

Role = Literal[
    "attention",
    "projection",
    "position",
    "query_norm",
    "grouping",
    "norm",
    "feed_forward",
    "residual",
    "layer",
    "embedding",
    "head",
]
DrawAttention = Callable[[Pen], Attention]
DrawPart = Callable[[Pen], Part]


@dataclass(frozen=True)
class Idiom:
    """One piece of a transformer: its name, what it is, and how often it is drawn among its role.

    An attention of given ``layouts`` is written for these alone; ``plain`` is how often it is drawn where there is
    nothing else, in proportion to the variants of rewrites that look for it. ``fixes`` names the sizes (``batch``,
    ``sequence``) that its parameters or its code are made for, so that a second call cannot have others.
    A ``loose`` idiom is drawn only with near misses, because the installed compiler is known not to take it.
    """

    name: str
    role: Role
    summary: str
    weight: int = 1
    draw_attention: DrawAttention | None = None
    draw_part: DrawPart | None = None
    layouts: tuple[Layout, ...] = ()
    plain: int = 0
    fixes: tuple[str, ...] = ()
    loose: bool = False

    @property
    def template(self) -> str:
        """The template that renders it."""
        return f"idioms/{self.name}.py.j2"

    def part(self, pen: Pen) -> Part:
        """The idiom with its choices drawn."""
        return self.draw_part(pen) if self.draw_part else Part(self.name)


_IDIOMS: dict[str, Idiom] = {}


def register(idiom: Idiom) -> Idiom:
    """Make an idiom known; the first of a role is its simplest."""
    if idiom.name in _IDIOMS:
        raise ValueError(f"two idioms are called {idiom.name}")
    _IDIOMS[idiom.name] = idiom
    return idiom


def attention_idiom(
    weight: int, plain: int, layouts: tuple[Layout, ...] = ()
) -> Callable[[DrawAttention], DrawAttention]:
    """Register the decorated function as an attention idiom under its own name."""

    def decorate(draw: DrawAttention) -> DrawAttention:
        summary = " ".join((draw.__doc__ or "").split())
        register(Idiom(draw.__name__, "attention", summary, weight, draw, layouts=layouts, plain=plain))
        return draw

    return decorate


def part_idiom(role: Role, weight: int, *, fixes: tuple[str, ...] = (), loose: bool = False) -> Callable[..., DrawPart]:
    """Register the decorated function, which draws the choices of a part, as an idiom under its own name."""

    def decorate(draw: DrawPart) -> DrawPart:
        summary = " ".join((draw.__doc__ or "").split())
        register(Idiom(draw.__name__, role, summary, weight, draw_part=draw, fixes=fixes, loose=loose))
        return draw

    return decorate


def idiom(name: str) -> Idiom:
    """The idiom of that name."""
    return _IDIOMS[name]


def idioms(role: Role | None = None) -> tuple[Idiom, ...]:
    """All idioms, or those of one role, the simplest first."""
    return _of_role(role, len(_IDIOMS))


@cache
def _of_role(role: Role | None, registered: int) -> tuple[Idiom, ...]:
    return tuple(idiom for idiom in _IDIOMS.values() if role in (None, idiom.role))
