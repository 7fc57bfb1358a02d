"""Detours by name: a few statements over the activation, before or after the body, to which rewrites apply.

Adding one takes a template and a unit, in this package or outside of it. Each keeps the activation's shape and dtype,
whatever its rank. The template is ``templates/detours/NAME.py.j2``, or the detour's ``source``, with a macro
``apply(x, p, width)``: statements that make ``x`` anew from the choices ``p``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import (
    NearMiss,
    register_near_miss,
    summary_of,
    unregister_near_miss,
)
from fuzzcompile.generation.spec import CaseSpec, Choices, Part
from fuzzcompile.templating import expanded, template

DrawDetour = Callable[[Pen], Choices]


def always(part: Part) -> bool:
    """A gradient flows, whatever was chosen."""
    return True


def never(part: Part) -> bool:
    """No gradient flows, whatever was chosen."""
    return False


@dataclass(frozen=True)
class Detour:
    """One detour: its name, what it is, its weight among the detours, and how its choices are drawn.

    ``has_gradient`` says of a part whether a gradient flows through it, and it overwrites nothing that one needs. A
    detour that ``writes`` to the activation needs elements that do not overlap. One that ``reads_values`` has sizes or
    numbers that depend on them.
    """

    name: str
    summary: str
    weight: int
    draw: DrawDetour
    has_gradient: Callable[[Part], bool] = always
    writes: bool = False
    reads_values: bool = False
    source: str | None = None

    def part(self, pen: Pen) -> Part:
        """The detour with its choices drawn."""
        return Part(self.name, tuple(self.draw(pen).items()))

    def statements(self, x: str, part: Part, width: int) -> str:
        """Statements that make ``x``, whose last axis has ``width`` elements, anew."""
        return expanded(template(f"detours/{self.name}.py.j2", self.source).module, "apply", x, part, width)


_DETOURS: dict[str, Detour] = {}


def detour(
    weight: int,
    *,
    has_gradient: Callable[[Part], bool] = always,
    writes: bool = False,
    reads_values: bool = False,
    source: str | None = None,
) -> Callable[[DrawDetour], DrawDetour]:
    """Register the decorated function, which draws a detour's choices, as a detour under its own name."""

    def decorate(draw: DrawDetour) -> DrawDetour:
        register_detour(
            Detour(draw.__name__, summary_of(draw), weight, draw, has_gradient, writes, reads_values, source)
        )
        return draw

    return decorate


def register_detour(detour: Detour) -> None:
    """Make a detour known, and draw it as a near miss.

    Raises:
        ValueError: a near miss of that name is registered.
    """

    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        place = pen.one_of(("after", "before"))
        return replace(spec, detours=(*spec.detours, (place, detour.part(pen))))

    register_near_miss(
        NearMiss(
            detour.name,
            detour.summary,
            detour.weight,
            applies=lambda spec: True,
            present=lambda spec: any(part.name == detour.name for _, part in spec.detours),
            change=change,
            family="detour",
        )
    )
    _DETOURS[detour.name] = detour


def unregister_detour(name: str) -> None:
    """Forget the detour of that name; recipes that were drawn with it are stale.

    Raises:
        KeyError: there is none.
    """
    unregister_near_miss(name)
    del _DETOURS[name]


def detour_of(part: Part) -> Detour:
    """The detour that a part was drawn from.

    Raises:
        KeyError: it is not registered.
    """
    return _DETOURS[part.name]
