"""Near misses and detours by name, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fuzzcompile.fuzz.generation.spec import MARKS, STILL_PLAIN, CaseSpec, Choices, Part, Pen
from fuzzcompile.fuzz.idioms.registry import list_traits
from fuzzcompile.model.templates import expand_macro, get_template

Predicate = Callable[[CaseSpec], bool]
Change = Callable[[Pen, CaseSpec], CaseSpec]


@dataclass(frozen=True, kw_only=True)
class NearMiss:
    """An operator: drawn in ``percent`` of the cases that have all ``requires`` and none of ``excludes``.

    These name traits of a case, so that it applies to idioms that it does not know. ``present`` recognises what it
    leaves in the data. Of a ``family`` one operator is drawn, or a few, and ``percent`` is its weight there. One that
    ``keeps_plain`` leaves a plain attention plain.
    """

    name: str
    summary: str
    percent: int
    present: Predicate
    change: Change
    requires: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    family: str | None = None
    keeps_plain: bool = False

    def applies(self, spec: CaseSpec) -> bool:
        """Return whether it can be made of the case."""
        traits = list_traits(spec)
        return traits.issuperset(self.requires) and traits.isdisjoint(self.excludes)


NEAR_MISSES: list[NearMiss] = []

# Percentage of cases in which an operator of the family is drawn.
FAMILIES = {"memory": 14, "values": 12, "detour": 8}


def apply_near_misses(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Apply randomly chosen operators to the case."""
    for operator in NEAR_MISSES:
        if operator.family is None:
            spec = _apply_if_hit(pen, operator, spec, pen.chance(operator.percent, operator.name))
    for family, percent in FAMILIES.items():
        members = {operator.name: operator for operator in NEAR_MISSES if operator.family == family}
        if members:
            hit = pen.chance(percent)
            name = pen.draw_named([(name, operator.percent) for name, operator in members.items()])
            spec = _apply_if_hit(pen, members[name], spec, hit)
    return spec


def _apply_if_hit(pen: Pen, operator: NearMiss, spec: CaseSpec, hit: bool) -> CaseSpec:
    return operator.change(pen, spec) if hit and operator.applies(spec) else spec


def register_near_miss(operator: NearMiss) -> None:
    """Make an operator known.

    Raises:
        ValueError: an operator of that name is registered.
    """
    if operator.name in MARKS:
        raise ValueError(f"two near misses are called {operator.name}")
    NEAR_MISSES.append(operator)
    MARKS[operator.name] = operator.present
    if operator.keeps_plain:
        STILL_PLAIN.add(operator.name)


# A near miss that sets entries of one part of a case.


_PARTS = ("case", "attention", "form", "block", "dims", "layer")
Entries = Mapping[str, Mapping[str, Any]]
"""What a row sets in each part of a case: a value, or a list of which any is drawn."""


def read_near_miss(name: str, row: Mapping[str, Any]) -> NearMiss:
    """The near miss of a row of ``near_misses.toml``, in which ``present`` and ``change`` say what entries cannot."""
    entries = {part: row[part] for part in _PARTS if part in row}
    whole: dict[str, Any] = {"present": _recognise(entries), "change": _set_entries(entries)}
    whole |= {key: tuple(value) if isinstance(value, list) else value for key, value in row.items()}
    return NearMiss(name=name, **{key: value for key, value in whole.items() if key not in entries})


def _get_entries(spec: CaseSpec, part: str) -> Mapping[str, object]:
    """What is set in a part of the case, by name; nothing where it has no such part."""
    if part in ("attention", "form"):
        return {} if not spec.attends else spec.attention.chosen if part == "form" else vars(spec.attention)
    whole = spec if part == "case" else getattr(spec, part)
    return dict(whole.choices) if isinstance(whole, Part) else {} if whole is None else vars(whole)


def _recognise(entries: Entries) -> Predicate:
    def present(spec: CaseSpec) -> bool:
        return all(
            _get_entries(spec, part).get(name) in (value if isinstance(value, list) else [value])
            for part, values in entries.items()
            for name, value in values.items()
        )

    return present


def _set_entries(entries: Entries) -> Change:
    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        for part, values in entries.items():
            drawn = {name: pen.one_of(value) if isinstance(value, list) else value for name, value in values.items()}
            if part == "case":
                spec = replace(spec, **drawn)
            elif part == "form":
                spec = with_entries(spec, "attention", form=(*spec.attention.form, *drawn.items()))
            else:
                spec = with_entries(spec, part, **drawn)
        return spec

    return change


def with_entries(spec: CaseSpec, part: str, **changes: Any) -> CaseSpec:
    """The case with entries of its attention, block, dims or layer changed."""
    whole: Any = getattr(spec, part)
    changed: Any = whole.with_choices(**changes) if isinstance(whole, Part) else replace(whole, **changes)
    return replace(spec, **{part: changed})


# Detours by name: a few statements over the activation, before or after the body, to which rewrites apply.

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

    def render_statements(self, x: str, part: Part, width: int) -> str:
        """Statements that make ``x``, whose last axis has ``width`` elements, anew."""
        return expand_macro(get_template(f"detours/{self.name}.py.j2", self.source).module, "apply", x, part, width)


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
        summary = (draw.__doc__ or "").strip().partition("\n")[0]
        register_detour(Detour(draw.__name__, summary, weight, draw, has_gradient, writes, reads_values, source))
        return draw

    return decorate


def register_detour(detour: Detour) -> None:
    """Make a detour known, and draw it as a near miss.

    Raises:
        ValueError: a near miss of that name is registered.
    """

    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        place = pen.one_of(("after", "before"))
        return replace(spec, detours=(*spec.detours, (place, Part(detour.name, tuple(detour.draw(pen).items())))))

    register_near_miss(
        NearMiss(
            name=detour.name,
            summary=detour.summary,
            percent=detour.weight,
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
    del _DETOURS[name], MARKS[name]
    NEAR_MISSES[:] = [operator for operator in NEAR_MISSES if operator.name != name]


def find_detour(part: Part) -> Detour:
    """The detour that a part was drawn from.

    Raises:
        KeyError: it is not registered.
    """
    return _DETOURS[part.name]
