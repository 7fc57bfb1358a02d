"""Delta debugging over a program's statements: whole modules, many together, one by one."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch

from fuzzcompile.programs.ir.case_source import is_contiguous, make_contiguous
from fuzzcompile.programs.ir.evaluation import Evaluation
from fuzzcompile.programs.ir.program import Input, Program, Ref, Statement
from fuzzcompile.programs.shrink.search import ProgramSearch, bisect_last

# Reduce arguments: leave out optional ones, round constants, make dtypes and modes plain.


def drop_arguments(search: ProgramSearch) -> None:
    """Leave out keyword arguments, trailing arguments and optional tensors (a bias, a mask)."""
    together = search.best
    for statement in search.best.statements:
        if statement.kwargs and statement.form in ("function", "method"):
            constants = {k: v for k, v in statement.kwargs.items() if isinstance(v, Ref) or _is_telling(v)}
            together = together.with_statement(replace(statement, kwargs=constants))
    search.attempt(together)
    for name in [s.name for s in search.best.statements]:
        for shorter in _shorter(_find_statement(search.best, name)):
            if search.attempt(search.best.with_statement(shorter)):
                break


def _is_telling(value: object) -> bool:
    """Return whether the argument changes the result: a dimension, a dtype."""
    return value is not None and not isinstance(value, bool)


def _find_statement(program: Program, name: str) -> Statement | None:
    return next((s for s in program.statements if s.name == name), None)


def _shorter(statement: Statement | None) -> Iterator[Statement]:
    """The statement with fewer arguments, the fewest first; many of these do not run in eager."""
    if statement is None or statement.form not in ("function", "method"):
        return
    if len(statement.kwargs) > 1:
        yield replace(statement, kwargs={})
    for key in statement.kwargs:
        yield replace(statement, kwargs={k: v for k, v in statement.kwargs.items() if k != key})
    least = 1
    args = statement.args
    if len(args) > least and (isinstance(args[-1], Ref) or args[-1] is None or isinstance(args[-1], bool | float)):
        for count in range(least, len(args)):
            if any(arg is None or isinstance(arg, Ref | bool | float) for arg in args[count:]):
                yield replace(statement, args=args[:count])


def round_constants(search: ProgramSearch) -> None:
    """Round floating constants: all together, then one by one."""
    for rounding in (_half_or_two, _two_digits):
        candidate = search.best.map_statements(functools.partial(_round_in, change=rounding))
        if candidate != search.best and search.attempt(candidate):
            return
    for name in [s.name for s in search.best.statements]:
        statement = _find_statement(search.best, name)
        if statement is not None:
            rounded = _round_in(statement, _two_digits)
            if rounded != statement:
                search.attempt(search.best.with_statement(rounded))


def _round_in(statement: Statement, change: Callable[[float], float]) -> Statement:
    return statement.map_leaves(lambda leaf: change(leaf) if isinstance(leaf, float) else leaf)


def _is_short(value: float) -> bool:
    return value != value or value in (float("inf"), float("-inf")) or float(f"{value:.2g}") == value


def _half_or_two(value: float) -> float:
    """0.5 or 2 for a longer number, with its sign."""
    if _is_short(value):
        return value
    plain = 0.5 if abs(value) < 1 else 2.0
    return -plain if value < 0 else plain


def _two_digits(value: float) -> float:
    return value if _is_short(value) else float(f"{value:.2g}")


def evaluation_mode(search: ProgramSearch) -> None:
    """Turn ``training`` and dropout off."""

    def plain(statement: Statement) -> Statement:
        kwargs = {k: (False if k == "training" else v) for k, v in statement.kwargs.items()}
        args = statement.args
        if statement.target.endswith("dropout") and len(args) > 2:
            args = (*args[:2], False, *args[3:])
        elif statement.target.endswith("dropout") and "training" not in kwargs:
            kwargs["training"] = False
        return replace(statement, args=args, kwargs=kwargs)

    search.attempt(search.best.map_statements(plain))


def single_precision(search: ProgramSearch) -> None:
    """Replace every floating dtype by float32, in inputs and in statements."""

    def narrow(leaf: object) -> object:
        return torch.float32 if isinstance(leaf, torch.dtype) and leaf.is_floating_point else leaf

    def of_input(input_: Input) -> Input:
        if not input_.dtype.is_floating_point:
            return input_
        values = None if input_.values is None else input_.values.to(torch.float32)
        return replace(input_, dtype=torch.float32, values=values)

    def of_statement(statement: Statement) -> Statement:
        casts = statement.form == "method" and statement.target in ("bfloat16", "half", "double")
        return replace(statement.map_leaves(narrow), target="float" if casts else statement.target)

    search.attempt(search.best.map_inputs(of_input).map_statements(of_statement))


# Cut a program to the window that shows the bug: outputs, tail, head.


def drop_outputs(search: ProgramSearch) -> None:
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
    """The program with ``value`` in place of statement ``name``: a recorded input or a constant; None if neither."""
    statements = tuple(s for s in program.statements if s.name != name)
    used = any(name in s.refs() for s in statements) or name in program.output_refs()
    if not used:
        return replace(program, statements=statements)
    if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_quantized:
        made = Input.from_tensor(name, value)
        return replace(program, statements=statements, inputs=(*program.inputs, made))
    if isinstance(value, bool | int | float):
        return program.substitute(name, value)
    if isinstance(value, tuple | list) and all(isinstance(part, torch.Tensor) for part in value):
        return _give_parts(replace(program, statements=statements), name, value)
    return None


def _give_parts(program: Program, name: str, parts: Sequence[torch.Tensor]) -> Program | None:
    """Replace a statement with several results (``chunk``): each result that is used becomes an input."""
    for statement in program.statements:
        if statement.form == "getitem" and statement.args[0] == Ref(name) and isinstance(statement.args[1], int):
            taken = give_value(program, statement.name, parts[statement.args[1]])
            if taken is None:
                return None
            program = taken
    return None if any(name in s.refs() for s in program.statements) else program


def _find_open_blocks(statements: Sequence[Statement]) -> list[Statement]:
    """The ``enter`` statements of blocks that these statements leave open."""
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
        inside = [s for s in search.best.statements if _within(s.module, path)]
        if len(inside) < 2 or len(inside) == len(search.best.statements):
            continue
        last = inside[-1].name
        sources = [name for s in inside for name in s.refs() if name not in {statement.name for statement in inside}]
        for source in dict.fromkeys(sources):
            if _alike(search, source, last) and search.attempt(search.best.substitute(last, Ref(source))):
                break
        else:
            _give(search, [last])


def give_first_statements(search: ProgramSearch) -> None:
    """Turn statements that use inputs only into inputs: all together, then fewer."""
    needed: set[str] = set()
    while True:
        inputs = {input_.name for input_ in search.best.inputs}
        first = [
            s.name
            for s in search.best.statements
            if s.form not in ("enter", "exit", "setitem") and not s.writes and set(s.refs()) <= inputs
        ]
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
    if len(names) == 1:
        return set(names)
    half = len(names) // 2
    return _find_needed(search, names[:half]) | _find_needed(search, names[half:])


def _give(search: ProgramSearch, names: Sequence[str]) -> bool:
    """Turn the statements into inputs, contiguous if possible, else with their own strides; whether it worked."""
    candidate: Program | None = search.best
    values = search.evaluation.values
    for name in names:
        candidate = give_value(candidate, name, values.get(name)) if candidate is not None else None
    if candidate is None:
        return False
    plain = candidate.map_inputs(lambda input_: make_contiguous(input_) if input_.name in names else input_)
    is_odd = any(input_.name in names and not is_contiguous(input_) for input_ in candidate.inputs)
    if is_odd and search.attempt(plain):
        return True
    return search.attempt(candidate)


def bypass_statements(search: ProgramSearch) -> None:
    """Replace each statement, from the last, by an argument of the same shape or by its recorded value."""
    for statement in reversed(search.best.statements):
        if not any(s.name == statement.name for s in search.best.statements):
            continue  # removed together with another one
        if statement.form in ("enter", "exit"):
            continue
        if statement.writes:
            _drop_write(search, statement)
            continue
        for source in dict.fromkeys(statement.refs()):
            if _alike(search, source, statement.name) and search.attempt(
                search.best.substitute(statement.name, Ref(source))
            ):
                break
        else:
            if len(search.best.statements) > 1 and statement.name not in search.best.output_refs():
                _give(search, [statement.name])


def drop_blocks(search: ProgramSearch) -> None:
    """Leave out contexts (autocast), one at a time."""
    for statement in [s for s in search.best.statements if s.form == "enter"]:
        statements = list(search.best.statements)
        names = [s.name for s in statements]
        if statement.name not in names:
            continue
        depth, start = 0, names.index(statement.name)
        for position in range(start, len(statements)):
            depth += {"enter": 1, "exit": -1}.get(statements[position].form, 0)
            if depth == 0:
                del statements[position], statements[start]
                break
        search.attempt(_with(search.best, statements))


def _with(program: Program, statements: Sequence[Statement]) -> Program:
    return replace(program, statements=tuple(statements))


def _drop_write(search: ProgramSearch, statement: Statement) -> None:
    refs = statement.refs()
    without = _with(search.best, [s for s in search.best.statements if s.name != statement.name])
    search.attempt(without.substitute(statement.name, Ref(refs[0])) if refs else without)


def _alike(search: ProgramSearch, left: str, right: str) -> bool:
    shape = search.evaluation.get_shape(left)
    return shape is not None and shape == search.evaluation.get_shape(right)


def _find_module_paths(program: Program) -> list[str]:
    """Paths of the submodules, those with most statements first."""
    counts: dict[str, int] = {}
    for statement in program.statements:
        parts = statement.module.split(".")
        for length in range(2, len(parts) + 1):
            path = ".".join(parts[:length])
            counts[path] = counts.get(path, 0) + 1
    return sorted(counts, key=lambda path: (-counts[path], path))


def _within(module: str, path: str) -> bool:
    return module == path or module.startswith(f"{path}.")


# Reduce settings toward the defaults: no options, no backward pass, static shapes, no gradients.


def plain_settings(search: ProgramSearch) -> None:
    """Leave out all settings together, then one by one, then single entries of the rest."""
    if not search.best.settings:
        return
    if search.attempt(replace(search.best, settings={})):
        return
    for name in list(search.best.settings):
        search.attempt(replace(search.best, settings=_drop_entry(search.best.settings, name)))
    for name, entries in list(search.best.settings.items()):
        if isinstance(entries, Mapping) and len(entries) > 1:
            _drop_entries(search, name, entries)


def _drop_entries(search: ProgramSearch, name: str, entries: Mapping[str, object]) -> None:
    """Leave out entries of one setting, one at a time."""
    for key in entries:
        fewer = _drop_entry(entries, key)
        if search.attempt(replace(search.best, settings={**search.best.settings, name: fewer})):
            entries = fewer


def _drop_entry(entries: Mapping[str, object], key: str) -> dict[str, object]:
    return {kept: value for kept, value in entries.items() if kept != key}
