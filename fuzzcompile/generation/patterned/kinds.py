"""The kinds of near misses: what each can do to a program, and how it is done."""

from __future__ import annotations

from fuzzcompile.generation.patterned.edits import Edit
from fuzzcompile.generation.patterned.program import PatternProgram


def edits_of(program: PatternProgram) -> list[Edit]:
    """Every edit that some kind can make to a program; not all of them leave one that runs."""
    return []


def applied(program: PatternProgram, edit: Edit) -> PatternProgram | None:
    """The program with the edit made; None where an earlier edit left nothing for it."""
    return None
