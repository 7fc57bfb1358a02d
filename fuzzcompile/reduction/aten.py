"""ATen operators in public torch code: ``aten.mul.Tensor`` is ``*``, ``aten.view.default`` a method."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence

import torch

from fuzzcompile.reduction.program import Form

Call = tuple[Form, str, Sequence[object], Mapping[str, object]]
_BINARY = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "mm": "@", "bmm": "@", "matmul": "@",
           "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=", "bitwise_and": "&",
           "bitwise_or": "|"}  # fmt: skip
_UNARY = {"neg": "-x", "bitwise_not": "~x", "logical_not": "~x"}
_RENAMED = {"_softmax": "softmax", "_log_softmax": "log_softmax", "_unsafe_view": "reshape", "alias": "view_as"}
# Written as methods, though torch has functions of most of these names too.
_METHODS = (
    "view", "permute", "expand", "reshape", "transpose", "unsqueeze", "squeeze", "select", "t", "clone", "detach",
    "sum", "contiguous", "new_zeros", "new_ones", "new_full", "new_empty", "copy_", "as_strided", "masked_fill",
    "flatten", "diagonal", "unfold",
)  # fmt: skip
# Arguments that are redundant on one device.
_PLAIN = ("layout", "device", "pin_memory", "memory_format", "implicit", "non_blocking")
_END = sys.maxsize


def public_form(operator: torch._ops.OpOverload, args: Sequence[object], kwargs: Mapping[str, object]) -> Call:
    """The call of an operator by torch's public names; with an empty name if it has none."""
    name = operator._schema.name.partition("::")[2]
    kept = {key: value for key, value in kwargs.items() if key not in _PLAIN and value is not None}
    if operator.namespace == "prims":
        return _prim(name, args, kept)
    if operator.namespace != "aten":
        return "function", "", args, kwargs
    if name in _BINARY and len(args) == 2 and not kept:
        return "operator", _BINARY[name], args, {}
    if name in _UNARY and len(args) == 1:
        return "operator", _UNARY[name], args, {}
    if name in ("_softmax", "_log_softmax"):
        return "function", f"torch.{_RENAMED[name]}", args[:2], {}
    if name == "alias":
        return "method", "view_as", (args[0], args[0]), {}
    if name == "_to_copy":
        return "method", "to", (args[0], *kept.values()), {}
    if name == "sym_size":
        return "method", "size", args, {}
    if name == "slice":
        return _slice(args)
    indices = args[1] if len(args) > 1 and isinstance(args[1], Sequence) else ()
    if name == "index" and len(args) == 2:
        taken = tuple(slice(None) if part is None else part for part in indices)
        return "getitem", "getitem", (args[0], taken if len(taken) > 1 else taken[0]), {}
    if name.startswith("index_put") and None in indices:  # which torch.index_put does not take
        return "function", "", args, kept
    name = _RENAMED.get(name, name)
    if name in _METHODS:
        return "method", name, args, kept
    if callable(getattr(torch, name, None)):
        return "function", f"torch.{name}", args, kept
    if callable(getattr(torch.nn.functional, name, None)):
        return "function", f"F.{name}", args, kept
    return ("method", name, args, kept) if hasattr(torch.Tensor, name) else ("function", "", args, kwargs)


def _prim(name: str, args: Sequence[object], kept: Mapping[str, object]) -> Call:
    if name == "convert_element_type":
        return "method", "to", args, {}
    if name == "fma" and len(args) == 3:
        return "function", "torch.addcmul", (args[2], *args[:2]), {}
    start, step = kept.get("start", 0), kept.get("step", 1)
    if name == "iota" and isinstance(start, int) and isinstance(step, int):
        dtype = {} if kept.get("dtype") in (None, torch.int64) else {"dtype": kept["dtype"]}
        if (start, step) == (0, 1):
            return "function", "torch.arange", args[:1], dtype
        if isinstance(args[0], int):
            return "function", "torch.arange", (start, start + args[0] * step, step), dtype
    return "function", "", args, kept


def _slice(args: Sequence[object]) -> Call:
    tensor, dimension, start, end, step = [*args, None, None, None, None][:5]
    dimension = dimension or 0
    if not isinstance(dimension, int) or dimension < 0:
        return "function", "", args, {}
    end = None if isinstance(end, int) and end >= _END else end
    part = slice(start or None, end, None if step == 1 else step)
    index = (*(slice(None) for _ in range(dimension)), part)
    return "getitem", "getitem", (tensor, index if len(index) > 1 else part), {}
