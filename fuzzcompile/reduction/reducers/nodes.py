"""Delta debugging over a program's statements: whole modules, many together, one by one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.reduction.filling import contiguous, is_contiguous
from fuzzcompile.reduction.program import Program, Ref, Statement
from fuzzcompile.reduction.reducers.cutting import given
from fuzzcompile.reduction.search import Search


def bypass_modules(search: Search) -> None:
    """Replace submodules, the largest first, by one of their inputs or by their recorded result."""
    for path in _paths(search.best):
        inside = [s for s in search.best.statements if _within(s.module, path)]
        if len(inside) < 2 or len(inside) == len(search.best.statements):
            continue
        last = inside[-1].name
        sources = [name for s in inside for name in s.refs() if name not in {statement.name for statement in inside}]
        for source in dict.fromkeys(sources):
            if _alike(search, source, last) and search.attempt(search.best.substituted(last, Ref(source))):
                break
        else:
            _give(search, [last])


def give_first_statements(search: Search) -> None:
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
        needed |= _needed(search, new)


def _needed(search: Search, names: Sequence[str]) -> set[str]:
    """Replace as many of the statements as possible; the names of those that stay."""
    if _give(search, names):
        return set()
    if len(names) == 1:
        return set(names)
    half = len(names) // 2
    return _needed(search, names[:half]) | _needed(search, names[half:])


def _give(search: Search, names: Sequence[str]) -> bool:
    """Turn the statements into inputs, contiguous if possible, else with their own strides; whether it worked."""
    candidate: Program | None = search.best
    values = search.evaluation.values
    for name in names:
        candidate = given(candidate, name, values.get(name)) if candidate is not None else None
    if candidate is None:
        return False
    plain = candidate.map_inputs(lambda input_: contiguous(input_) if input_.name in names else input_)
    is_odd = any(input_.name in names and not is_contiguous(input_) for input_ in candidate.inputs)
    if is_odd and search.attempt(plain):
        return True
    return search.attempt(candidate)


def bypass_statements(search: Search) -> None:
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
                search.best.substituted(statement.name, Ref(source))
            ):
                break
        else:
            if len(search.best.statements) > 1 and statement.name not in search.best.output_refs():
                _give(search, [statement.name])


def drop_blocks(search: Search) -> None:
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


def _drop_write(search: Search, statement: Statement) -> None:
    refs = statement.refs()
    without = _with(search.best, [s for s in search.best.statements if s.name != statement.name])
    search.attempt(without.substituted(statement.name, Ref(refs[0])) if refs else without)


def _alike(search: Search, left: str, right: str) -> bool:
    shape = search.evaluation.shape_of(left)
    return shape is not None and shape == search.evaluation.shape_of(right)


def _paths(program: Program) -> list[str]:
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
