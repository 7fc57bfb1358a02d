"""The operators by name, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.registry import form_of
from fuzzcompile.generation.spec import MARKS, STILL_PLAIN, CaseSpec

Predicate = Callable[[CaseSpec], bool]
Change = Callable[[Pen, CaseSpec], CaseSpec]


@dataclass(frozen=True)
class NearMiss:
    """An operator: drawn in ``percent`` of the cases that it ``applies`` to.

    ``present`` recognises what it leaves in the data. Of a ``family`` one operator is drawn, or a few, and ``percent``
    is its weight there. What it needs of an idiom it asks of the idiom's capabilities, so that it applies to idioms
    that it does not know. One that ``keeps_plain`` leaves a plain attention plain.
    """

    name: str
    summary: str
    percent: int
    applies: Predicate
    present: Predicate
    change: Change
    family: str | None = None
    keeps_plain: bool = False


NEAR_MISSES: list[NearMiss] = []

# Percentage of cases in which an operator of the family is drawn, then a further one.
FAMILIES = {"memory": (14,), "values": (12,), "detour": (8,)}


def apply_near_misses(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """Apply randomly chosen operators to the case."""
    for operator in NEAR_MISSES:
        if operator.family is None:
            spec = _applied(pen, operator, spec, pen.chance(operator.percent, operator.name))
    for family, chances in FAMILIES.items():
        members = {operator.name: operator for operator in NEAR_MISSES if operator.family == family}
        for percent in chances if members else ():
            hit = pen.chance(percent)
            name = pen.named([(name, operator.percent) for name, operator in members.items()])
            spec = _applied(pen, members[name], spec, hit)
    return spec


def _applied(pen: Pen, operator: NearMiss, spec: CaseSpec, hit: bool) -> CaseSpec:
    return operator.change(pen, spec) if hit and operator.applies(spec) else spec


def near_miss(
    percent: int,
    *,
    applies: Predicate,
    present: Predicate,
    family: str | None = None,
    keeps_plain: bool = False,
) -> Callable[[Change], Change]:
    """Register the decorated change as an operator under its own name."""

    def decorate(change: Change) -> Change:
        register_near_miss(
            NearMiss(change.__name__, summary_of(change), percent, applies, present, change, family, keeps_plain)
        )
        return change

    return decorate


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


def unregister_near_miss(name: str) -> None:
    """Forget the operator of that name.

    Raises:
        KeyError: there is none.
    """
    del MARKS[name]
    STILL_PLAIN.discard(name)
    NEAR_MISSES[:] = [operator for operator in NEAR_MISSES if operator.name != name]


def summary_of(function: Callable[..., object]) -> str:
    """The first line of a docstring."""
    return (function.__doc__ or "").strip().partition("\n")[0]


def attends(spec: CaseSpec) -> bool:
    """Return whether the case has an attention whose parts are drawn, and no layer in its place."""
    return spec.attends


def has_scores(spec: CaseSpec) -> bool:
    """Return whether the scores are written out, and not within ``F.scaled_dot_product_attention``."""
    return attends(spec) and form_of(spec.attention).has_scores


def has_heads(spec: CaseSpec) -> bool:
    """Return whether query, key and value have an axis for heads."""
    return attends(spec) and spec.attention.layout != "flat"


def takes_qkv(spec: CaseSpec) -> bool:
    """Return whether query, key and value are inputs."""
    return attends(spec) and spec.block is None and spec.attention.projection is None


def with_attention(spec: CaseSpec, **changes: Any) -> CaseSpec:
    """The case with its attention changed."""
    return replace(spec, attention=replace(spec.attention, **changes))


def with_dims(spec: CaseSpec, **changes: int) -> CaseSpec:
    """The case at other sizes."""
    return replace(spec, dims=replace(spec.dims, **changes))
