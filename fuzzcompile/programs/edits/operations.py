"""The operation and arguments of a statement, in terms independent of its spelling."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Mapping, Sequence
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
    """An argument of a statement: its name for torch (``dim`` for ``axis``), and its keyword or position (``where``).

    ``default`` is as torch fills it in; ``has_default`` tells None from none.
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
    rest = names[-1] if names and _is_spread(statement) else "argument {}"
    given: list[tuple[str, str | int, object]] = [
        (names[place] if place < len(names) else rest.format(place), place, value)
        for place, value in enumerate(statement.args)
    ]
    return [
        StatementArgument(_SAME_ARGUMENT.get(name, name), where, value, defaults.get(name, _ABSENT))
        for name, where, value in (*given, *((key, key, value) for key, value in statement.kwargs.items()))
    ]


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
    space, _, name = target.rpartition(".")
    holder = torch.nn.functional if space == "F" else torch
    function = getattr(holder, name, None) if form == "function" else None
    if inspect.isfunction(function):
        signature = inspect.signature(function).parameters.items()
        return [[(key, _ABSENT if p.default is p.empty else p.default, None) for key, p in signature]]
    packet = getattr(torch.ops.aten, name.rstrip("_") or name, None)
    overloads = (getattr(packet, overload) for overload in packet.overloads()) if packet is not None else ()
    return [
        [(a.name, a.default_value if a.has_default_value() else _ABSENT, "Tensor" in str(a.type)) for a in arguments]
        for arguments in (overload._schema.arguments for overload in overloads)
    ]


def _fits(parameters: Sequence[_Parameter], statement: Statement) -> bool:
    names = [name for name, _, _ in parameters]
    if not {_SAME_ARGUMENT.get(key, key) for key in statement.kwargs} <= {_SAME_ARGUMENT.get(n, n) for n in names}:
        return False
    if len(statement.args) > len(names):
        return _is_spread(statement)
    tensors = zip(statement.args, parameters, strict=False)
    firsts = (
        (value[0] if isinstance(value, tuple | list) and value else value, takes) for value, (*_, takes) in tensors
    )
    return all(takes is None or takes == isinstance(first, Ref) for first, takes in firsts)
