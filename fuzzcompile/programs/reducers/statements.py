"""Delta debugging over a program's statements, their arguments, its outputs and its settings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from fuzzcompile.programs.edits.changes import cast_floating, lay_out_freshly
from fuzzcompile.programs.ir.case_source import is_contiguous
from fuzzcompile.programs.ir.evaluation import Evaluation
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.shrink.search import ProgramSearch, bisect_last

# Reduce arguments: leave out optional ones, round constants, make dtypes and modes plain.


def drop_arguments(search: ProgramSearch) -> None:
    """Leave out keyword arguments, trailing arguments and optional tensors (a bias, a mask)."""

    def drop(statement: Statement) -> Statement:
        if statement.form not in ("function", "method"):
            return statement
        # Those that change the result stay: a dimension, a dtype.
        telling = {k: v for k, v in statement.kwargs.items() if v is not None and not isinstance(v, bool)}
        return replace(statement, kwargs=telling)

    search.attempt(search.best.map_statements(drop))
    for name in [s.name for s in search.best.statements]:
        any(search.attempt(search.best.with_statement(shorter)) for shorter in _list_shorter(search.best, name))


def _list_shorter(program: Program, name: str) -> Iterator[Statement]:
    """The statement with fewer arguments, the fewest first; many of these do not run in eager."""
    statement = next((s for s in program.statements if s.name == name), None)
    if statement is None or statement.form not in ("function", "method"):
        return
    if len(statement.kwargs) > 1:
        yield replace(statement, kwargs={})
    for key in statement.kwargs:
        yield replace(statement, kwargs=_drop_entry(statement.kwargs, key))
    args = statement.args
    if len(args) > 1 and _is_optional(args[-1]):
        for count in range(1, len(args)):
            if any(map(_is_optional, args[count:])):
                yield replace(statement, args=args[:count])


def _is_optional(argument: object) -> bool:
    return argument is None or isinstance(argument, Ref | bool | float)


def round_constants(search: ProgramSearch) -> None:
    """Round floating constants: all together, then one by one."""
    for rounding in (_round_to_half, _round_to_two_digits):
        candidate = search.best.map_statements(functools.partial(_round, change=rounding))
        if candidate != search.best and search.attempt(candidate):
            return
    for statement in search.best.statements:
        search.attempt(search.best.with_statement(_round(statement, _round_to_two_digits)))


def _round(statement: Statement, change: Callable[[float], float]) -> Statement:
    return statement.map_leaves(lambda leaf: change(leaf) if isinstance(leaf, float) else leaf)


def _round_to_two_digits(value: float) -> float:
    return value if value != value else float(f"{value:.2g}")


def _round_to_half(value: float) -> float:
    if value != value or _round_to_two_digits(value) == value:
        return value
    plain = 0.5 if abs(value) < 1 else 2.0
    return -plain if value < 0 else plain


def evaluation_mode(search: ProgramSearch) -> None:
    """Turn ``training`` and dropout off."""

    def plain(statement: Statement) -> Statement:
        kwargs = {k: (False if k == "training" else v) for k, v in statement.kwargs.items()}
        args = statement.args
        if statement.target.endswith("dropout") and len(args) > 2:
            args = (*args[:2], False, *args[3:])
        elif statement.target.endswith("dropout"):
            kwargs["training"] = False
        return replace(statement, args=args, kwargs=kwargs)

    search.attempt(search.best.map_statements(plain))


def single_precision(search: ProgramSearch) -> None:
    """Replace every floating dtype by float32, in inputs and in statements."""
    search.attempt(cast_floating(search.best, torch.float32))


# Cut a program to the window that shows the bug: outputs, tail, head.


def drop_outputs(search: ProgramSearch) -> None:
    """Return a single value, or as few as show the bug; a tensor that is written to if the bug is in that."""

    def attempt(names: Sequence[str]) -> bool:
        outputs = Ref(names[0]) if len(names) == 1 else tuple(map(Ref, names))
        return search.attempt(replace(search.best, outputs=outputs))

    outputs = list(dict.fromkeys(search.best.output_refs()))
    if len(outputs) < 2:
        if outputs:
            attempt(outputs)
        written = dict.fromkeys(s.refs()[0] for s in search.best.statements if s.writes and s.refs())
        any(attempt([name]) for name in written if name not in outputs)
        return
    if any(attempt([name]) for name in outputs):
        return
    kept = outputs
    for name in outputs:
        fewer = [output for output in kept if output != name]
        if len(fewer) > 1 and attempt(fewer):
            kept = fewer


def cut_tail(search: ProgramSearch) -> None:
    """Find the shortest beginning that shows the bug, by bisection."""
    base = search.best
    bisect_last(0, len(base.statements), lambda count: not search.attempt(take_head(base, count)))


def cut_head(search: ProgramSearch) -> None:
    """Find the shortest end that shows the bug with the earlier values as inputs, by bisection."""
    base, evaluation = search.best, search.evaluation
    bisect_last(0, len(base.statements), lambda start: search.attempt(take_tail(base, start, evaluation)))


def take_head(program: Program, count: int) -> Program | None:
    """The first ``count`` statements, returning the values that later ones use."""
    kept, rest = program.statements[:count], program.statements[count:]
    made = [statement.name for statement in kept if statement.form not in ("enter", "exit", "setitem")]
    used = {name for statement in rest for name in statement.refs()} | set(program.output_refs())
    outputs = [Ref(name) for name in made if name in used]
    if not outputs:
        return None
    closing = tuple(Statement(f"{s.name}_end", "exit", "") for s in _find_open_blocks(kept))
    returned: object = outputs[0] if len(outputs) == 1 else tuple(outputs)
    return replace(program, statements=kept + closing, outputs=returned).without_dead_code()


def take_tail(program: Program, start: int, evaluation: Evaluation) -> Program | None:
    """The statements from ``start`` on, with earlier values as inputs; None if one cannot be an input."""
    gone, kept = program.statements[:start], program.statements[start:]
    result = replace(program, statements=(*_find_open_blocks(gone), *kept))
    for statement in gone:
        if statement.form in ("enter", "exit", "setitem"):
            continue
        made = give_value(result, statement.name, evaluation.values.get(statement.name))
        if made is None:
            return None
        result = made
    return result.without_dead_code()


def give_value(program: Program, name: str, value: object) -> Program | None:
    """The program with ``value`` in place of statement ``name``: a recorded input or a constant; None if neither.

    Of a statement with several results (``chunk``), each result that is used becomes an input.
    """
    rest = replace(program, statements=tuple(s for s in program.statements if s.name != name))
    if not rest.count_uses(name):
        return rest
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        return replace(rest, inputs=(*program.inputs, Input.from_tensor(name, value)))
    if isinstance(value, bool | int | float):
        return program.substitute(name, value)
    if not isinstance(value, tuple | list) or not all(isinstance(part, torch.Tensor) for part in value):
        return None
    given: Program | None = rest
    for statement in rest.statements:
        index = statement.args[1] if statement.form == "getitem" and statement.args[0] == Ref(name) else None
        if isinstance(index, int) and given is not None:
            given = give_value(given, statement.name, value[index])
    used = given is None or any(name in s.refs() for s in given.statements)
    return None if used else given


def _find_open_blocks(statements: Sequence[Statement]) -> list[Statement]:
    blocks: list[Statement] = []
    for statement in statements:
        if statement.form == "enter":
            blocks.append(statement)
        elif statement.form == "exit":
            blocks.pop()
    return blocks


def bypass_modules(search: ProgramSearch) -> None:
    """Replace submodules, the largest first, by one of their inputs or by their recorded result."""
    for path in _find_module_paths(search.best):
        inside = [s for s in search.best.statements if f"{s.module}.".startswith(f"{path}.")]
        if len(inside) < 2 or len(inside) == len(search.best.statements):
            continue
        made = {statement.name for statement in inside}
        sources = [name for s in inside for name in s.refs() if name not in made]
        if not _bypass(search, inside[-1].name, sources):
            _give(search, [inside[-1].name])


def _bypass(search: ProgramSearch, name: str, sources: Sequence[str]) -> bool:
    """Replace a value by one of the sources of its shape; whether it worked."""
    return any(
        search.attempt(search.best.substitute(name, Ref(source)))
        for source in dict.fromkeys(sources)
        if (shape := search.evaluation.get_shape(source)) is not None and shape == search.evaluation.get_shape(name)
    )


def give_first_statements(search: ProgramSearch) -> None:
    """Turn statements that use inputs only into inputs: all together, then fewer."""
    needed: set[str] = set()
    while True:
        inputs = {input_.name for input_ in search.best.inputs}
        plain = [s for s in search.best.statements if s.form not in ("enter", "exit", "setitem") and not s.writes]
        first = [s.name for s in plain if set(s.refs()) <= inputs]
        new = [name for name in first if name not in needed]
        # A program that only returns its inputs shows nothing.
        if not new or len(first) == len(search.best.statements):
            return
        # A pattern may want three alike projections: they can be replaced together, and not one by one.
        if len(new) < len(first) and _give(search, first):
            continue
        needed |= _find_needed(search, new)


def _find_needed(search: ProgramSearch, names: Sequence[str]) -> set[str]:
    """Replace as many of the statements as possible; the names of those that stay."""
    if _give(search, names):
        return set()
    half = len(names) // 2
    return _find_needed(search, names[:half]) | _find_needed(search, names[half:]) if half else set(names)


def _give(search: ProgramSearch, names: Sequence[str]) -> bool:
    """Turn the statements into inputs, contiguous if possible, else with their own strides; whether it worked."""
    candidate: Program | None = search.best
    values = search.evaluation.values
    for name in names:
        candidate = give_value(candidate, name, values.get(name)) if candidate is not None else None
    if candidate is None:
        return False
    odd = any(input_.name in names and not is_contiguous(input_) for input_ in candidate.inputs)
    return (odd and search.attempt(lay_out_freshly(candidate, names))) or search.attempt(candidate)


def bypass_statements(search: ProgramSearch) -> None:
    """Replace each statement, from the last, by an argument of the same shape or by its recorded value."""
    for statement in reversed(search.best.statements):
        removed = not any(s.name == statement.name for s in search.best.statements)  # together with another one
        if removed or statement.form in ("enter", "exit"):
            continue
        refs = statement.refs()
        if statement.writes:
            rest = tuple(s for s in search.best.statements if s.name != statement.name)
            without = replace(search.best, statements=rest)
            search.attempt(without.substitute(statement.name, Ref(refs[0])) if refs else without)
            continue
        bypassed = _bypass(search, statement.name, refs)
        if not bypassed and len(search.best.statements) > 1 and statement.name not in search.best.output_refs():
            _give(search, [statement.name])


def drop_blocks(search: ProgramSearch) -> None:
    """Leave out contexts (autocast), one at a time."""
    for statement in [s for s in search.best.statements if s.form == "enter"]:
        statements = list(search.best.statements)
        start = next((n for n, s in enumerate(statements) if s.name == statement.name), len(statements))
        depth = 0
        for position in range(start, len(statements)):
            depth += {"enter": 1, "exit": -1}.get(statements[position].form, 0)
            if depth == 0:
                del statements[position], statements[start]
                break
        search.attempt(replace(search.best, statements=tuple(statements)))


def _find_module_paths(program: Program) -> list[str]:
    counts: dict[str, int] = {}
    for statement in program.statements:
        parts = statement.module.split(".")
        for length in range(2, len(parts) + 1):
            path = ".".join(parts[:length])
            counts[path] = counts.get(path, 0) + 1
    return sorted(counts, key=lambda path: (-counts[path], path))


# Reduce settings toward the defaults: no options, no backward pass, static shapes, no gradients.


def plain_settings(search: ProgramSearch) -> None:
    """Leave out all settings together, then one by one, then single entries of the rest."""
    if not search.best.settings or search.attempt(replace(search.best, settings={})):
        return
    for name in list(search.best.settings):
        search.attempt(replace(search.best, settings=_drop_entry(search.best.settings, name)))
    for name, entries in list(search.best.settings.items()):
        kept = entries if isinstance(entries, Mapping) and len(entries) > 1 else {}
        for key in list(kept):
            fewer = _drop_entry(kept, key)
            if search.attempt(replace(search.best, settings={**search.best.settings, name: fewer})):
                kept = fewer


def _drop_entry(entries: Mapping[str, object], key: str) -> dict[str, object]:
    return {kept: value for kept, value in entries.items() if kept != key}
