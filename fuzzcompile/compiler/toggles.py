"""Settings of ``torch._inductor.config`` that switch passes or change numbers, and what they are set to."""

from __future__ import annotations

import importlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from fuzzcompile.facts import facts

_NAME = re.compile(r"\bconfig\.([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_LONGEST = 60


@dataclass(frozen=True)
class Toggle:
    """A setting: the stage that it belongs to, its present value and torch's own, both as source."""

    stage: str
    name: str
    value: str
    default: str
    changed: bool


def settings_of(conditions: Mapping[str, Collection[str]]) -> Iterator[Toggle]:
    """The settings in the conditions around each stage's passes, and those that the facts list for the stage.

    Each is given once, under its first stage; settings that the installed torch does not have are left out.

    Args:
        conditions: the conditions of each stage, as source.
    """
    config = importlib.import_module("torch._inductor.config")
    entries: Mapping[str, object] = getattr(config, "_config", {})
    listed = facts().settings.listed
    seen = set[str]()
    for stage in dict.fromkeys((*conditions, *listed)):
        guarding = [name for text in sorted(conditions.get(stage, ())) for name in _NAME.findall(text)]
        for name in (*listed.get(stage, ()), *guarding):
            if name not in entries or name in seen:
                continue
            seen.add(name)
            value, default = _value(config, name), getattr(entries[name], "default", None)
            yield Toggle(stage, f"config.{name}", _source(value), _source(default), value != default)


def _value(config: object, name: str) -> object:
    for part in name.split("."):
        config = getattr(config, part, None)
    return config


def _source(value: object) -> str:
    text = getattr(value, "__name__", None) if callable(value) else repr(value)
    text = " ".join((text or type(value).__name__).split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 4]} ..."
