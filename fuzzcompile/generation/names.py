"""Every name by which the generator can be steered, with the weight that it is registered with."""

from __future__ import annotations

from dataclasses import dataclass

from fuzzcompile.generation.idioms import idioms
from fuzzcompile.generation.near_misses import NEAR_MISSES
from fuzzcompile.generation.programs import PRODUCTIONS
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES


@dataclass(frozen=True)
class Name:
    """An idiom, near miss, production or toggle that a campaign can draw more or less often."""

    name: str
    kind: str
    weight: int
    summary: str


def names(*, gpu: bool = False) -> tuple[Name, ...]:
    """All idioms (``kind`` is the role), near misses, productions, toggles, once each; with ``gpu`` those for one."""
    toggles = (*TOGGLES, *FOR_GPU) if gpu else TOGGLES
    return (
        *(Name(idiom.name, idiom.role, idiom.weight, idiom.summary) for idiom in idioms()),
        *(Name(miss.name, "near_miss", miss.percent, miss.summary) for miss in NEAR_MISSES),
        *(Name(made.name, "production", made.weight, made.summary) for made in PRODUCTIONS.values()),
        *(Name(toggle.name, "toggle", toggle.weight, toggle.summary) for toggle in toggles),
    )


def registered(*, gpu: bool = False) -> tuple[tuple[str, str, int], ...]:
    """Name, kind and weight of everything registered, in order: the meaning of choices depends on them."""
    return tuple((name.name, name.kind, name.weight) for name in names(gpu=gpu))
