"""Input values at the limits of kernels: scales, ties, constants, NaN and infinities."""

from __future__ import annotations

from dataclasses import replace

from fuzzcompile.generation.near_misses.operators import NearMiss, register_near_miss
from fuzzcompile.generation.tensors import VALUES


def _operator(name: str) -> NearMiss:
    return NearMiss(
        name,
        VALUES[name].summary,
        VALUES[name].weight,
        applies=lambda spec: spec.embedding is None,
        present=lambda spec: spec.values == name,
        change=lambda pen, spec: replace(spec, values=name),
        family="values",
    )


for _name, _values in VALUES.items():
    if _values.weight:
        register_near_miss(_operator(_name))
