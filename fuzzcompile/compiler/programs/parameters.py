"""What a call takes: names and types of its arguments, from the operator's schema or the function's signature."""

from __future__ import annotations

import inspect
import random
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from fuzzcompile.compiler.programs.skeleton import Call, Hole


@dataclass(frozen=True)
class Parameter:
    """One parameter: its type as a schema spells it (empty if unknown), and whether it may be left out."""

    name: str
    kind: str
    optional: bool
    keyword: bool = False


def parameters_of(target: object, given: int | None, rng: random.Random) -> list[Parameter]:
    """The parameters of an operator, function or method, in order; those of any overload that takes ``given`` of them.

    A function of torch without a signature of its own takes what ATen's operator of that name takes.
    """
    if isinstance(target, torch._ops.OpOverload):
        return list(_of_schema(target))
    overloads = [list(_of_schema(overload)) for overload in _overloads(target)]
    fitting = [parameters for parameters in overloads if _takes(parameters, given)]
    if overloads:
        return rng.choice(fitting or overloads)
    try:
        return list(_of_signature(inspect.signature(target))) if callable(target) else []
    except (TypeError, ValueError):
        return []


def annotate(call: Call, rng: random.Random) -> None:
    """Give the holes of a call the names and types of the parameters that they stand for; add those that must be."""
    parameters = parameters_of(call.target, None if call.anything else len(call.args), rng)
    if call.anything:
        _give_arguments(call, parameters, rng)
        return
    by_name = {parameter.name: parameter for parameter in parameters}
    pairs = [*zip(call.args, parameters, strict=False)]
    pairs += [(value, by_name[name]) for name, value in call.kwargs.items() if name in by_name]
    for value, parameter in pairs:
        for inner, kind in _typed(value, parameter.kind):
            inner.kind = inner.kind or kind
            inner.parameter = inner.parameter or _quantised(call.target) + parameter.name
            inner.name = inner.name if _says(inner.name) else parameter.name


def _give_arguments(call: Call, parameters: list[Parameter], rng: random.Random) -> None:
    """Holes for what a call needs and, in half of the calls, for some of what it may leave out."""
    positional = [parameter for parameter in parameters if not parameter.keyword]
    needed = sum(not parameter.optional for parameter in positional)
    given = positional[: needed if rng.random() < 0.5 else rng.randint(needed, len(positional))]
    call.args = tuple(Hole(p.name, p.kind) for p in given)
    call.kwargs = {p.name: Hole(p.name, p.kind) for p in parameters if p.keyword and not p.optional}
    call.anything = False


def _typed(value: object, kind: str) -> Iterator[tuple[Hole, str]]:
    if isinstance(value, Hole):
        yield value, kind
    elif isinstance(value, (list, tuple)):
        element = kind.removeprefix("Optional[").removeprefix("List[").rstrip("]")
        for inner in value:
            yield from _typed(inner, element)


def _quantised(target: object) -> str:
    """What stands before the names of the parameters of (de)quantising operators, whose arguments belong together."""
    name = target._schema.name if isinstance(target, torch._ops.OpOverload) else ""
    return next((f"{what}." for what in ("dequantize", "quantize") if f"::{what}_" in name), "")


def _says(name: str) -> bool:
    """Whether a pattern's own name for an argument may say what it is."""
    return bool(name) and name != "arg"


def _of_schema(overload: torch._ops.OpOverload) -> Iterator[Parameter]:
    for argument in overload._schema.arguments:
        kind = str(getattr(argument, "real_type", argument.type))
        yield Parameter(argument.name, kind, argument.has_default_value(), argument.kwarg_only)


def _of_signature(signature: inspect.Signature) -> Iterator[Parameter]:
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        kind = _of_annotation(str(parameter.annotation), parameter.default)
        yield Parameter(name, kind, parameter.default is not parameter.empty, parameter.kind is parameter.KEYWORD_ONLY)


def _of_annotation(annotation: str, default: object) -> str:
    if "Tensor" in annotation:
        return "Optional[Tensor]" if "None" in annotation or "Optional" in annotation else "Tensor"
    for kind in ("bool", "float", "int", "str"):
        if kind in annotation:
            return kind
    return type(default).__name__ if isinstance(default, (bool, int, float, str)) else ""


def _overloads(target: object) -> list[torch._ops.OpOverload]:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    module = "" if isinstance(target, str) else str(getattr(target, "__module__", "") or "")
    if isinstance(target, torch._ops.OpOverloadPacket):
        return _of_packet(target)
    if not name or module.startswith(("torch.nn", "_operator")):
        return []
    packet = getattr(torch.ops.aten, name, None)
    return [] if packet is None else [overload for overload in _of_packet(packet) if "out" not in str(overload)]


def _of_packet(packet: torch._ops.OpOverloadPacket) -> list[torch._ops.OpOverload]:
    return [getattr(packet, name) for name in packet._overload_names]


def _takes(parameters: list[Parameter], given: int | None) -> bool:
    needed = [parameter for parameter in parameters if not parameter.optional]
    if any(parameter.name in ("out", "generator") or "Dimname" in parameter.kind for parameter in parameters):
        return False
    return given is None or len(needed) <= given <= len(parameters)
