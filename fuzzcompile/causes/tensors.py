"""Changes of what tensors are: their dtypes, layouts, what shares them, their values and sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import torch

from fuzzcompile.causes import wording
from fuzzcompile.causes.change import Change
from fuzzcompile.causes.operations import arguments, operation
from fuzzcompile.reduction.evaluating import Evaluation
from fuzzcompile.reduction.filling import contiguous, input_expression, is_contiguous, resized
from fuzzcompile.reduction.program import Input, Program, Ref, Statement, map_leaves, refs_in

_USUAL = torch.float32
# Functions that take the shape of what they make.
_MAKING = ("full", "ones", "zeros", "empty", "randn", "rand")
# Statements after which a tensor may be laid out in another way than a fresh one.
_VIEWS = ("permute", "expand", "as_strided", "unfold", "diagonal", "getitem")


def dtypes(program: Program) -> Iterator[Change]:
    """All floating tensors in float32 (or, where they are, in float64), then one input in the dtype of the others."""
    present = {input_.dtype for input_ in program.inputs} | set(_written_dtypes(program))
    floating = sorted((dtype for dtype in present if dtype.is_floating_point), key=str)
    for wanted in (_USUAL, torch.float64):
        if floating and set(floating) != {wanted}:
            names = " and ".join(wording.dtype_name(dtype) for dtype in floating if dtype is not wanted)
            yield Change(_all_in(program, wanted), "dtype", "dtype", names, wording.dtype_name(wanted))
    counted = Counter(input_.dtype for input_ in program.inputs)
    usual = [dtype for dtype, _ in counted.most_common()] + [_USUAL]
    for input_ in program.inputs:
        for dtype in dict.fromkeys(usual):
            if dtype is not input_.dtype and not input_.dtype.is_complex:
                before, after = (f"{input_.name} of {wording.dtype_name(kind)}" for kind in (input_.dtype, dtype))
                yield Change(program.with_input(_cast(input_, dtype)), "dtype", "dtype", before, after)


def layouts(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """Every input freshly laid out, one of them, then the result of a view."""
    odd = [input_ for input_ in program.inputs if not is_contiguous(input_)]
    if len(odd) > 1:
        before = ", ".join(wording.strides(input_) for input_ in odd)
        yield Change(program.map_inputs(contiguous), "layout", "layout", before, "contiguous inputs")
    for input_ in odd:
        changed = program.with_input(contiguous(input_))
        yield Change(changed, "layout", "layout", wording.strides(input_), f"contiguous {input_.name}")
    views = [
        (statement, value)
        for statement in program.statements
        if operation(statement) in _VIEWS and isinstance(value := evaluation.values.get(statement.name), torch.Tensor)
    ]
    for statement, value in views:
        if not value.is_contiguous():
            yield from _without_view(program, statement, value)
            yield _behind(program, statement, "contiguous", "layout")


def sharing(program: Program) -> Iterator[Change]:
    """A copy of each value that is used more than once, or that shares the memory of an input, where it is used."""
    for statement in program.statements:
        for name in dict.fromkeys(statement.refs()):
            if _uses(program, name) > 1 and statement.form not in ("enter", "exit", "attribute"):
                copy = Statement(f"{name}_copy", "method", "clone", (Ref(name),))
                yield Change(
                    _first_use(program, statement, name, copy), "sharing", "sharing", name, wording.call(copy), True
                )
    for statement in program.statements:
        if statement.writes or (statement.name in program.output_refs() and operation(statement) in _VIEWS):
            yield _behind(program, statement, "clone", "sharing")


def values_of_inputs(program: Program) -> Iterator[Change]:
    """Zeros for whole numbers, random numbers for those that are all alike, then random numbers from [0, 1)."""
    for input_ in program.inputs:
        if input_.dtype.is_floating_point or input_.dtype.is_complex:
            if input_.fill in ("zeros", "ones", "arange", "literal"):
                yield _of_values(program, replace(input_, fill="randn", values=None))
        elif input_.dtype is not torch.bool and input_.fill != "zeros":
            yield _of_values(program, replace(input_, fill="zeros", values=None))
    for input_ in program.inputs:
        if input_.dtype.is_floating_point and input_.fill in ("randn", "recorded"):
            yield _of_values(program, replace(input_, fill="rand", values=None))


def sizes(program: Program, evaluation: Evaluation) -> Iterator[Change]:
    """2 for 1 and for 0, 1 dimension for none; then one more for every size, in all its places together.

    Of a program that eager refuses, also 1 for a size in one place.
    """
    yield from _sizes_made(program)
    for input_ in program.inputs:
        if not input_.shape:
            values = None if input_.values is None else input_.values.reshape(1)
            yield _resized(program, replace(input_, shape=(1,), stride=(1,), values=values), "no dimension")
    for small in (1, 0):
        named = f"size of {small}"
        places = [(input_, place) for input_ in program.inputs for place, n in enumerate(input_.shape) if n == small]
        if len(places) > 1:
            yield Change(_grown(program, small, 2), "size", named, named, "size of 2")
        for input_, place in places:
            yield _resized(program, _resized_input(input_, _put(input_.shape, place, 2)), named)
    for size in sorted({n for input_ in program.inputs for n in input_.shape if n > 1}):
        yield Change(_grown(program, size, size + 1), "size", "size", f"size of {size}", f"size of {size + 1}")
    if evaluation.failed is not None:
        places = [(input_, place) for input_ in program.inputs for place, n in enumerate(input_.shape) if n > 1]
        for input_, place in places:
            yield _resized(program, resized(input_, _put(input_.shape, place, 1)), "size")


def _sizes_made(program: Program) -> Iterator[Change]:
    """Another size for a tensor that a statement makes."""
    for statement in program.statements:
        shape = statement.args[0] if operation(statement) in _MAKING and statement.args else None
        if not isinstance(shape, tuple | list) or not all(type(size) is int for size in shape):
            continue
        wanted = {place: [*shape[:place], 2, *shape[place + 1 :]] for place, size in enumerate(shape) if size == 1}
        for changed in [[1]] if not shape else wanted.values():
            after = replace(statement, args=(type(shape)(changed), *statement.args[1:]))
            named = "size of 1" if shape else "no dimension"
            yield Change(program.with_statement(after), "size", named, wording.call(statement), wording.call(after))


# -- private --------------------------------------------------------------------------------------


def _written_dtypes(program: Program) -> list[torch.dtype]:
    written: list[torch.dtype] = []

    def leaf(value: object) -> None:
        if isinstance(value, torch.dtype):
            written.append(value)

    for statement in program.statements:
        map_leaves(leaf, (statement.args, statement.kwargs))
    return written


def _all_in(program: Program, dtype: torch.dtype) -> Program:
    """The program with every floating tensor in one dtype."""
    changed = program.map_inputs(lambda input_: _cast(input_, dtype) if input_.dtype.is_floating_point else input_)
    return changed.map_statements(lambda statement: _recast(statement, dtype))


def _cast(input_: Input, dtype: torch.dtype) -> Input:
    if dtype.is_floating_point == input_.dtype.is_floating_point:
        values = None if input_.values is None else input_.values.to(dtype)
        return replace(input_, dtype=dtype, values=values)
    return replace(input_, dtype=dtype, fill="randn" if dtype.is_floating_point else "zeros", values=None)


def _recast(statement: Statement, dtype: torch.dtype) -> Statement:
    """The statement with another dtype wherever it writes a floating one."""

    def leaf(value: object) -> object:
        return dtype if isinstance(value, torch.dtype) and value.is_floating_point else value

    if statement.form == "method" and statement.target in ("half", "float", "double", "bfloat16"):
        return replace(statement, target="to", args=(statement.args[0], dtype))
    return statement.map_leaves(leaf)


def _behind(program: Program, statement: Statement, method: str, kind: str) -> Change:
    """The program with a method called on the result of a statement."""
    added = Statement(f"{statement.name}_{method}", "method", method, (Ref(statement.name),))
    place = program.statements.index(statement) + 1
    rest = replace(program, inputs=(), statements=program.statements[place:]).renamed({statement.name: added.name})
    statements = (*program.statements[:place], added, *rest.statements)
    changed = replace(program, statements=statements, outputs=rest.outputs)
    text = wording.call(statement)
    return Change(changed, kind, kind, text, f"{text}.{method}()", hides=True)


def _without_view(program: Program, statement: Statement, value: torch.Tensor) -> Iterator[Change]:
    """The program that gets the result of a view of an input as an input, freshly laid out."""
    viewed = program.input(statement.refs()[0])
    if viewed is None or _uses(program, viewed.name) > 1 or len(set(statement.refs())) > 1:
        return
    fresh = Input.of(viewed.name, value.contiguous())
    fresh = replace(fresh, fill=viewed.fill, requires_grad=viewed.requires_grad, parameter=viewed.parameter)
    fresh = replace(fresh, values=value.contiguous() if viewed.fill in ("recorded", "literal") else None)
    changed = replace(program.with_input(fresh), statements=tuple(s for s in program.statements if s is not statement))
    changed = replace(changed.renamed({statement.name: viewed.name}), inputs=changed.inputs)
    yield Change(changed, "layout", "layout", wording.call(statement), f"contiguous {viewed.name}", hides=True)


def _first_use(program: Program, user: Statement, name: str, copy: Statement) -> Program:
    """The program in which one statement uses a copy of a value, in the last place where it uses the value."""
    left = user.refs().count(name)

    def put(ref: Ref) -> Ref:
        nonlocal left
        left -= ref.name == name
        return Ref(copy.name) if ref.name == name and left == 0 else ref

    place = program.statements.index(user)
    changed = (copy, user.map_refs(put))
    return replace(program, statements=(*program.statements[:place], *changed, *program.statements[place + 1 :]))


def _uses(program: Program, name: str) -> int:
    return refs_in([*((s.args, s.kwargs) for s in program.statements), program.outputs]).count(name)


def _used_as(program: Program, name: str) -> str:
    """The operation and the argument that an input is first used for."""
    for statement in program.statements:
        for argument in arguments(statement):
            if name in refs_in(argument.value):
                return f"{operation(statement)}({argument.name})"
    return "values"


def _of_values(program: Program, changed: Input) -> Change:
    before = program.input(changed.name)
    assert before is not None
    return Change(
        program.with_input(changed),
        "value",
        _used_as(program, changed.name),
        f"{changed.name} = {input_expression(before)}",
        f"{changed.name} = {input_expression(changed)}",
    )


def _grown(program: Program, size: int, wanted: int) -> Program:
    """The program with another size for one size in all inputs."""

    def grown(input_: Input) -> Input:
        shape = tuple(wanted if n == size else n for n in input_.shape)
        return input_ if shape == input_.shape else _resized_input(input_, shape)

    return program.map_inputs(grown)


def _resized_input(input_: Input, shape: tuple[int, ...]) -> Input:
    """The input in another shape; of values that are written out there are none for more elements."""
    if input_.fill in ("literal", "recorded"):
        input_ = replace(input_, fill="randn" if input_.dtype.is_floating_point else "zeros")
    return resized(input_ if input_.fill == "randint" else replace(input_, values=None), shape)


def _put(shape: tuple[int, ...], place: int, size: int) -> tuple[int, ...]:
    return (*shape[:place], size, *shape[place + 1 :])


def _resized(program: Program, changed: Input, fingerprint: str) -> Change:
    before = program.input(changed.name)
    assert before is not None
    return Change(program.with_input(changed), "size", fingerprint, wording.shape(before), wording.shape(changed))
