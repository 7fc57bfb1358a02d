"""The operators by name, and how they are drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.spec import MARKS, CaseSpec

Predicate = Callable[[CaseSpec], bool]
Change = Callable[[Pen, CaseSpec], CaseSpec]


@dataclass(frozen=True)
class NearMiss:
    """An operator: drawn in ``percent`` of the cases that it ``applies`` to.

    Of a ``family`` one operator is drawn, or a few, and ``percent`` is its weight there.
    """

    name: str
    summary: str
    percent: int
    applies: Predicate
    change: Change
    family: str | None = None


NEAR_MISSES: list[NearMiss] = []

# In how many per cent of the cases one operator of the family is drawn, then another one.
FAMILIES = {"memory": (14,), "values": (12,), "detour": (40, 25, 15)}


def apply_near_misses(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """The case after the operators that chance picks."""
    for operator in NEAR_MISSES:
        if operator.family is None:
            spec = _applied(pen, operator, spec, pen.chance(operator.percent, operator.name))
    for family, chances in FAMILIES.items():
        members = {operator.name: operator for operator in NEAR_MISSES if operator.family == family}
        for percent in chances:
            hit = pen.chance(percent)
            name = pen.named([(name, operator.percent) for name, operator in members.items()])
            spec = _applied(pen, members[name], spec, hit)
    return spec


def _applied(pen: Pen, operator: NearMiss, spec: CaseSpec, hit: bool) -> CaseSpec:
    return operator.change(pen, spec) if hit and operator.applies(spec) else spec


def near_miss(
    percent: int, *, applies: Predicate, present: Predicate, family: str | None = None
) -> Callable[[Change], Change]:
    """Register the decorated change as an operator; ``present`` recognises what it leaves in the data."""

    def decorate(change: Change) -> Change:
        name: str = change.__name__
        enter(name, change.__doc__ or "", percent, applies=applies, present=present, change=change, family=family)
        return change

    return decorate


def enter(
    name: str,
    text: str,
    percent: int,
    *,
    applies: Predicate,
    present: Predicate,
    change: Change,
    family: str | None = None,
) -> None:
    """Register an operator; the first line of ``text`` is its summary."""
    summary = text.strip().partition("\n")[0]
    NEAR_MISSES.append(NearMiss(name, summary, percent, applies, change, family))
    MARKS[name] = present


def attends(spec: CaseSpec) -> bool:
    """Whether the case has an attention whose parts are drawn, and no layer in its place."""
    return spec.layer is None


def has_scores(spec: CaseSpec) -> bool:
    """Whether the scores are written out, and not within ``F.scaled_dot_product_attention``."""
    return attends(spec) and spec.attention.idiom not in ("attention_sdpa", "attention_sdpa_math")


def has_heads(spec: CaseSpec) -> bool:
    """Whether query, key and value have heads of their own axis."""
    return attends(spec) and spec.attention.layout != "flat"


def takes_qkv(spec: CaseSpec) -> bool:
    """Whether query, key and value are inputs."""
    return attends(spec) and spec.block is None and spec.attention.projection is None


def with_attention(spec: CaseSpec, **changes: Any) -> CaseSpec:
    """The case with its attention changed."""
    return replace(spec, attention=replace(spec.attention, **changes))


def with_dims(spec: CaseSpec, **changes: int) -> CaseSpec:
    """The case at other sizes."""
    return replace(spec, dims=replace(spec.dims, **changes))
