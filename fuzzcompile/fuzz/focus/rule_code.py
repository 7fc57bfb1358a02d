"""The code behind a rule of the compiler: handler, search function, replacement, checks, decomposition, lowering."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Iterator
from typing import Any

from torch.utils import _pytree as pytree

from fuzzcompile.compiler.rule_catalogue import KnownRule, get_target_name
from fuzzcompile.compiler.watch import rule_labels

_DEEPEST = 6
# Equal to a cell of a closure that holds nothing.
_EMPTY = types.CellType()
# The attributes of a pattern's entry that hold code, and those of a pattern that hold others.
_CODE = ("handler", "extra_check", "normalize_args")
_INNER = ("args", "kwargs", "outputs", "pattern", "inner_pattern")

Alternatives = tuple[str, ...]


def list_code_places(rule: KnownRule) -> list[tuple[str, int]]:
    """File (relative to the folder that holds torch) and first line of each function that makes up the rule."""
    codes = {code for part in rule.made_of for code in _iterate_codes(part, _DEEPEST)}
    return sorted({(rule_labels.shorten_file(code.co_filename), code.co_firstlineno) for code in codes})


def list_pattern_operators(rule: KnownRule) -> list[Alternatives]:
    """The operators that the patterns of a rule look for: for each place in the first pattern, the alternatives."""
    for entry in rule.made_of:
        listed = list(dict.fromkeys(_iterate_targets(getattr(entry, "pattern", None))))
        if listed:
            return listed
    return []


def _iterate_targets(pattern: object) -> Iterator[Alternatives]:
    functions = getattr(pattern, "fns", None)
    if isinstance(functions, (list, tuple)):
        yield tuple(dict.fromkeys(map(get_target_name, functions)))
    for value in pytree.tree_leaves([getattr(pattern, name, None) for name in _INNER]):
        if hasattr(type(value), "pattern_eq"):
            yield from _iterate_targets(value)


def _iterate_codes(part: object, depth: int) -> Iterator[types.CodeType]:
    """The code of a function, of what its closure holds, of an entry's parts, or of a class's methods."""
    if depth <= 0:
        return
    if isinstance(part, types.FunctionType):
        yield part.__code__
        held = [cell.cell_contents for cell in part.__closure__ or () if cell != _EMPTY]
        yield from _iterate_part_codes([*held, getattr(part, "__wrapped__", None)], depth)
    elif isinstance(part, functools.partial):
        yield from _iterate_part_codes([part.func, *part.args, *part.keywords.values()], depth)
    elif isinstance(part, types.MethodType):
        yield from _iterate_part_codes([part.__func__, type(part.__self__)], depth)
    elif inspect.isclass(part):
        own = (base for base in part.__mro__ if base.__module__.startswith("torch."))
        yield from _iterate_part_codes([value for base in own for value in vars(base).values()], depth)
    elif any(hasattr(part, name) for name in _CODE):
        yield from _iterate_part_codes([getattr(part, name, None) for name in _CODE], depth)
    elif type(part).__module__.startswith("torch._inductor.fx_passes") and callable(part):
        yield from _iterate_codes(type(part), depth)


def _iterate_part_codes(parts: list[Any], depth: int) -> Iterator[types.CodeType]:
    for part in parts:
        if isinstance(part, (list, tuple)):
            yield from _iterate_part_codes(list(part)[:32], depth - 1)
        else:
            yield from _iterate_codes(part, depth - 1)
