"""Reducers: delta debugging over a program's statements, outputs, settings and inputs."""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import torch

from fuzzcompile.programs.edits.changes import cast_floating, lay_out_freshly
from fuzzcompile.programs.ir.case_source import is_contiguous, list_fills, make_contiguous, resize_input
from fuzzcompile.programs.ir.evaluation import Evaluation, evaluate
from fuzzcompile.programs.ir.program import Fill, Input, Program, Ref, Statement, map_leaves
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
        while any(search.attempt(search.best.with_statement(shorter)) for shorter in _list_shorter(search.best, name)):
            pass


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
    bisect_last(0, len(base.statements), lambda count: not search.attempt(_take_head(base, count)))


def cut_head(search: ProgramSearch) -> None:
    """Find the shortest end that shows the bug with the earlier values as inputs, by bisection."""
    base, evaluation = search.best, search.evaluation
    bisect_last(0, len(base.statements), lambda start: search.attempt(_take_tail(base, start, evaluation)))


def _take_head(program: Program, count: int) -> Program | None:
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


def _take_tail(program: Program, start: int, evaluation: Evaluation) -> Program | None:
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
    if isinstance(value, bool | int | float | complex):
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


def compute_heads(search: ProgramSearch) -> None:
    """Replace what several statements make of inputs by twice an input: some bugs want a value that is no input."""
    for statement in reversed(search.best.statements[1:]):
        value = search.evaluation.values.get(statement.name)
        if statement.form in ("enter", "exit", "setitem") or statement.writes or not isinstance(value, torch.Tensor):
            continue
        if not value.is_floating_point() or statement.target == "*":
            continue
        grad = any(input_.requires_grad for input_ in search.best.inputs)
        fresh = replace(Input.from_tensor(f"{statement.name}_given", value.contiguous()), fill="randn", values=None)
        doubled = Statement(statement.name, "operator", "*", (Ref(fresh.name), 2))
        whole = replace(search.best, inputs=(*search.best.inputs, replace(fresh, requires_grad=grad)))
        candidate = whole.replace_statement(statement, doubled).without_dead_code()
        if len(candidate.statements) < len(search.best.statements) and search.attempt(candidate):
            return


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
    modules = [statement.module.split(".") for statement in program.statements]
    counts = Counter(".".join(parts[:length]) for parts in modules for length in range(2, len(parts) + 1))
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


def plain_parameters(search: ProgramSearch) -> None:
    """Turn parameters into plain inputs, if possible without gradients."""
    function = replace(search.best, as_module=False).map_inputs(lambda input_: replace(input_, parameter=False))
    if not search.attempt(function.without_gradients()):
        search.attempt(function)


def merge_equal(search: ProgramSearch) -> None:
    """Merge inputs that hold the same values."""
    for left, right in itertools.combinations(search.best.inputs, 2):
        if _same(left, right) and search.best.input(left.name) is not None:
            search.attempt(search.best.substitute(right.name, Ref(left.name)))


def _same(left: Input, right: Input) -> bool:
    if (left.shape, left.stride, left.dtype, left.fill) != (right.shape, right.stride, right.dtype, right.fill):
        return False
    if left.fill != "recorded":
        return left.fill in ("zeros", "ones", "arange")
    return left.values is not None and right.values is not None and torch.equal(left.values, right.values)


def plain_strides(search: ProgramSearch) -> None:
    """Give inputs contiguous strides: all together, then one by one."""
    odd = [input_.name for input_ in search.best.inputs if not is_contiguous(input_)]
    if odd and not search.attempt(lay_out_freshly(search.best, odd)) and len(odd) > 1:
        for name in odd:
            search.attempt(lay_out_freshly(search.best, [name]))


def random_values(search: ProgramSearch) -> None:
    """Replace all recorded values by random ones, in one attempt."""
    if search.best.is_recorded:
        search.attempt(_fill_all(search.best, "randn"))


def plain_values(search: ProgramSearch) -> None:
    """Replace recorded values by calls of torch: all together, then each by the plainest call that works."""
    recorded = [input_.name for input_ in search.best.inputs if input_.fill == "recorded"]
    if not recorded or any(search.attempt(_fill_all(search.best, floating)) for floating in _RANDOM):
        return
    for name in recorded:
        input_ = search.best.input(name)
        if input_ is not None:
            plain = (_fill(input_, fill) for fill in list_fills(input_))
            any(search.attempt(search.best.with_input(put)) for put in itertools.chain(plain, _repeat_extremes(input_)))


