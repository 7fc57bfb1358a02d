"""Input values at the limits of kernels: scales, ties, constants, NaN and infinities."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.near_misses.operators import NearMiss, register_near_miss
from fuzzcompile.generation.spec import CaseSpec
from fuzzcompile.generation.tensors import VALUES


def _operator(name: str) -> NearMiss:
    def change(pen: Pen, spec: CaseSpec) -> CaseSpec:
        return replace(spec, values=name)

    return NearMiss(
        name,
        VALUES[name].summary,
        VALUES[name].weight,
        applies=lambda spec: spec.embedding is None,
        present=lambda spec: spec.values == name,
        change=change,
        family="values",
    )


for _name, _values in VALUES.items():
    if _values.weight:
        register_near_miss(_operator(_name))
