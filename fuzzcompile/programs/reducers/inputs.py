"""Reduce inputs: plain values, plain strides, no gradients, no duplicates, small sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import torch

from fuzzcompile.programs.edits.changes import lay_out_freshly
from fuzzcompile.programs.ir.case_source import is_contiguous, list_fills, make_contiguous, resize_input
from fuzzcompile.programs.ir.evaluation import Evaluation, evaluate
from fuzzcompile.programs.ir.program import Fill, Input, Program, Ref, Statement, map_leaves
from fuzzcompile.programs.shrink.search import ProgramSearch


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
            any(search.attempt(search.best.with_input(_fill(input_, fill))) for fill in list_fills(input_))


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
