"""Settings under which a rule runs, read off the generator's toggles, the conditions around it and its own code."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping

from fuzzcompile.compiler.catalogue import Known
from fuzzcompile.compiler.configs import config_of, has_entry
from fuzzcompile.compiler.programs.code import named_in
from fuzzcompile.compiler.settings import setting
from fuzzcompile.facts import facts
from fuzzcompile.generation.toggles import FOR_GPU, TOGGLES, Option, config, options
from fuzzcompile.stage_names import FREEZING

Settings = Mapping[str, object]
# In force in every watched compile, unless the case says otherwise.
_RANDOM = "fallback_random"


def settings_for(rule: Known) -> list[Settings]:
    """Settings to try, the fewest first: what the condition around the rule asks for, then what its code asks."""
    needed = dict(_conditions(rule.when))
    if rule.stage == FREEZING:
        needed["freezing"] = True
    named = [name for name in named_in(rule.made_of).settings if name not in needed]
    if _RANDOM in rule.when or _RANDOM in named_in(rule.made_of, deepest=0).settings:
        needed[_RANDOM] = False
    for name in _off(rule):
        needed.setdefault(name, True)
    asked = [name for name in named if setting(name) is False and name != _RANDOM and name not in needed]
    alone: list[Settings] = [{**needed, name: True} for name in asked]
    return [needed, *alone, *([{**needed, **dict.fromkeys(asked, True)}] if len(asked) > 1 else [])]


def _off(rule: Known) -> list[str]:
    """Switches of which it is known that the rule refuses everything without them."""
    covering = (reason.setting for reason in facts().unreachable if reason.covers(rule.stage, rule.name, "cpu"))
    return [name for name in covering if name is not None and setting(name) is False]


def _conditions(source: str) -> Iterator[tuple[str, object]]:
    """Entries of Inductor's config and values that make a condition hold, as far as it names any."""
    try:
        condition = ast.parse(source, mode="eval").body
    except SyntaxError:  # no condition, or one in words
        return
    for part in _parts(condition):
        yield from _entry(part)


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    else:
        yield test


def _entry(test: ast.expr) -> Iterator[tuple[str, object]]:
    negated = isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)
    name = _name(test.operand if isinstance(test, ast.UnaryOp) and negated else test)
    if name is not None and isinstance(setting(name), bool) and setting(name) is negated:
        yield name, not negated
    if isinstance(test, ast.Compare) and isinstance(test.left, ast.Constant):
        dictionary = _name(test.comparators[0])
        if dictionary is not None and isinstance(setting(dictionary), dict):
            yield from _within(dictionary, str(test.left.value)).items()


def _within(dictionary: str, key: str) -> dict[str, Option]:
    """The dictionary with the key; as the generator's toggle for it has it, with what else that takes."""
    for toggle in (*TOGGLES, *FOR_GPU):
        for entry, value in toggle.options:
            if entry == dictionary and isinstance(value, Mapping) and key in list(value)[-1:]:
                return {**options((toggle.name,)), **config((toggle.name,))}
    return {dictionary: {key: {}}}


def _name(node: ast.expr) -> str | None:
    """``a.b`` of ``config.a.b``, where this torch has it."""
    text = ast.unparse(node)
    name = text.removeprefix("config.")
    return name if name != text and has_entry(config_of("inductor"), name) else None
