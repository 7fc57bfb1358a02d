"""Whom a bug hits, what it takes, and since which version: the sentences of a draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.versions import public
from fuzzcompile.model.severity import Severity
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.program import Setting, setting_of

if TYPE_CHECKING:
    from fuzzcompile.corpus.replay.history import History


_MODES = {"enabled": "with gradients enabled", "inference_mode": "under `torch.inference_mode()`"}


def reach(facts: IssueFacts) -> str:
    """Whether it is on by default, and which programs it hits: one or two sentences."""
    setting, silent = setting_of(facts.reproducer), facts.severity in (Severity.SILENT, Severity.ALIASING)
    right = "; the values are right" if facts.severity in (Severity.RAISING_LAYOUT, Severity.LAYOUT) else ""
    if setting is None:
        where = "with the settings of its own script" if facts.is_script else f"on {_device(facts)}"
        return f"It was seen {where}{' and is silent' if silent else right}."
    seen = f"It was seen {_where(facts, setting)}{right}."
    quiet = " Nothing warns of it." if silent else ""
    if facts.promise is not None:
        return f"It breaks a promise that holds only where a setting asks for it ({facts.promise}).{quiet} {seen}"
    if setting.opt_ins:
        return f"It needs options that are off by default: `{'`, `'.join(setting.opt_ins)}`.{quiet} {seen}"
    return f"It happens with the default settings.{quiet} {seen}"


def since(facts: IssueFacts) -> str:
    """Which versions show it: a sentence that claims no more than what was tried."""
    history, seen = facts.history, public(facts.torch or "")
    if history is None or not history.torch:
        return f"Seen in torch {seen}; other versions were not tried." if seen else ""
    return " ".join(_versions(history, seen))


def _versions(history: History, seen: str) -> Iterator[str]:
    first, newest = history.affected_since, history.newest
    if first is None:
        yield f"Seen in torch {seen}; it did not show again on {', '.join(history.torch)}."
        return
    right = [version for version, status in history.torch.items() if status == Status.NOT_AFFECTED]
    if right:
        yield f"It is there since torch {first}; {right[-1]} does not have it."
    else:
        yield f"torch {first}, the oldest version tried, has it."
    if history.fixed_in:
        yield f"It is fixed in {history.fixed_in}."
    elif newest and newest != first:
        yield f"On {newest}, the newest tried, {_NEWEST.get(history.torch[newest], 'there was no answer')}."


_NEWEST: dict[str, str] = {
    Status.FAILING: "it is still there",
    Status.DIFFERENT: "the program fails in another way",
    Status.FLAKY: "it shows in some runs",
}


def _where(facts: IssueFacts, setting: Setting) -> str:
    calls = ", called with several inputs in a row" if setting.calls else ""
    return f"on {_device(facts)} {_mode(facts, setting)}{calls}"


def _mode(facts: IssueFacts, setting: Setting) -> str:
    """Training or inference: what the script for the issue needs, else what the case was judged under."""
    if setting.backward:
        return "in training"
    mode = _MODES.get(setting.grad or "", "under `torch.no_grad()`")
    if facts.plain and not any(word in facts.plain for word in ("no_grad", "inference_mode", "requires_grad")):
        mode = "in inference"
    return f"{mode} (training was not tried)"


def _device(facts: IssueFacts) -> str:
    if facts.target is not None:
        return f"`{facts.target}` (told to the compiler)"
    kind = (facts.device or "").split(":")[0]
    return {"cpu": "the CPU", "cuda": "a GPU"}.get(kind, kind or "a device not recorded")
