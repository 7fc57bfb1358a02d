"""Draws operator programs and places them in a case: as the model, or before or after its body."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from fuzzcompile.fuzz.generation.inputs import (
    alters_inputs,
    find_input_shape,
    fit_spec,
    list_activations,
    list_call_dims,
    resolve_shape,
    takes_x,
)
from fuzzcompile.fuzz.generation.spec import CaseSpec, OperatorProgram, Pen, ProgramArgument
from fuzzcompile.fuzz.operator_programs.production import (
    PRODUCTIONS,
    NothingFits,
    ProgramValue,
    Scope,
    broadcast_shapes,
)

# How many statements, fewer first.
_LENGTHS = ((1, 4), (2, 16), (3, 20), (4, 20), (5, 16), (6, 11), (7, 7), (8, 6))
# Percentage of programs drawn from so few productions, which then meet often (swarm testing, Groce et al. 2012).
_SWARMS, _SWARM = 60, 5
# A production may find no value that fits; so many are tried for each statement.
_TRIES = 3


def grow_program(pen: Pen, values: Sequence[ProgramValue], *, backward: bool, alters_inputs: bool) -> Scope:
    """The values and statements of a program over these inputs."""
    scope = Scope(pen, list(values), backward, alters_inputs)
    choices = [(production, production.weight) for production in PRODUCTIONS.values()]
    weights = [(production, weight * pen.weights.get(production.name, 100)) for production, weight in choices]
    weights = weights if any(weight for _, weight in weights) else choices
    if pen.chance(_SWARMS):
        weights = [(pen.draw_weighted(weights), 1) for _ in range(_SWARM)]
    for _ in range(pen.draw_weighted(_LENGTHS)):
        for _ in range(_TRIES):
            drawn = pen.draw_weighted(weights)
            with suppress(NothingFits):
                if drawn.produce(pen, scope):
                    scope.operators.append(drawn.name)
                    break
    return scope


def draw_activation_program(pen: Pen, value: ProgramValue, *, backward: bool, alters_inputs: bool) -> OperatorProgram:
    """A program that makes a value anew, in its shape and dtype, out of what it computes last."""
    scope = grow_program(pen, [value], backward=backward, alters_inputs=alters_inputs)
    last, name, shape, dtype = _find_last(scope), value.name, value.shape, value.dtype
    if (last.shape, last.dtype) == (shape, dtype):
        scope.say(f"{name} = {last.name}")
    elif broadcast_shapes(last.shape, shape) == shape:
        scope.say(f"{name} = {name} + {last.name}{'' if last.dtype == dtype else f'.to(torch.{dtype})'}")
    else:
        scope.say(f"{name} = {name} + {last.name}.to(torch.{dtype}).mean()")
    return OperatorProgram(prune_statements(scope.statements, name), tuple(dict.fromkeys(scope.operators)))


_NAME_PATTERN = re.compile(r"\b[a-z]\w*")


def prune_statements(statements: Sequence[str], *results: str) -> tuple[str, ...]:
    """The statements without those that make values for nothing; those that write stay."""
    read, kept = set(results), list[str]()
    for statement in reversed(statements):
        made, equals, expression = statement.partition(" = ")
        targets = set(made.split(", ")) if equals and "[" not in made else set[str]()
        if targets and not targets & read:
            continue
        read |= set(_NAME_PATTERN.findall(expression if targets else statement))
        kept.append(statement)
    return tuple(reversed(kept))


def draw_standalone_program(
    pen: Pen, values: Sequence[ProgramValue], *, backward: bool, alters_inputs: bool
) -> OperatorProgram:
    """A program that returns what no statement of it uses, and perhaps an inner value or an input too."""
    scope = grow_program(pen, values, backward=backward, alters_inputs=alters_inputs)
    uses = Counter(name for statement in scope.statements for name in set(_NAME_PATTERN.findall(statement)))
    unused = [value.name for value in reversed(scope.values[len(values) :]) if uses[value.name] == 1]
    outputs = unused or [_find_last(scope).name]
    if pen.chance(40):
        outputs.append(pen.one_of(list(reversed(scope.values))).name)
    if backward and not any(value.gradient for value in scope.values if value.name in outputs):
        outputs.append(_find_last(scope).name)
    outputs = list(dict.fromkeys(outputs))
    operators = tuple(dict.fromkeys(scope.operators))
    return OperatorProgram(prune_statements(scope.statements, *outputs), operators, tuple(outputs))


def _find_last(scope: Scope) -> ProgramValue:
    """The youngest value; one with a gradient where gradients are asked for, if there is one beside the inputs."""
    return next(value for value in reversed(scope.values) if value.gradient or not scope.backward)


# Places operator programs in a case: as the model itself, or before or after its body.

# Percentage of the cases with a body that have an operator program beside it.
_BESIDE = 35
# Shapes of a further input: they broadcast with the activation, or multiply it.
_SHAPES: tuple[tuple[str | int, ...], ...] = (
    ("B", "T", "C"), ("C",), ("T", 1), ("B", 1, "C"), (), ("C", "C"), ("C", 3), ("T", "C"),
)  # fmt: skip


def add_program(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A fitted case of a program that is empty, with a program over its activation, further inputs and parameters."""
    arguments, alters = _draw_arguments(pen, spec.dtype), alters_inputs(spec)
    x = replace(_make_value(spec, ProgramArgument("x", ("B", "T", "C"), spec.dtype)), frozen=not alters)
    values = [x, *(_make_value(spec, argument) for argument in arguments)]
    program = draw_standalone_program(pen, values, backward=spec.backward, alters_inputs=alters)
    return replace(spec, program=replace(program, arguments=arguments))


