"""The settings under which torch promises equal bits, as far as the installed torch has them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import replace

from fuzzcompile.case import Case
from fuzzcompile.compiler.settings import MISSING, setting
from fuzzcompile.facts import facts


def strict_settings() -> dict[str, object]:
    """Entries of ``torch._inductor.config`` and their values, those that the installed torch has."""
    wanted = facts().bitwise.settings
    return {entry: _value(text) for entry, text in wanted.items() if setting(entry) is not MISSING}


def promised_by_settings() -> dict[str, str]:
    """Map each of the settings to torch's words on it."""
    promises = facts().bitwise.promises
    return {entry: promises[entry] for entry in strict_settings() if entry in promises}


def under_contract(case: Case) -> Case:
    """The case compiled under the strict settings, which replace its own values of the same entries."""
    strict = strict_settings()
    own: Mapping[str, object] = case.settings.options
    options = {entry: value for entry, value in own.items() if entry not in strict}
    inductor = {**case.settings.inductor, **strict}
    return replace(case, settings=replace(case.settings, options=options, inductor=inductor))


def replaced_settings(case: Case) -> tuple[str, ...]:
    """Entries that the case itself sets to other values than the contract does."""
    own = {**case.settings.inductor, **case.settings.options}
    return tuple(entry for entry, value in strict_settings().items() if own.get(entry, value) != value)


def _value(text: str) -> object:
    return ast.literal_eval(text) if text in ("True", "False") else text
