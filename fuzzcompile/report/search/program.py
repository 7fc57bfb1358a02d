"""The operators that a program calls, read off its source."""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_OPERATORS: dict[type[ast.operator], str] = {
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide",
    ast.Pow: "pow",
    ast.Div: "div",
    ast.Mult: "mul",
    ast.Sub: "sub",
    ast.Add: "add",
}
# Functions of a case file that set it up.
_SET_UP = {"make", "run", "reference"}
# What programs call to make, move or view tensors: reports on any operator show it too.
_EVERYWHERE = {
    *(
        "Module",
        "ModuleList",
        "Parameter",
        "Sequential",
        "Tensor",
        "append",
        "arange",
        "contiguous",
        "default",
        "detach",
    ),
    *(
        "double",
        "empty",
        "eval",
        "expand",
        "flatten",
        "float",
        "full",
        "half",
        "item",
        "manual_seed",
        "no_grad",
        "ones",
    ),
    *("permute", "rand", "randint", "randn", "register_buffer", "reshape", "size", "squeeze", "tensor", "to", "train"),
    *("transpose", "unsqueeze", "view", "zeros"),
}
# Arithmetic and matrix products stand in nearly every program, so that others are more telling.
_COMMON = {"add", "bmm", "clone", "div", "linear", "matmul", "mm", "mul", "pow", "sub"}


@dataclass(frozen=True)
class Call:
    """A call of an operator, and the names of the arguments that it is given by name."""

    name: str
    keywords: tuple[str, ...] = ()


def calls_of(source: str) -> list[Call]:
    """The operators that a source calls, each once, in its order.

    Text that does not parse has none. Of a case file, only its program counts: not ``make``, and not what runs it.
    """
    try:
        module = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return []
    keywords: dict[str, dict[str, None]] = {}
    for call in (call for node in _nodes(module) for call in _calls(node)):
        keywords.setdefault(call.name, {}).update(dict.fromkeys(call.keywords))
    return [Call(name, tuple(names)) for name, names in keywords.items()]


def most_telling(calls: Iterable[Call], rewrite: str) -> list[Call]:
    """The calls that tell programs apart, those first which the name of a rewrite contains.

    What every program calls is left out, unless there is nothing else.
    """
    ordered = list(calls)
    telling = [call for call in ordered if call.name not in _EVERYWHERE] or ordered
    named = rewrite.lower().replace("_", "")
    return sorted(telling, key=lambda call: (call.name.replace("_", "") not in named, call.name in _COMMON))


def _nodes(module: ast.AST) -> Iterator[ast.AST]:
    """Every node of a program, in the order of the source; neither its set-up nor its check."""
    for child in ast.iter_child_nodes(module):
        if isinstance(child, ast.FunctionDef) and child.name in _SET_UP:
            continue
        if isinstance(module, ast.Module) and isinstance(child, ast.If):
            continue
        yield from _nodes(child)
        yield child


def _calls(node: ast.AST) -> Iterator[Call]:
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        yield Call(_OPERATORS[type(node.op)])
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)) or _is_own(node.func.value):
        return
    if not node.func.attr.startswith("__"):
        yield Call(node.func.attr, tuple(keyword.arg for keyword in node.keywords if keyword.arg))


def _is_own(value: ast.expr) -> bool:
    """Whether an attribute is one of the module itself, whose name the user chose."""
    return isinstance(value, ast.Name) and value.id == "self"
