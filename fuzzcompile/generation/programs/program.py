"""Draws whole programs: over an activation that keeps its form, or on their own, with several outputs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from fuzzcompile.generation.drawing import Pen
from fuzzcompile.generation.programs import PRODUCTIONS
from fuzzcompile.generation.programs.scope import Scope
from fuzzcompile.generation.programs.values import Value, broadcast
from fuzzcompile.generation.spec import Program

# How many statements, fewer first.
_LENGTHS = ((1, 4), (2, 16), (3, 20), (4, 20), (5, 16), (6, 11), (7, 7), (8, 6))
# Percentage of programs drawn from so few productions, which then meet often (swarm testing, Groce et al. 2012).
_SWARMS, _SWARM = 60, 5
# A production may find no value that fits; so many are tried for each statement.
_TRIES = 3


def grown(pen: Pen, values: Sequence[Value], *, backward: bool, alters_inputs: bool) -> Scope:
    """The values and statements of a program over these inputs."""
    scope = Scope(pen, list(values), backward, alters_inputs)
    choices = [(production, production.weight) for production in PRODUCTIONS.values()]
    weights = [(production, weight * pen.weights.get(production.name, 100)) for production, weight in choices]
    weights = weights if any(weight for _, weight in weights) else choices
    if pen.chance(_SWARMS):
        weights = [(pen.weighted(weights), 1) for _ in range(_SWARM)]
    for _ in range(pen.weighted(_LENGTHS)):
        for _ in range(_TRIES):
            drawn = pen.weighted(weights)
            if drawn.produce(pen, scope):
                scope.operators.append(drawn.name)
                break
    return scope


def over_activation(pen: Pen, value: Value, *, backward: bool, alters_inputs: bool) -> Program:
    """A program that makes a value anew, in its shape and dtype, out of what it computes last."""
    scope = grown(pen, [value], backward=backward, alters_inputs=alters_inputs)
    last, name, shape, dtype = _last(scope), value.name, value.shape, value.dtype
    if (last.shape, last.dtype) == (shape, dtype):
        scope.say(f"{name} = {last.name}")
    elif broadcast(last.shape, shape) == shape:
        scope.say(f"{name} = {name} + {last.name}{'' if last.dtype == dtype else f'.to(torch.{dtype})'}")
    else:
        scope.say(f"{name} = {name} + {last.name}.to(torch.{dtype}).mean()")
    return Program(pruned(scope.statements, name), tuple(dict.fromkeys(scope.operators)))


_NAMES = re.compile(r"\b[a-z]\w*")


def pruned(statements: Sequence[str], *results: str) -> tuple[str, ...]:
    """The statements without those that make values for nothing; those that write stay."""
    read, kept = set(results), list[str]()
    for statement in reversed(statements):
        made, equals, expression = statement.partition(" = ")
        targets = set(made.split(", ")) if equals and "[" not in made else set[str]()
        if targets and not targets & read:
            continue
        read |= set(_NAMES.findall(expression if targets else statement))
        kept.append(statement)
    return tuple(reversed(kept))


def on_its_own(pen: Pen, values: Sequence[Value], *, backward: bool, alters_inputs: bool) -> Program:
    """A program that returns what no statement of it uses, and perhaps an inner value or an input too."""
    scope = grown(pen, values, backward=backward, alters_inputs=alters_inputs)
    outputs = [value.name for value in _unused(scope, len(values))] or [_last(scope).name]
    if pen.chance(40):
        outputs.append(pen.one_of(list(reversed(scope.values))).name)
    if backward and not any(value.gradient for value in scope.values if value.name in outputs):
        outputs.append(_last(scope).name)
    outputs = list(dict.fromkeys(outputs))
    return Program(pruned(scope.statements, *outputs), tuple(dict.fromkeys(scope.operators)), tuple(outputs))


def _unused(scope: Scope, given: int) -> list[Value]:
    """The values beside the ``given`` ones that no other statement reads, the youngest first."""
    uses = Counter(name for statement in scope.statements for name in set(_NAMES.findall(statement)))
    return [value for value in reversed(scope.values[given:]) if uses[value.name] == 1]


def _last(scope: Scope) -> Value:
    """The youngest value; one with a gradient where gradients are asked for, if there is one beside the inputs."""
    made = [value for value in reversed(scope.values) if value.gradient or not scope.backward]
    return made[0]
