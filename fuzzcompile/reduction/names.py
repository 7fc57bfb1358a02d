"""Names as they are written: short, and none that hides another."""

from __future__ import annotations

import builtins
import keyword

from fuzzcompile.reduction.program import Program

# Names that a variable of a case file may not have.
TAKEN = {*dir(builtins), *keyword.kwlist, "torch", "nn", "F", "make", "program", "Model", "self", "run"}


def _plain_names(program: Program) -> dict[str, str]:
    """Short names: inputs by dynamo's last words, statements as the user called them, without needless numbers."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for name in (*(one.name for one in program.inputs), *(s.name for s in program.statements)):
        base = name.rstrip("0123456789").rstrip("_") or name
        wanted = base if base not in taken and not _is_reserved(base) else name
        number = 1
        while wanted in taken or _is_reserved(wanted):
            number += 1
            wanted = f"{base}_{number}"
        taken.add(wanted)
        names[name] = wanted
    return names


def _is_reserved(name: str) -> bool:
    return name in TAKEN


def plain(program: Program) -> Program:
    """The program with names as they are written."""
    return program.renamed(_plain_names(program))
