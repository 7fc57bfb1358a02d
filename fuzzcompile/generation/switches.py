"""The settings under which a condition of the compiler's source holds."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES, joined

Settings = dict[str, object]
"""Entries of ``torch._inductor.config`` and their values; a dictionary's are merged into what the entry holds."""
Present = Callable[[str], object]
"""The present value of an entry, dotted where it is (``cpp.simdlen``); where there is none, it raises AttributeError or
gives what no entry holds."""


def switching_on(condition: str, present: Present) -> Settings:
    """Return the settings under which ``condition``, source of the compiler, no longer fails on settings alone.

    A part that depends on the program, or cannot be solved, adds no setting.
    """
    try:
        tree = ast.parse(condition, mode="eval").body if condition else None
    except SyntaxError:
        return {}
    return {} if tree is None else with_prerequisites(_solve(tree, True, present))


def entry_on(name: str, present: Present) -> Settings:
    """Return the settings that switch on an entry: ``cpp.enable_concat_linear``, ``pre_grad_fusion_options:key``."""
    entry, colon, key = name.partition(":")
    if colon:
        return with_prerequisites({entry: {key: {}}})
    return {} if _value(entry, present) is True else with_prerequisites({entry: True})


def with_prerequisites(settings: Settings) -> Settings:
    """Add the settings that a pass needs: a normalisation that has to run before it, or the sizes of a fusion.

    The compiler runs the passes of its fusion options in the order of their keys.
    """
    toggles = [dict[str, object](toggle.options) for toggle in (*TOGGLES, *FOR_GPU)]
    before = joined(
        options for options in toggles if any(_asks(options, entry, value) for entry, value in settings.items())
    )
    return joined([before, {entry: _beside(value, before.get(entry)) for entry, value in settings.items()}])


def _beside(value: object, before: object) -> object:
    """A dictionary without the keys that are set already."""
    if not isinstance(value, dict) or not isinstance(before, dict):
        return value
    return {key: inner for key, inner in value.items() if key not in before}


def _asks(options: Mapping[str, object], entry: str, value: object) -> bool:
    """Return whether a toggle's options set the wanted value."""
    mine = options.get(entry)
    return isinstance(value, dict) and isinstance(mine, Mapping) and bool(value) and list(mine)[-1] in value


def _solve(test: ast.expr, wanted: bool, present: Present) -> Settings:
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _solve(test.operand, not wanted, present)
    if isinstance(test, ast.BoolOp):
        parts = [_solve(part, wanted, present) for part in test.values]
        if isinstance(test.op, ast.And) is wanted:
            return joined(parts)
        return min(parts, key=len)  # one that holds already asks for nothing
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _compared(test.left, test.ops[0], test.comparators[0], wanted, present)
    entry = _entry(test)
    if entry is None or not isinstance(_value(entry, present), (bool, type(None))):
        return {}
    return {} if bool(_value(entry, present)) is wanted else {entry: wanted}


def _compared(left: ast.expr, how: ast.cmpop, right: ast.expr, wanted: bool, present: Present) -> Settings:
    constant, entry = left if isinstance(left, ast.Constant) else right, _entry(right) or _entry(left)
    if entry is None or not isinstance(constant, ast.Constant):
        return {}
    value = _value(entry, present)
    if isinstance(how, ast.In) and wanted and isinstance(value, Mapping) and constant.value not in value:
        return {entry: {constant.value: {}}}
    if isinstance(how, (ast.Eq, ast.Is)) is wanted and isinstance(how, (ast.Eq, ast.Is, ast.NotEq, ast.IsNot)):
        return {} if value == constant.value else {entry: constant.value}
    return {}


def _entry(node: ast.expr) -> str | None:
    """``cpp.simdlen`` of the expression ``config.cpp.simdlen``."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.insert(0, node.attr)
        node = node.value
    if isinstance(node, ast.Name) and node.id in ("config", "inductor_config") and parts:
        return ".".join(parts)
    return None


def _value(entry: str, present: Present) -> object:
    try:
        return present(entry)
    except AttributeError:
        return Ellipsis  # this torch has no such entry: nothing to set
