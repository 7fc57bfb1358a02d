"""Places operator programs in a case: as the model itself, or before or after its body."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.fitting import alters_inputs, fitted
from fuzzcompile.generation.inputs import calls, resolved, shape_of_activation, takes_x
from fuzzcompile.generation.programs.program import on_its_own, over_activation
from fuzzcompile.generation.programs.values import Value
from fuzzcompile.generation.spec import Argument, CaseSpec

# Percentage of the cases with a body that have an operator program beside it.
_BESIDE = 35
# Shapes of a further input: they broadcast with the activation, or multiply it.
_SHAPES: tuple[tuple[str | int, ...], ...] = (
    ("B", "T", "C"), ("C",), ("T", 1), ("B", 1, "C"), (), ("C", "C"), ("C", 3), ("T", "C"),
)  # fmt: skip


def with_program(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A fitted case of a program that is empty, with a program over its activation, further inputs and parameters."""
    arguments = _arguments(pen, spec.dtype)
    values = [_value(spec, "x", "BTC", spec.dtype)]
    values += [
        _value(spec, f"self.{argument.name}" if argument.parameter else argument.name, argument.shape, argument.dtype)
        for argument in arguments
    ]
    values[0] = replace(values[0], frozen=not alters_inputs(spec))
    program = on_its_own(pen, values, backward=spec.backward, alters_inputs=alters_inputs(spec))
    return replace(spec, program=replace(program, arguments=arguments))


def _arguments(pen: Pen, dtype: str) -> tuple[Argument, ...]:
    """None, an input, a parameter, or both."""
    kinds = pen.weighted([((), 45), (("y",), 25), (("weight",), 20), (("y", "weight"), 10)])
    arguments = []
    for name in kinds:
        parameter = name == "weight"
        shapes = [shape for shape in _SHAPES if "B" not in shape and "T" not in shape] if parameter else _SHAPES
        other = pen.one_of((dtype, "float32", "int64", "bool", "float64", "int32"))
        arguments.append(Argument(name, pen.one_of(shapes), dtype if parameter else other, parameter))
    return tuple(arguments)


def _value(spec: CaseSpec, name: str, shape: Sequence[str | int], dtype: str) -> Value:
    """An input or parameter as a value with its sizes in every call."""
    sizes = tuple(zip(*(resolved(shape, dims) for dims in calls(spec)), strict=True))
    frozen = name.startswith("self.")
    return Value(name, sizes, dtype, name, gradient=spec.backward and (frozen or name == "x"), frozen=frozen)


def with_programs_beside(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A fitted case with an operator program before or after its body, or without."""
    wanted, place = pen.chance(_BESIDE), pen.one_of(("before", "after"))
    if not wanted or any(0 in (dims.batch, dims.sequence) for dims in calls(spec)):
        return spec
    if place == "after" and not takes_x(spec):
        place = "before"
    name = "x" if takes_x(spec) else "q"
    shapes = [shape_of_activation(replace(spec, dims=dims)) for dims in calls(spec)]
    entered = Value(name, tuple(zip(*shapes, strict=True)), spec.dtype, name, gradient=spec.backward)
    alters = alters_inputs(spec) and spec.embedding is None and not spec.aliased
    program = over_activation(pen, entered, backward=spec.backward, alters_inputs=alters)
    return fitted(replace(spec, programs=((place, program),)))
