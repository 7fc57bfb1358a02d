"""The idioms by name. Adding one takes a template and a unit in `fuzzcompile.generation.idioms`.

The template is ``templates/idioms/NAME.py.j2``. What it has to give depends on the role:

* ``attention``: extends ``idioms/attention.py.j2`` and fills its blocks; the unit is a function that
  draws an `Attention`.
* ``projection``: macros ``state(name, d, features)``, statements for ``__init__``, and
  ``apply(name, x)``, an expression.
* ``norm`` and ``feed_forward``: a macro ``new(width)``, an expression for the module, and where it
  needs a class of its own, a macro ``definition(width)`` with that class.
* ``embedding``: macros ``state(d)`` and ``apply(d)``, from token ids to activations.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from fuzzcompile.generation.drawing import Draw
from fuzzcompile.generation.spec import Attention

Role = Literal["attention", "projection", "norm", "feed_forward", "embedding"]
DrawAttention = Callable[[Draw], Attention]


@dataclass(frozen=True)
class Idiom:
    """One piece of a transformer: its name, what it is, and how often it is drawn among its role."""

    name: str
    role: Role
    summary: str
    weight: int = 1
    draw: DrawAttention | None = None

    @property
    def template(self) -> str:
        """The template that renders it."""
        return f"idioms/{self.name}.py.j2"


_IDIOMS: dict[str, Idiom] = {}


def register(idiom: Idiom) -> Idiom:
    """Make an idiom known; the first of a role is its simplest."""
    if idiom.name in _IDIOMS:
        raise ValueError(f"two idioms are called {idiom.name}")
    _IDIOMS[idiom.name] = idiom
    return idiom


def attention_idiom(weight: int) -> Callable[[DrawAttention], DrawAttention]:
    """Register the decorated function as an attention idiom under its own name."""

    def decorate(draw: DrawAttention) -> DrawAttention:
        register(Idiom(draw.__name__, "attention", (draw.__doc__ or "").strip(), weight, draw))
        return draw

    return decorate


def idiom(name: str) -> Idiom:
    """The idiom of that name."""
    return _IDIOMS[name]


def idioms(role: Role | None = None) -> tuple[Idiom, ...]:
    """All idioms, or those of one role, the simplest first."""
    return tuple(idiom for idiom in _IDIOMS.values() if role in (None, idiom.role))
