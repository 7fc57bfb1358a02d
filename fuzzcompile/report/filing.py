"""Whether a finding is fit to be filed as an issue, and if not, why and what would make it so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.corpus.replay.versions import order, public
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.rules import rules
from fuzzcompile.report.wording import why_not

# What these do shows without an attribution: an error, a crash or a hang needs no other proof.
_EVIDENT = (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR, Verdict.CRASH, Verdict.TIMEOUT)

_MORE_SECONDS = 900.0


@dataclass(frozen=True)
class Refusal:
    """Why a finding is not to be filed, and what would make it fileable."""

    reason: str
    remedy: str


def refusal_of(facts: IssueFacts) -> Refusal | None:
    """The first reason against filing the finding; None if it is fit to be filed.

    Refused are: what is no bug, what a person has marked, what belongs to a group that has an issue, what is fixed in
    the newest torch that was tried, a suspect without proof, and what breaks a rule of PyTorch's for fuzzers.
    """
    return next(_refusals(facts), None)


def _refusals(facts: IssueFacts) -> Iterator[Refusal]:
    if not facts.is_bug:
        yield Refusal(why_not(facts), f"nothing does: `{_explained(facts.subject)}` explains the verdict")
        return
    yield from _marked(facts)
    yield from _custom(facts)
    yield from _of_umbrella(facts)
    yield from _fixed(facts)
    yield from _unproved(facts)
    for rule in rules(facts):
        if rule.met is False:
            yield Refusal(f"a rule of PyTorch's for fuzzers is not met: {rule.text} ({rule.note})", rule.remedy)


def _marked(facts: IssueFacts) -> Iterator[Refusal]:
    mark = facts.mark
    if mark is None:
        return
    words = {
        "known": "it is known" + (f": {mark.issue}" if mark.issue else ""),
        "dup": f"it is a duplicate of {mark.duplicate_of or 'another finding'}",
        "fixed": "it is marked as fixed",
        "invalid": "it is marked as invalid",
        "wontfix": "it is marked as one that PyTorch will not fix",
    }
    if mark.status in words:
        note = f" ({mark.note})" if mark.note else ""
        comment = "comment on that issue instead; " if mark.issue else ""
        yield Refusal(words[mark.status] + note, f"{comment}if that is wrong, `{_reopened(facts.subject)}`")


def _custom(facts: IssueFacts) -> Iterator[Refusal]:
    name = (facts.culprit or {}).get("pass")
    if is_custom(name):
        yield Refusal(f"{name} is at fault, which is no part of PyTorch", "fix it there")


def _of_umbrella(facts: IssueFacts) -> Iterator[Refusal]:
    umbrella = facts.umbrella
    if umbrella is None:
        return
    if umbrella.issue:
        yield Refusal(
            f"it belongs to the group {umbrella.name}, which has an issue: {umbrella.issue}",
            "comment on that issue with the reproducer",
        )
    elif umbrella.status not in ("open", "known"):
        note = f" ({umbrella.note})" if umbrella.note else ""
        yield Refusal(
            f"it belongs to the group {umbrella.name}, which is marked {umbrella.status}{note}",
            f"if that is wrong, `{_reopened(replace(facts.subject, name=umbrella.name))}`",
        )


def _fixed(facts: IssueFacts) -> Iterator[Refusal]:
    """Fixed in the newest torch that was tried; an older one says nothing of the torch where it was seen."""
    newest = facts.history.newest if facts.history is not None else None
    if facts.history is None or newest is None or order(newest) < order(public(facts.torch or "")):
        return
    if facts.history.torch[newest] == Status.FIXED:
        yield Refusal(
            f"it is fixed in torch {newest}, the newest that was tried",
            f"nothing, unless it comes back: `{_replayed(facts.subject)}` says so",
        )


def _unproved(facts: IssueFacts) -> Iterator[Refusal]:
    culprit = facts.culprit
    unnamed = culprit is None or "stack" in (culprit.get("details") or {})  # a stack places a loss and blames nothing
    if facts.proved or facts.without_compiler or (unnamed and facts.verdict in _EVIDENT):
        return
    if culprit is None:
        reason = "nothing in the compiler could be shown to cause it"
    else:
        name = culprit.get("rewrite") or culprit.get("pass") or culprit.get("family")
        reason = f"`{name}` is a suspect, not a proof: switching it off alone was not shown to repair the case"
    yield Refusal(reason, f"a proved culprit: `{_with_more_time(facts.subject)}` looks further, with more time")


def _explained(subject: CommandSubject) -> str:
    return subject.format_command("corpus", "show") if subject.is_finding else subject.format_command("triage")


def _reopened(subject: CommandSubject) -> str:
    return subject.format_command("mark", after=("open",))


def _replayed(subject: CommandSubject) -> str:
    return format_command(
        "replay", published=subject.published, select=subject.name, corpus=subject.options.get("corpus")
    )


def _with_more_time(subject: CommandSubject) -> str:
    words = ("corpus", "refresh") if subject.is_finding else ("bisect",)
    return subject.format_command(*words, timeout=_MORE_SECONDS)
