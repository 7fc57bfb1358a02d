"""Calls as lines of Python."""

from __future__ import annotations

import builtins
import math
import operator
from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

from fuzzcompile.compiler.programs.expressions import Unwritable
from fuzzcompile.compiler.programs.filling import Filled
from fuzzcompile.compiler.programs.skeleton import Call, Hole, Made
from fuzzcompile.generation.patterned import Operand

_SIGNS = {
    operator.add: "+", operator.sub: "-", operator.mul: "*", operator.truediv: "/", operator.floordiv: "//",
    operator.matmul: "@", operator.pow: "**", operator.mod: "%", operator.and_: "&", operator.or_: "|",
    operator.eq: "==", operator.ne: "!=", operator.lt: "<", operator.le: "<=", operator.gt: ">", operator.ge: ">=",
    operator.iadd: "+", operator.imul: "*",
}  # fmt: skip


def statements(filled: Filled) -> Iterator[str]:
    """One assignment a call; results are named ``t0``, ``t1`` and so on.

    Raises:
        Unwritable: a function has no name under torch.
    """
    for index, call in enumerate(filled.skeleton.calls):
        yield f"t{index} = {_call(call, filled)}"


def operands(filled: Filled) -> list[Operand]:
    """The operands of the program, in the order of their names, each once."""
    found: dict[str, Operand] = {}

    def collect(value: object) -> None:
        if isinstance(value, Operand):
            found[value.name] = value
        elif isinstance(value, (list, tuple)):
            for inner in value:
                collect(inner)

    for call in filled.skeleton.calls:
        for hole in call.holes():
            collect(filled.values[hole])
    return sorted(found.values(), key=lambda operand: int(operand.name[1:]))


def _call(call: Call, filled: Filled) -> str:
    args = [_value(argument, filled) for argument in call.args]
    kwargs = [f"{name}={_value(value, filled)}" for name, value in call.kwargs.items()]
    if isinstance(call.target, str):
        return f"{args[0]}.{call.target}({', '.join([*args[1:], *kwargs])})"
    if call.target is operator.getitem:
        return f"{args[0]}[{args[1]}]"
    if call.target in _SIGNS and len(args) == 2:
        return f"{args[0]} {_SIGNS[call.target]} {args[1]}"
    return f"{function_name(call.target)}({', '.join([*args, *kwargs])})"


def _value(value: Any, filled: Filled) -> str:
    if isinstance(value, Hole):
        return _value(filled.values[value], filled)
    if isinstance(value, Made):
        return f"t{value.index}"
    if isinstance(value, Operand):
        return value.name
    if isinstance(value, (list, tuple)):
        inner = ", ".join(_value(part, filled) for part in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    return literal(value)


def literal(value: Any) -> str:
    """A value as an expression.

    Raises:
        Unwritable: it has none.
    """
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    if isinstance(value, torch.device):
        return f'torch.device("{value}")'
    if value is None or isinstance(value, (bool, int, float, str)):
        return repr(value)
    if isinstance(value, (torch.dtype, torch.layout, torch.memory_format)):
        return str(value)
    if value is Ellipsis:
        return "..."
    if isinstance(value, slice):
        return f"slice({value.start}, {value.stop}, {value.step})"
    if isinstance(value, complex):
        return repr(value)
    raise Unwritable(f"a {type(value).__name__} has no literal")


def function_name(target: Any) -> str:
    """An expression that names a function where ``torch`` and ``F`` are known.

    Raises:
        Unwritable: it is none of torch's.
    """
    if isinstance(target, torch._ops.OpOverload):
        namespace, _, name = target._schema.name.partition("::")
        return f"torch.ops.{namespace}.{name}.{target._overloadname}"
    if isinstance(target, torch._ops.OpOverloadPacket):
        return f"torch.ops.{target._qualified_op_name.replace('::', '.')}"
    name = getattr(target, "__name__", "")
    for owner, prefix in ((torch, "torch."), (functional, "F."), (builtins, "")):
        if getattr(owner, name, None) is target:
            return f"{prefix}{name}"
    if getattr(torch.functional, name, None) is target:
        return f"torch.functional.{name}"
    module = str(getattr(target, "__module__", "") or "")
    for prefix in ("torch._C._nn", "torch.special", "torch.linalg", "torch.fft"):
        owner = _resolve(prefix)
        if getattr(owner, name, None) is target:
            return f"{prefix}.{name}"
    raise Unwritable(f"{module}.{name} is no function of torch")


def _resolve(path: str) -> Any:
    value: Any = torch
    for part in path.split(".")[1:]:
        value = getattr(value, part, None)
    return value
