"""The operation and arguments of a statement, in terms independent of its spelling."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from fuzzcompile.programs.ir.program import Ref, Statement
from fuzzcompile.programs.ir.tracing import OPERATORS

# Ways to write another order of dimensions: the compiler has one operator for all of them.
PERMUTATIONS = (
    "permute", "transpose", "swapaxes", "swapdims", "movedim", "moveaxis", "t", "mT", "T", "adjoint", "mH", "H",
)  # fmt: skip
_ONE_NAME = {
    **dict.fromkeys(PERMUTATIONS, "permute"), "truediv": "div", "divide": "div", "true_divide": "div",
    "multiply": "mul", "subtract": "sub", "concat": "cat", "concatenate": "cat", "iadd": "add", "isub": "sub",
    "imul": "mul", "itruediv": "div", "ipow": "pow", "_softmax": "softmax", "_log_softmax": "log_softmax",
    **dict.fromkeys(("float", "double", "half", "bfloat16", "int", "long", "bool", "type"), "to"),
}  # fmt: skip
_SAME_ARGUMENT = {"axis": "dim", "axes": "dims", "keepdims": "keepdim", "train": "training", "input": "self"}
# Methods that take numbers one by one where functions take a tuple.
_SPREAD = ("permute", "view", "reshape", "expand", "repeat", "flip", "tile")
_OPERATIONS = {sign: name for name, sign in reversed(OPERATORS.items())}
_ABSENT = object()


@dataclass(frozen=True)
class StatementArgument:
    """An argument of a statement.

    Attributes:
        name: by which torch knows it; ``dim`` for ``axis``.
        where: its keyword or position.
        value: as it is given.
        default: as torch fills it in; ``has_default`` tells None from none.
    """

    name: str
    where: str | int
    value: object
    default: object = _ABSENT

    @property
    def has_default(self) -> bool:
        """Return whether the argument can be left out."""
        return self.default is not _ABSENT

    @property
    def is_dimension(self) -> bool:
        """Return whether it names dimensions."""
        return self.name in ("dim", "dims", "dim0", "dim1", "start_dim", "end_dim")


def name_operation(statement: Statement) -> str:
    """The operation: ``softmax`` for ``F.softmax``, ``torch.softmax`` and ``.softmax()``, ``add`` for ``+``."""
    if statement.form == "operator":
        name = _OPERATIONS.get(statement.target, statement.target)
    else:
        name = statement.target.rpartition(".")[2]
    if statement.form != "attribute" and name.endswith("_") and not name.endswith("__"):
        name = name.rstrip("_")
    return _ONE_NAME.get(name, name)


def list_arguments(statement: Statement) -> list[StatementArgument]:
    """The arguments that are written into the statement, values of the program among them."""
    names, defaults = _parameters(statement)
    given: list[StatementArgument] = []
    for place, value in enumerate(statement.args):
        name = (
            names[place]
            if place < len(names)
            else names[-1]
            if names and _is_spread(statement)
            else f"argument {place}"
        )
        given.append(StatementArgument(_one(name), place, value, defaults.get(name, _ABSENT)))
    given += [
        StatementArgument(_one(key), key, value, defaults.get(key, _ABSENT)) for key, value in statement.kwargs.items()
    ]
    return given


def _one(name: str) -> str:
    return _SAME_ARGUMENT.get(name, name)


def _is_spread(statement: Statement) -> bool:
    return statement.form == "method" and statement.target in _SPREAD


def _parameters(statement: Statement) -> tuple[list[str], Mapping[str, object]]:
    """Names of the parameters in order, and the defaults of those that have one."""
    if statement.form == "operator":
        return ["self", "other"], {}
    if statement.form in ("getitem", "setitem", "attribute", "enter", "exit"):
        return ["self", "index", "value"], {}
    for parameters in _find_overloads(statement.form, statement.target):
        if _fits(parameters, statement):
            names = [name for name, _, _ in parameters]
            return names, {name: default for name, default, _ in parameters if default is not _ABSENT}
    return [], {}


# Name, default and whether it takes a tensor; None where that is not declared.
_Parameter = tuple[str, object, bool | None]


@functools.cache
def _find_overloads(form: str, target: str) -> Sequence[Sequence[_Parameter]]:
    """Return the parameters of each overload of a function or method; for a Python function, its own signature."""
    space, _, name = target.rpartition(".")
    holder = torch.nn.functional if space == "F" else torch
    function = getattr(holder, name, None) if form == "function" else None
    if inspect.isfunction(function):
        return [list(_of_python(function))]
    packet = getattr(torch.ops.aten, name.rstrip("_") or name, None)
    overloads = (getattr(packet, overload) for overload in packet.overloads()) if packet is not None else ()
    return [[_of_schema(argument) for argument in overload._schema.arguments] for overload in overloads]


def _of_python(function: object) -> Iterator[_Parameter]:
    assert callable(function)
    for name, parameter in inspect.signature(function).parameters.items():
        default = _ABSENT if parameter.default is inspect.Parameter.empty else parameter.default
        yield name, default, None


def _of_schema(argument: torch._C.Argument) -> _Parameter:
    default = argument.default_value if argument.has_default_value() else _ABSENT
    return argument.name, default, "Tensor" in str(argument.type)


def _fits(parameters: Sequence[_Parameter], statement: Statement) -> bool:
    """Return whether the statement can be a call of something with these parameters."""
    names = [name for name, _, _ in parameters]
    if not set(map(_one, statement.kwargs)) <= set(map(_one, names)):
        return False
    if len(statement.args) > len(names):
        return _is_spread(statement)
    tensors = zip(statement.args, parameters, strict=False)
    return all(takes is None or takes == _holds_tensor(value) for value, (_, _, takes) in tensors)


def _holds_tensor(value: object) -> bool:
    first = value[0] if isinstance(value, tuple | list) and value else value
    return isinstance(first, Ref)