def _repeat_extremes(input_: Input) -> Iterator[Input]:
    """The input with one of its extreme values everywhere: not finite, the largest, the smallest."""
    if input_.values is None or not input_.dtype.is_floating_point or not input_.values.numel():
        return
    listed = input_.values.double().flatten().tolist()
    numbers = sorted({number for number in listed if not math.isnan(number)}, key=abs)
    finite = [number for number in numbers if math.isfinite(number)]
    odd = [*[math.nan] * any(map(math.isnan, listed)), *(number for number in numbers if math.isinf(number))]
    for value in dict.fromkeys([*odd, *finite[-1:], *finite[:1], *[number for number in finite if number][:1]]):
        whole = torch.full(input_.shape, value, dtype=input_.dtype)
        yield replace(make_contiguous(input_), fill="full", values=whole)


_RANDOM: tuple[Fill, ...] = ("randn", "rand")


def _fill_all(program: Program, floating: Fill) -> Program:
    def put(input_: Input) -> Input:
        if input_.fill != "recorded":
            return input_
        choices = list_fills(input_)
        return _fill(input_, next(fill for fill in (floating, "randint", choices[0]) if fill in choices))

    return program.map_inputs(put)


def _fill(input_: Input, fill: Fill) -> Input:
    return replace(make_contiguous(input_) if fill == "literal" else input_, fill=fill)


# Shrink sizes toward 1, 2, 3, each in all its places together; only candidates that run in eager count.

# Functions with sizes among their integer arguments, checked on torch 2.13. Schemas do not tell: ATen has sizes of type
# int (chunk, one_hot), SymInt arguments that are no sizes (padding_idx), and Python functions have no schema.
_SHAPING = (
    "view", "reshape", "expand", "unflatten", "split", "chunk", "repeat", "narrow", "zeros", "ones", "full", "empty",
    "randn", "rand", "arange", "new_zeros", "new_ones", "new_full", "new_empty", "layer_norm", "rms_norm", "group_norm",
    "as_strided", "broadcast_to", "expand_as", "tile", "tril", "triu", "eye", "linspace", "one_hot", "interpolate",
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "select", "roll", "constant_pad_nd", "pad", "randint", "view_as",
    "repeat_interleave", "unfold", "fold", "embedding", "split_with_sizes", "tensor_split", "topk", "empty_strided",
)  # fmt: skip


# Whether a multiple contains the size as a factor once or as often as it divides (8 heads of 8), or is unrelated.
Multiples = Literal["one", "all", "none"]
_MULTIPLES: tuple[Multiples, ...] = ("one", "all", "none")
# Functions by which a statement makes a size that no input has.
_MAKING = (
    "zeros", "ones", "full", "empty", "randn", "rand", "arange", "eye", "randint", "view", "reshape", "unflatten",
)  # fmt: skip


def shrink_sizes(search: ProgramSearch) -> None:
    """Make every size as small as the bug allows, the largest first."""
    _shrink_together(search)
    done: set[int] = set()
    while sizes := sorted(_find_sizes(search.best) - done, reverse=True):
        done.add(sizes[0])
        _shrink(search, sizes[0])
    rank = max((len(input_.shape) for input_ in search.best.inputs), default=0)
    for dimension in range(rank):
        _shrink_everywhere(search, dimension, rank)


# The size of the last dimension in the inputs of a minimal program: a row that a reader sees is wrong as a whole.
_ROW = 3


def show_rows(search: ProgramSearch) -> None:
    """Leave out leading dimensions of size 1, as many as all inputs have; then make rows of an equal size longer."""
    ranks = [len(list(itertools.takewhile(lambda size: size == 1, input_.shape[:-1]))) for input_ in search.best.inputs]
    any(
        search.attempt(search.best.map_inputs(functools.partial(_lower_rank, by=by)))
        for by in range(min(ranks, default=0), 0, -1)
    )
    inputs = search.best.inputs
    written = any(input_.fill in ("literal", "recorded") for input_ in inputs)
    if not written and {input_.shape[-1:] for input_ in inputs} in ({(1,)}, {(2,)}):
        search.attempt(search.best.map_inputs(lambda input_: resize_input(input_, (*input_.shape[:-1], _ROW))))