def _draw_arguments(pen: Pen, dtype: str) -> tuple[ProgramArgument, ...]:
    kinds = pen.draw_weighted([((), 45), (("y",), 25), (("weight",), 20), (("y", "weight"), 10)])
    arguments = []
    for name in kinds:
        parameter = name == "weight"
        shapes = [shape for shape in _SHAPES if "B" not in shape and "T" not in shape] if parameter else _SHAPES
        other = pen.one_of((dtype, "float32", "int64", "bool", "float64", "int32"))
        arguments.append(ProgramArgument(name, pen.one_of(shapes), dtype if parameter else other, parameter))
    return tuple(arguments)


def _make_value(spec: CaseSpec, argument: ProgramArgument) -> ProgramValue:
    """An input or parameter as a value with its sizes in every call."""
    sizes = tuple(zip(*(resolve_shape(argument.shape, dims) for dims in list_call_dims(spec)), strict=True))
    name = f"self.{argument.name}" if argument.parameter else argument.name
    gradient = spec.backward and (argument.parameter or name == "x")
    return ProgramValue(name, sizes, argument.dtype, name, gradient=gradient, frozen=argument.parameter)


def add_programs_beside(pen: Pen, spec: CaseSpec) -> CaseSpec:
    """A fitted case with an operator program before or after its body, or without."""
    wanted, place = pen.chance(_BESIDE), pen.one_of(("before", "after"))
    if not wanted or any(0 in (dims.batch, dims.sequence) for dims in list_call_dims(spec)):
        return spec
    if place == "after" and not takes_x(spec):
        place = "before"
    name = list_activations(spec)[0]
    shapes = [find_input_shape(replace(spec, dims=dims), name) for dims in list_call_dims(spec)]
    entered = ProgramValue(name, tuple(zip(*shapes, strict=True)), spec.dtype, name, gradient=spec.backward)
    alters = alters_inputs(spec) and spec.embedding is None and not spec.aliased
    program = draw_activation_program(pen, entered, backward=spec.backward, alters_inputs=alters)
    return fit_spec(replace(spec, programs=((place, program),)))
