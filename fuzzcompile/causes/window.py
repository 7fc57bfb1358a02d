"""A window on a captured graph: the statements around a culprit's site as a program of their own."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from fuzzcompile.reduction.evaluating import evaluate
from fuzzcompile.reduction.filling import MOST_LITERALS
from fuzzcompile.reduction.names import plain
from fuzzcompile.reduction.program import Input, Program, Ref, Statement

# A graph of at most so many operators is looked at as a whole where no window of it shows the bug.
_SMALL = 30


def windows(programs: Sequence[Program], lines: Collection[int], last: int | None, ordinal: int) -> Iterator[Program]:
    """Parts of the programs that may show a bug, the likeliest first.

    Args:
        programs: captured graphs with recorded inputs.
        lines: the user's lines that the culprit worked on.
        last: the line of its site; None if that is not known.
        ordinal: which of the matches of that line it is, counted from 1.
    """
    parts = [_parts(program, lines, last, ordinal) for program in programs]
    likely = [window for found in parts for window in found[:2]]
    whole = [plain(program) for program in programs if program.size[0] <= _SMALL]
    rest = [window for found in parts for window in found[2:]]
    for program in (*likely, *whole, *rest):
        simple = with_plain_inputs(program)
        yield simple
        if simple != program:
            yield program


def smaller(program: Program) -> Iterator[Program]:
    """The window without a statement at one of its ends, the last ones first."""
    return (part for part in _shorter(program) if part.statements)


def _shorter(program: Program) -> Iterator[Program]:
    outputs = program.output_refs()
    for statement in reversed(program.statements):
        used = statement.refs()
        if statement.name in outputs and len(outputs) == 1 and _is_plain(statement) and len(set(used)) == 1:
            yield replace(program, outputs=Ref(used[0])).without_dead_code()
    values = evaluate(program).values
    given = {input_.name for input_ in program.inputs}
    for statement in program.statements:
        value = values.get(statement.name)
        first = given.issuperset(statement.refs()) and statement.name not in outputs
        if first and _is_plain(statement) and isinstance(value, torch.Tensor):
            yield with_plain_inputs(_cut(program, [s for s in program.statements if s is not statement], values))


def with_plain_inputs(program: Program) -> Program:
    """The program with random numbers in place of recorded ones; short lists of whole numbers are written out."""
    return program.map_inputs(_plain_input)


def _plain_input(input_: Input) -> Input:
    if input_.fill != "recorded" or input_.values is None:
        return input_
    if input_.dtype.is_floating_point or input_.dtype.is_complex:
        return replace(input_, fill="randn", values=None)
    return replace(input_, fill="literal") if 0 < input_.values.numel() <= MOST_LITERALS else input_


def _is_plain(statement: Statement) -> bool:
    return statement.form not in ("enter", "exit", "setitem") and not statement.writes


def _parts(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[Program]:
    """The windows of one program: what ends in the match, in all matches of the lines, in each of the others."""
    ends = _ends(program, lines, last, ordinal)
    if not ends:
        return []
    values = evaluate(program).values
    chosen = [ends[:1], ends, *([end] for end in ends[1:])] if len(ends) > 1 else [ends]
    cut = [_cut(program, _reaching(program, lines, names), values, outputs=names) for names in chosen]
    return [plain(window) for window in cut if window.statements]


def _ends(program: Program, lines: Collection[int], last: int | None, ordinal: int) -> list[str]:
    """Names of the results that windows may end in: those of the culprit's line that no statement of a line uses."""
    at = [s for s in program.statements if s.line == last] or [s for s in program.statements if s.line in lines]
    inner = {name for statement in at for name in statement.refs()}
    found = [statement.name for statement in at if statement.name not in inner and _is_plain(statement)]
    first = found[ordinal - 1 : ordinal] or found[:1]
    return [*first, *(name for name in found if name not in first)]


def _reaching(program: Program, lines: Collection[int], ends: Collection[str]) -> list[Statement]:
    """The statements of the lines through which the results ``ends`` are reached, and contexts around them."""
    made = {statement.name: statement for statement in program.statements}
    wanted, waiting = set[str](), [*ends]
    while waiting:
        statement = made.get(waiting.pop())
        if (
            statement is not None
            and statement.name not in wanted
            and (statement.line in lines or statement.name in ends)
        ):
            wanted.add(statement.name)
            waiting.extend(statement.refs())
    return [s for s in program.statements if s.name in wanted or s.form in ("enter", "exit")]


def _cut(
    program: Program, statements: Sequence[Statement], values: Mapping[str, object], outputs: Sequence[str] = ()
) -> Program:
    """The statements as a program, whose further inputs are the recorded values of what they use."""
    kept = list(statements)
    inputs = {input_.name: input_ for input_ in program.inputs}
    grads = _requiring_grad(program)
    made = {statement.name: statement for statement in program.statements}
    position = {statement.name: place for place, statement in enumerate(program.statements)}
    constants: dict[str, object] = {}
    while True:
        here = {statement.name for statement in kept}
        missing = [name for s in kept for name in s.refs() if name not in here | inputs.keys() | constants.keys()]
        if not missing:
            break
        value = values.get(missing[0])
        if isinstance(value, torch.Tensor):
            recorded = Input.of(missing[0], value)
            inputs[missing[0]] = replace(recorded, requires_grad=missing[0] in grads and value.is_floating_point())
        elif isinstance(value, bool | int | float | complex):
            constants[missing[0]] = value
        else:  # several tensors at once: what makes them belongs to the window
            kept = sorted([*kept, made[missing[0]]], key=lambda statement: position[statement.name])
    results = tuple(Ref(name) for name in outputs)
    tree = program.outputs if not results else results if len(results) > 1 else results[0]
    window = replace(program, inputs=tuple(inputs.values()), statements=tuple(kept), outputs=tree, as_module=False)
    for name, value in constants.items():
        window = window.substituted(name, value)
    return window.without_dead_code()


def _requiring_grad(program: Program) -> set[str]:
    """Names of the values that gradients flow through."""
    if not (program.settings.get("BACKWARD") or program.settings.get("GRAD") == "enabled"):
        return set()
    names = {input_.name for input_ in program.inputs if input_.requires_grad}
    for statement in program.statements:
        if names.intersection(statement.refs()):
            names.add(statement.name)
    return names
