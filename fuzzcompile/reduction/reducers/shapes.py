"""Shrink sizes toward 1, 2, 3, each in all its places together; only candidates that run in eager count.

A number may be a size or something else, so each change is tried in several readings: in input sizes only, in constants
too, and in multiples of the size (``view(b, t, h * d)``).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Literal

import torch

from fuzzcompile.reduction.evaluating import Evaluation, evaluate
from fuzzcompile.reduction.filling import resized
from fuzzcompile.reduction.program import Program, Statement, map_leaves
from fuzzcompile.reduction.search import Search

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


def shrink_sizes(search: Search) -> None:
    """Make every size as small as the bug allows, the largest first."""
    _all_at_once(search)
    done: set[int] = set()
    while True:
        sizes = sorted(_sizes(search.best) - done, reverse=True)
        if not sizes:
            break
        done.add(sizes[0])
        _shrink(search, sizes[0])
    for dimension in range(max((len(input_.shape) for input_ in search.best.inputs), default=0)):
        _shrink_everywhere(search, dimension)


def _sizes(program: Program) -> set[int]:
    """Sizes above 1, of inputs and of tensors that statements make."""
    sizes = {size for input_ in program.inputs for size in input_.shape}
    for statement in program.statements:
        if statement.target.rpartition(".")[2] in _MAKING:
            map_leaves(lambda leaf: sizes.add(leaf) if type(leaf) is int else None, statement.args)
    return {size for size in sizes if size > 1}


def _all_at_once(search: Search) -> None:
    """Replace all sizes by 2, or all by 3, and their multiples with them."""
    sizes = sorted(_sizes(search.best))
    if not sizes or sizes[-1] <= 3:
        return
    for base in (2, 3):
        candidate = search.best
        for size in reversed(sizes):
            if size > base:
                candidate = next(_readings(candidate, size, base), candidate)
        if candidate is not search.best and search.attempt(candidate):
            return


def _shrink(search: Search, size: int) -> None:
    """Replace a size by 2, 1 or 3, else halve it while the bug stays."""
    for smaller in dict.fromkeys((2, 1, 3)):
        if smaller < size and _try(search, size, smaller):
            if smaller == 2:
                _try(search, 2, 1)
            return
    while size >= 8 and _try(search, size, size // 2):
        size //= 2


def _try(search: Search, size: int, smaller: int) -> bool:
    """Try the first two readings that run in eager."""
    for count, candidate in enumerate(_readings(search.best, size, smaller)):
        if search.attempt(candidate):
            return True
        if count >= 1:
            break
    return False


def _shrink_everywhere(search: Search, dimension: int) -> None:
    """Set one dimension (the batch, say) of all inputs of the highest rank to 1."""
    rank = max(len(input_.shape) for input_ in search.best.inputs)
    candidate = search.best
    for input_ in search.best.inputs:
        if len(input_.shape) == rank:
            shape = (*input_.shape[:dimension], 1, *input_.shape[dimension + 1 :])
            candidate = candidate.with_input(resized(input_, shape))
    if candidate != search.best and _runs(search, candidate):
        search.attempt(candidate)


def _runs(search: Search, candidate: Program) -> bool:
    evaluation = evaluate(candidate)
    empty = _is_empty_somewhere(evaluation) and not _is_empty_somewhere(search.evaluation)
    return not empty and (evaluation.failed is not None) == search.refuses


def _readings(program: Program, size: int, smaller: int) -> Iterator[Program]:
    """The program with a smaller ``size``, in each reading that runs in eager, the widest first."""
    was_empty = _is_empty_somewhere(evaluate(program))
    for multiples, constants in itertools.product(_MULTIPLES, (True, False)):
        candidate = _scaled(program, size, smaller, multiples=multiples, constants=constants)
        if candidate == program or _takes_nothing(candidate):
            continue
        evaluation = evaluate(candidate)
        if evaluation.failed is None and (was_empty or not _is_empty_somewhere(evaluation)):
            yield candidate


def _is_empty_somewhere(evaluation: Evaluation) -> bool:
    """Return whether any value is a tensor without elements."""
    return any(isinstance(value, torch.Tensor) and not value.numel() for value in evaluation.values.values())


def _takes_nothing(program: Program) -> bool:
    """Return whether an index selects no element (``x[1:1]``), because a position was read as a size."""
    empty: list[slice] = []

    def look(part: object) -> None:
        if isinstance(part, tuple | list):
            for inner in part:
                look(inner)
        elif isinstance(part, slice) and isinstance(part.start, int) and isinstance(part.stop, int):
            empty.extend([part] if 0 <= part.stop <= part.start else [])

    for statement in program.statements:
        if statement.form in ("getitem", "setitem"):
            look(statement.args[1])
    return bool(empty)


def _scaled(program: Program, size: int, smaller: int, *, multiples: Multiples, constants: bool) -> Program:
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

    def changed(statement: Statement) -> Statement:
        shaping = statement.target.rpartition(".")[2] in _SHAPING or statement.form in ("getitem", "setitem")
        if not constants or not shaping:
            return statement
        return statement.map_leaves(lambda leaf: resize(leaf) if type(leaf) is int else leaf)

    resized_inputs = program.map_inputs(lambda input_: resized(input_, tuple(map(resize, input_.shape))))
    return resized_inputs.map_statements(changed)
