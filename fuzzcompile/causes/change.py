"""One change to a program, in words."""

from __future__ import annotations

from dataclasses import dataclass

from fuzzcompile.reduction.program import Program, Statement


@dataclass(frozen=True)
class Change:
    """A program one change away from another.

    Attributes:
        program: the changed program.
        kind: ``argument``, ``dtype``, ``layout``, ``sharing``, ``value`` or ``size``.
        fingerprint: what was changed, in words that hang on neither sizes nor names.
        before: what the change replaces, as a user writes it.
        after: what replaces it.
        hides: whether an operator was put between two others, so that it says little if a pattern matches no more.
        statement: the changed statement, where only one was.
    """

    program: Program
    kind: str
    fingerprint: str
    before: str
    after: str
    hides: bool = False
    statement: Statement | None = None
