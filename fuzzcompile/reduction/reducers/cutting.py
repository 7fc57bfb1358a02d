"""Cut a program to the window that shows the bug: outputs, tail, head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from fuzzcompile.reduction.evaluating import Evaluation
from fuzzcompile.reduction.program import Input, Program, Ref, Statement
from fuzzcompile.reduction.search import Search, bisected


def drop_outputs(search: Search) -> None:
    """Return a single value, or as few as show the bug; a tensor that is written to if the bug is in that."""
    outputs = list(dict.fromkeys(search.best.output_refs()))
    if len(outputs) < 2:
        if outputs and search.best.outputs != Ref(outputs[0]):
            search.attempt(replace(search.best, outputs=Ref(outputs[0])))
        written = dict.fromkeys(s.refs()[0] for s in search.best.statements if s.writes and s.refs())
        for name in written:
            if name not in outputs and search.attempt(replace(search.best, outputs=Ref(name))):
                return
        return
    for name in outputs:
        if search.attempt(replace(search.best, outputs=Ref(name))):
            return
    kept = outputs
    for name in outputs:
        fewer = [output for output in kept if output != name]
        if len(fewer) > 1 and search.attempt(replace(search.best, outputs=tuple(Ref(output) for output in fewer))):
            kept = fewer


def cut_tail(search: Search) -> None:
    """Find the shortest beginning that shows the bug, by bisection."""
    base = search.best
    bisected(0, len(base.statements), lambda count: not search.attempt(head(base, count)))


def cut_head(search: Search) -> None:
    """Find the shortest end that shows the bug with the earlier values as inputs, by bisection."""
    base, evaluation = search.best, search.evaluation
    bisected(0, len(base.statements), lambda start: search.attempt(tail(base, start, evaluation)))


def head(program: Program, count: int) -> Program | None:
    """The first ``count`` statements, returning the values that later ones use."""
    kept, rest = program.statements[:count], program.statements[count:]
    made = [statement.name for statement in kept if statement.form not in ("enter", "exit", "setitem")]
    used = {name for statement in rest for name in statement.refs()} | set(program.output_refs())
    outputs = [Ref(name) for name in made if name in used]
    if not outputs:
        return None
    closing = tuple(Statement(f"{s.name}_end", "exit", "") for s in _open(kept))
    returned: object = outputs[0] if len(outputs) == 1 else tuple(outputs)
    return replace(program, statements=kept + closing, outputs=returned).without_dead_code()


def tail(program: Program, start: int, evaluation: Evaluation) -> Program | None:
    """The statements from ``start`` on, with earlier values as inputs; None if one cannot be an input."""
    gone, kept = program.statements[:start], program.statements[start:]
    result = replace(program, statements=(*_open(gone), *kept))
    for statement in gone:
        if statement.form in ("enter", "exit", "setitem"):
            continue
        made = given(result, statement.name, evaluation.values.get(statement.name))
        if made is None:
            return None
        result = made
    return result.without_dead_code()


def given(program: Program, name: str, value: object) -> Program | None:
    """The program with ``value`` in place of statement ``name``: a recorded input or a constant; None if neither."""
    statements = tuple(s for s in program.statements if s.name != name)
    used = any(name in s.refs() for s in statements) or name in program.output_refs()
    if not used:
        return replace(program, statements=statements)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        made = Input.of(name, value)
        return replace(program, statements=statements, inputs=(*program.inputs, made))
    if isinstance(value, bool | int | float):
        return program.substituted(name, value)
    if isinstance(value, tuple | list) and all(isinstance(part, torch.Tensor) for part in value):
        return _given_parts(replace(program, statements=statements), name, value)
    return None


def _given_parts(program: Program, name: str, parts: Sequence[torch.Tensor]) -> Program | None:
    """Replace a statement with several results (``chunk``): each result that is used becomes an input."""
    for statement in program.statements:
        if statement.form == "getitem" and statement.args[0] == Ref(name) and isinstance(statement.args[1], int):
            taken = given(program, statement.name, parts[statement.args[1]])
            if taken is None:
                return None
            program = taken
    return None if any(name in s.refs() for s in program.statements) else program


def _open(statements: Sequence[Statement]) -> list[Statement]:
    """The ``enter`` statements of blocks that these statements leave open."""
    blocks: list[Statement] = []
    for statement in statements:
        if statement.form == "enter":
            blocks.append(statement)
        elif statement.form == "exit":
            blocks.pop()
    return blocks
