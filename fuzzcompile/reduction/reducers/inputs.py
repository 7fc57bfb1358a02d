"""Reduce inputs: plain values, plain strides, no gradients, no duplicates."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzcompile.reduction.filling import contiguous, fills, is_contiguous
from fuzzcompile.reduction.program import Fill, Input, Program, Ref
from fuzzcompile.reduction.search import Search


def plain_parameters(search: Search) -> None:
    """Turn parameters into plain inputs, if possible without gradients."""
    function = replace(search.best, as_module=False).map_inputs(lambda input_: replace(input_, parameter=False))
    if not search.attempt(function.without_gradients()):
        search.attempt(function)


def merge_equal(search: Search) -> None:
    """Merge inputs that hold the same values."""
    for index, left in enumerate(search.best.inputs):
        for right in search.best.inputs[index + 1 :]:
            if _same(left, right):
                search.attempt(search.best.substituted(right.name, Ref(left.name)))


def _same(left: Input, right: Input) -> bool:
    if (left.shape, left.stride, left.dtype, left.fill) != (right.shape, right.stride, right.dtype, right.fill):
        return False
    if left.fill != "recorded":
        return left.fill in ("zeros", "ones", "arange")
    return left.values is not None and right.values is not None and torch.equal(left.values, right.values)


def plain_strides(search: Search) -> None:
    """Give inputs contiguous strides: all together, then one by one."""
    odd = [input_.name for input_ in search.best.inputs if not is_contiguous(input_)]
    if odd and not search.attempt(_relaid(search.best, odd)) and len(odd) > 1:
        for name in odd:
            search.attempt(_relaid(search.best, [name]))


def _relaid(program: Program, names: list[str]) -> Program:
    return program.map_inputs(lambda input_: contiguous(input_) if input_.name in names else input_)


def random_values(search: Search) -> None:
    """Replace all recorded values by random ones, in one attempt."""
    if search.best.is_recorded:
        search.attempt(_filled_all(search.best, "randn"))


def plain_values(search: Search) -> None:
    """Replace recorded values by calls of torch: all together, then each by the plainest call that works."""
    recorded = [input_.name for input_ in search.best.inputs if input_.fill == "recorded"]
    if not recorded:
        return
    for floating in ("randn", "rand"):
        if search.attempt(_filled_all(search.best, floating)):
            return
    for name in recorded:
        input_ = search.best.input(name)
        if input_ is None:
            continue
        for fill in fills(input_):
            if search.attempt(_filled(search.best, name, fill)):
                break


def _filled_all(program: Program, floating: Fill) -> Program:
    for input_ in program.inputs:
        if input_.fill == "recorded":
            choices = fills(input_)
            whole = "randint" if "randint" in choices else choices[0]
            program = _filled(program, input_.name, floating if floating in choices else whole)
    return program


def _filled(program: Program, name: str, fill: Fill) -> Program:
    def put(input_: Input) -> Input:
        if input_.name != name:
            return input_
        return replace(contiguous(input_) if fill == "literal" else input_, fill=fill)

    return program.map_inputs(put)
