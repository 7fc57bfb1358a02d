"""Near misses of a pattern program, drawn at random."""

from __future__ import annotations

import random
from dataclasses import dataclass

from fuzzcompile.generation.patterned.kinds import applied
from fuzzcompile.generation.patterned.program import PatternProgram
from fuzzcompile.generation.patterned.rendering import render

_MOST_EDITS = 3
# Of the cases of a program, the share that is the program itself: its own numbers, at other values.
_UNCHANGED = 0.1


@dataclass(frozen=True)
class PatternCase:
    """A case file drawn of a program, and the names of the near misses in it (none: the program itself)."""

    source: str
    operators: tuple[str, ...]


def draw(program: PatternProgram, rng: random.Random) -> PatternCase:
    """Draw a near miss of a program: up to three edits of different kinds; equal states of ``rng`` give equal cases.

    Each edit alone leaves a program that runs in eager mode; several together may not.
    """
    wanted = 0 if rng.random() < _UNCHANGED else rng.choice(range(1, _MOST_EDITS + 1))
    kinds = sorted({edit.name for edit in program.edits})
    edited = program
    for kind in rng.sample(kinds, min(wanted, len(kinds))):
        edit = rng.choice([edit for edit in program.edits if edit.name == kind])
        edited = applied(edited, edit) or edited
    return PatternCase(render(edited), edited.edited)
