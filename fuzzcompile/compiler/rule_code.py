"""The code behind a rule of the compiler: handler, search function, replacement, checks, decomposition, lowering."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from fuzzcompile.compiler import labels
from fuzzcompile.compiler.catalogue import Known

_DEEPEST = 6
# The attributes of a pattern's entry that hold code, and those of a pattern that hold others.
_CODE = ("handler", "extra_check", "normalize_args")
_INNER = ("args", "kwargs", "outputs", "pattern", "inner_pattern")

Alternatives = tuple[str, ...]


def code_of(rule: Known) -> list[tuple[str, int]]:
    """File (relative to the folder that holds torch) and first line of each function that makes up the rule."""
    codes = {code for part in rule.made_of for code in _codes(part, _DEEPEST)}
    return sorted({(labels.shown_file(code.co_filename), code.co_firstlineno) for code in codes})


def operators_of(rule: Known) -> list[Alternatives]:
    """The operators that the patterns of a rule look for: for each place in the first pattern, the alternatives."""
    for entry in rule.made_of:
        listed = list(dict.fromkeys(_targets(getattr(entry, "pattern", None))))
        if listed:
            return listed
    return []


def operator_name(target: object) -> str:
    """The name of what a node of a graph calls: ``aten.mm.default``, ``torch.cat``, ``.view()`` for a method."""
    if isinstance(target, str):
        return f".{target}()"
    if isinstance(target, functools.partial):
        return operator_name(target.func)
    if hasattr(target, "_overloadname") or hasattr(target, "_qualified_op_name"):
        return str(target)
    module, name = getattr(target, "__module__", None) or "", getattr(target, "__name__", type(target).__name__)
    return f"{module.removeprefix('_')}.{name}" if module else name


def _targets(pattern: object) -> Iterator[Alternatives]:
    functions = getattr(pattern, "fns", None)
    if isinstance(functions, (list, tuple)):
        yield tuple(dict.fromkeys(map(operator_name, functions)))
    for name in _INNER:
        yield from _inside(getattr(pattern, name, None))


def _inside(value: object) -> Iterator[Alternatives]:
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _inside(part)
    elif isinstance(value, dict):
        yield from _inside(list(value.values()))
    elif hasattr(type(value), "pattern_eq"):
        yield from _targets(value)


def _codes(part: object, depth: int) -> Iterator[types.CodeType]:
    """The code of a function, of what its closure holds, of an entry's parts, or of a class's methods."""
    if depth <= 0:
        return
    if isinstance(part, types.FunctionType):
        yield part.__code__
        held = [cell.cell_contents for cell in part.__closure__ or () if _is_filled(cell)]
        yield from _codes_of([*held, getattr(part, "__wrapped__", None)], depth)
    elif isinstance(part, functools.partial):
        yield from _codes_of([part.func, *part.args, *part.keywords.values()], depth)
    elif isinstance(part, types.MethodType):
        yield from _codes_of([part.__func__, type(part.__self__)], depth)
    elif inspect.isclass(part):
        own = (base for base in part.__mro__ if base.__module__.startswith("torch."))
        yield from _codes_of([value for base in own for value in vars(base).values()], depth)
    elif any(hasattr(part, name) for name in _CODE):
        yield from _codes_of([getattr(part, name, None) for name in _CODE], depth)
    elif type(part).__module__.startswith("torch._inductor.fx_passes") and callable(part):
        yield from _codes(type(part), depth)


def _codes_of(parts: list[Any], depth: int) -> Iterator[types.CodeType]:
    for part in parts:
        if isinstance(part, (list, tuple)):
            yield from _codes_of(list(part)[:32], depth - 1)
        else:
            yield from _codes(part, depth - 1)


def _is_filled(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False
