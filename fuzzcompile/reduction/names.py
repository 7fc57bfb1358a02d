"""Short names for inputs and statements, none of which shadows another."""

from __future__ import annotations

import builtins
import keyword
import re

from fuzzcompile.reduction.program import Program

# Names that a variable of a case file may not have.
TAKEN = {*dir(builtins), *keyword.kwlist, "torch", "nn", "F", "make", "program", "Model", "self", "run"}
# Names that the compiler gives to parts and arguments, which say nothing.
_MEANINGLESS = ("getitem", "arg", "chunk", "split", "unbind", "primals", "tangents")


def _plain_names(program: Program) -> dict[str, str]:
    """Short names: inputs by dynamo's last words, statements as the user called them, without needless numbers."""
    names: dict[str, str] = {}
    taken = set(TAKEN)
    inputs = [input_.name for input_ in program.inputs]
    free = (letter for letter in "xyzwuv" if letter not in inputs)
    for name in (*inputs, *(s.name for s in program.statements)):
        base = name.rstrip("0123456789_") or name  # all of it, or a second renaming would find another name
        if name in inputs and base in _MEANINGLESS:
            base = next((letter for letter in free if letter not in taken), base)
        wanted = base if base not in taken else name
        number = 1
        while wanted in taken:
            number += 1
            wanted = f"{base}_{number}"
        taken.add(wanted)
        names[name] = wanted
    return names


def plain(program: Program) -> Program:
    """The program with short names."""
    return program.renamed(_plain_names(program))


def input_name(target: str) -> str:
    """A plain name for one of dynamo's inputs: ``L_x_`` becomes ``x``, a parameter its last two words."""
    text = re.sub(r"^[LG]_+", "", target, flags=re.IGNORECASE).strip("_")
    words = [w for w in re.split(r"_modules_|_parameters_|_buffers_|_{2,}", text) if w and w not in ("self", "s")]
    return "_".join(words[-2:]) if "_parameters_" in target or "_buffers_" in target else text or "x"