def _lower_rank(input_: Input, by: int) -> Input:
    values = None if input_.values is None else input_.values[(0,) * by]
    return replace(input_, shape=input_.shape[by:], stride=input_.stride[by:], values=values)


def _find_sizes(program: Program) -> set[int]:
    sizes = {size for input_ in program.inputs for size in input_.shape}
    for statement in program.statements:
        if statement.target.rpartition(".")[2] in _MAKING:
            map_leaves(lambda leaf: sizes.add(leaf) if type(leaf) is int else None, statement.args)
    return {size for size in sizes if size > 1}


def _shrink_together(search: ProgramSearch) -> None:
    sizes = sorted(_find_sizes(search.best))
    if not sizes or sizes[-1] <= 3:
        return
    for base in (2, 3):
        candidate = search.best
        for size in reversed(sizes):
            if size > base:
                candidate = next(_generate_readings(candidate, size, base), candidate)
        if candidate is not search.best and search.attempt(candidate):
            return


def _shrink(search: ProgramSearch, size: int) -> None:
    for smaller in (2, 1, 3):
        if smaller < size and _try(search, size, smaller):
            if smaller == 2:
                _try(search, 2, 1)
            return
    while size >= 8 and _try(search, size, size // 2):
        size //= 2


def _try(search: ProgramSearch, size: int, smaller: int) -> bool:
    return any(map(search.attempt, itertools.islice(_generate_readings(search.best, size, smaller), 2)))


def _shrink_everywhere(search: ProgramSearch, dimension: int, rank: int) -> None:
    candidate = search.best
    for input_ in search.best.inputs:
        if len(input_.shape) == rank:
            shape = (*input_.shape[:dimension], 1, *input_.shape[dimension + 1 :])
            candidate = candidate.with_input(resize_input(input_, shape))
    if candidate != search.best:
        evaluation = evaluate(candidate)
        empty = _is_empty_somewhere(evaluation) and not _is_empty_somewhere(search.evaluation)
        if not empty and (evaluation.failed is not None) == search.refuses:
            search.attempt(candidate)


def _generate_readings(program: Program, size: int, smaller: int) -> Iterator[Program]:
    was_empty = _is_empty_somewhere(evaluate(program))
    for multiples, constants in itertools.product(_MULTIPLES, (True, False)):
        candidate = _scale_size(program, size, smaller, multiples=multiples, constants=constants)
        if candidate == program or _has_empty_slice(candidate):
            continue
        evaluation = evaluate(candidate)
        if evaluation.failed is None and (was_empty or not _is_empty_somewhere(evaluation)):
            yield candidate


def _is_empty_somewhere(evaluation: Evaluation) -> bool:
    return any(isinstance(value, torch.Tensor) and not value.numel() for value in evaluation.values.values())


def _has_empty_slice(program: Program) -> bool:
    """Return whether an index selects no element (``x[1:1]``), because a position was read as a size."""
    indices = [statement.args[1] for statement in program.statements if statement.form in ("getitem", "setitem")]
    slices = [part for index in indices for part in (index if isinstance(index, tuple | list) else [index])]
    return any(
        isinstance(part, slice)
        and isinstance(part.start, int)
        and isinstance(part.stop, int)
        and 0 <= part.stop <= part.start
        for part in slices
    )


def _scale_size(program: Program, size: int, smaller: int, *, multiples: Multiples, constants: bool) -> Program:
    def resize(number: int) -> int:
        if number == size:
            return smaller
        if multiples == "none" or number < size or number % size:
            return number
        if multiples == "one":
            return number // size * smaller
        result = 1
        while number % size == 0:
            number, result = number // size, result * smaller
        return number * result

    def change(statement: Statement) -> Statement:
        shaping = statement.target.rpartition(".")[2] in _SHAPING or statement.form in ("getitem", "setitem")
        if not constants or not shaping:
            return statement
        return statement.map_leaves(lambda leaf: resize(leaf) if type(leaf) is int else leaf)

    resized_inputs = program.map_inputs(lambda input_: resize_input(input_, tuple(map(resize, input_.shape))))
    return resized_inputs.map_statements(change)
