"""Settings under which a rule runs, read off the generator's toggles, the conditions around it and its own code."""

from __future__ import annotations

from collections.abc import Mapping

from fuzzcompile.compiler.catalogue import Known
from fuzzcompile.compiler.programs.code import named_in
from fuzzcompile.compiler.settings import setting
from fuzzcompile.facts import facts
from fuzzcompile.generation.switches import switching_on
from fuzzcompile.stage_names import FREEZING

Settings = Mapping[str, object]
# In force in every watched compile, unless the case says otherwise.
_RANDOM = "fallback_random"


def settings_for(rule: Known) -> list[Settings]:
    """Settings to try, the fewest first: what the condition around the rule asks for, then what its code asks."""
    needed = switching_on(rule.when, setting)
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
