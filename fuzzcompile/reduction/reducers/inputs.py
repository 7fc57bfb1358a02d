"""Inputs: plain values, plain strides, no gradients, each there once."""

from __future__ import annotations

from dataclasses import replace

import torch

from fuzzcompile.reduction.filling import contiguous, fills, is_contiguous
from fuzzcompile.reduction.program import Fill, Input, Program, Ref
from fuzzcompile.reduction.search import Search


def plain_parameters(search: Search) -> None:
    """Parameters become inputs like any other, and inputs ask for no gradient."""
    inputs = tuple(replace(one, parameter=False, requires_grad=False) for one in search.best.inputs)
    if search.attempt(replace(search.best, inputs=inputs, as_module=False)):
        return
    inputs = tuple(replace(one, parameter=False) for one in search.best.inputs)
    search.attempt(replace(search.best, inputs=inputs, as_module=False))


def merge_equal(search: Search) -> None:
    """Inputs that hold the same become one."""
    for index, one in enumerate(search.best.inputs):
        for other in search.best.inputs[index + 1 :]:
            if _same(one, other):
                search.attempt(search.best.substituted(other.name, Ref(one.name)))


def _same(one: Input, other: Input) -> bool:
    if (one.shape, one.stride, one.dtype, one.fill) != (other.shape, other.stride, other.dtype, other.fill):
        return False
    if one.fill != "recorded":
        return one.fill in ("zeros", "ones", "arange")
    return one.values is not None and other.values is not None and torch.equal(one.values, other.values)


def plain_strides(search: Search) -> None:
    """Inputs laid out afresh: all at once, then each."""
    odd = [one.name for one in search.best.inputs if not is_contiguous(one)]
    if odd and not search.attempt(_relaid(search.best, odd)) and len(odd) > 1:
        for name in odd:
            search.attempt(_relaid(search.best, [name]))


def _relaid(program: Program, names: list[str]) -> Program:
    return replace(program, inputs=tuple(contiguous(o) if o.name in names else o for o in program.inputs))


def random_values(search: Search) -> None:
    """Recorded values as random ones, in one attempt: what has none left can be written down."""
    if search.best.is_recorded:
        search.attempt(_filled_all(search.best, "randn"))


def plain_values(search: Search) -> None:
    """Recorded values written as a call of torch: all at once, then each by the plainest call that holds."""
    recorded = [one.name for one in search.best.inputs if one.fill == "recorded"]
    if not recorded:
        return
    for floating in ("randn", "rand"):
        if search.attempt(_filled_all(search.best, floating)):
            return
    # What stays recorded need not hold up the others.
    for name in recorded:
        one = search.best.input(name)
        if one is None:
            continue
        for fill in fills(one):
            if search.attempt(_filled(search.best, name, fill)):
                break


def _filled_all(program: Program, floating: Fill) -> Program:
    for one in program.inputs:
        if one.fill == "recorded":
            found = fills(one)
            whole = "randint" if "randint" in found else found[0]
            program = _filled(program, one.name, floating if floating in found else whole)
    return program


def _filled(program: Program, name: str, fill: Fill) -> Program:
    def put(one: Input) -> Input:
        if one.name != name:
            return one
        return replace(contiguous(one) if fill == "literal" else one, fill=fill)

    return replace(program, inputs=tuple(put(one) for one in program.inputs))
