"""Whether a finding is fit to be filed as an issue, and if not, why and what would make it so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from fuzzcompile.corpus.replay.replay_history import ReplayStatus, order, public
from fuzzcompile.model.culprit_contract import read_details
from fuzzcompile.model.custom import is_custom
from fuzzcompile.model.evidence import RANDOM_STATE, count_noun
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.verdicts import ERRORS, VALUES, Verdict
from fuzzcompile.report.circumstances import several
from fuzzcompile.report.finding_facts import IssueFacts, case_part
from fuzzcompile.report.proof import format_entry, tried_for_draft
from fuzzcompile.report.titles import title
from fuzzcompile.report.wording import why_not

# PyTorch's rules for reports that come from a fuzzer, and which of them a finding meets.

# Verdicts that rest on comparing numbers.
_NUMERIC = (*VALUES, Verdict.ALIASING)
# Calls that return positions.
_INDICES = re.compile(
    r"\b(arg(?:max|min|sort|where)|max|min|sort|topk|mode|median|nanmedian|kthvalue|cummax|cummin|multinomial|"
    r"(?:adaptive_|fractional_)?max_pool\dd(?:_with_indices)?)\("
)
_LARGER = "a case in which the difference is larger than PyTorch tolerates"


class Rule(NamedTuple):
    """One rule, and what meets it; ``met`` is None where it does not apply or the facts do not show it."""

    text: str
    met: bool | None
    note: str
    remedy: str = ""


def rules(facts: IssueFacts) -> list[Rule]:
    """The rules of the torch.compile bug template for fuzzers, and the maintainers' own."""
    # Where eager mode is wrong too, so is the float64 run, which calls the same operator.
    is_numeric = facts.verdict in _NUMERIC and not facts.shares_wrongly and not facts.eager_is_wrong
    # What only one side has written is within any tolerance.
    is_numeric &= not facts.wrong or any(output.get("finding") != "missing" for output in facts.wrong)
    return [*(_numeric(facts) if is_numeric else ()), *_always(facts)]


def _numeric(facts: IssueFacts) -> Iterator[Rule]:
    entry = facts.measured
    outputs = [entry, *facts.wrong]
    within = next((output.get("within_default_tolerance") for output in outputs if output is not None), None)
    where = {True: "within", False: "exceeds", None: "not recorded whether within"}[within]
    met = None if within is None else not within
    yield Rule("Default tolerances", met, f"{where} `torch.testing.assert_close` defaults", _LARGER)
    integers = ", ".join(str(output.get("name")) for output in facts.wrong if output.get("finding") == "integer")
    calls = sorted({match[1] for match in _INDICES.finditer(case_part(facts.reproducer))})
    of = f" of {', '.join(calls)}" if calls else ""
    note = "the program computes none" if integers else "only floating values count here"
    if unsure := bool(integers and (calls or not facts.reproducer)):
        note = f"integer outputs differ ({integers}): make sure that indices{of} do not point at equal values"
    yield Rule("No comparison of indices of max, min and the like", None if unsure else True, note)
    text = facts.plain or facts.reproducer or ""
    seeded, draws = "manual_seed" in text, "rand" in text or "dropout" in text
    met = None if not text else seeded or not draws
    note = "the reproducer seeds itself" if seeded else "it draws no random numbers" if met else "not shown"
    yield Rule("Equal random state", met, note, "seed the script before each of the two runs")
    if entry is None:
        return
    same = entry.get("torch_same")
    eager, compiled = entry.get("max_abs_error_eager"), entry.get("max_abs_error_compiled")
    verdict = "was not recorded" if same is None else "calls them the same" if same else "calls them different"
    met = None if same is None else not same
    note = f"errors are against float64; `torch._dynamo.utils.same` with `fp64_ref` {verdict}"
    yield Rule("Higher-precision baseline", met, note, _LARGER)
    farther = compiled is None or eager is None or compiled > eager
    figures = f"{format_entry(entry, 'max_abs_error_compiled')} against {format_entry(entry, 'max_abs_error_eager')}"
    yield Rule("Compiled is farther from float64 than eager", farther, figures, _LARGER)


def _always(facts: IssueFacts) -> Iterator[Rule]:
    stated, subject = bool(facts.torch and facts.device), facts.subject
    yield Rule("Device and version stated", stated, "below" if stated else "not recorded", "judge the case again")
    if facts.target is not None:
        note = "the reproducer showed it there" if facts.seen_on_device else "run the reproducer on a GPU first"
        remedy = f"run the reproducer on a {facts.target} GPU"
        yield Rule(f"Seen on a {facts.target} device", facts.seen_on_device, note, remedy)
    tried = (("setting", tried_for_draft(facts.report)), ("backend", facts.ladder))
    parts = [f"{count_noun(len(entries), what)} tried" for what, entries in tried if entries]
    again = subject.format_command(*(("corpus", "refresh") if subject.is_finding else ("triage",)))
    yield Rule("Ablation", bool(parts), ", ".join(parts) or "none was run", f"`{again}` runs them")
    note = "there is none yet"
    if facts.reproducer:
        shown = "run alone: it shows the bug" if facts.target is None else f"judged alone for {facts.target}: the bug"
        first = facts.shown.get("eager_only") if facts.without_compiler else facts.shown.get("plain")
        lines = len((first or facts.reproducer).splitlines())
        note = f"{lines} lines, {shown if facts.confirmed else 'not confirmed in a clean process'}"
    remedy = f"`{subject.format_command('minimize')}` makes one and confirms it in a clean process"
    yield Rule("Minimal reproducer", bool(facts.reproducer and facts.confirmed), note, remedy)
    searched = f"on {facts.searched}: {len(facts.related)} related" if facts.searched else "by hand, before filing"
    yield Rule("Existing issues and pull requests searched", bool(facts.searched) or None, searched)


# What these do shows without an attribution: an error, a crash or a hang needs no other proof.
_EVIDENT = (*ERRORS, Verdict.CRASH, Verdict.TIMEOUT)

_MORE_SECONDS = 900.0


class Refusal(NamedTuple):
    """Reason why a finding is not to be filed, and what would make it fileable."""

    reason: str
    remedy: str


def find_refusal(facts: IssueFacts) -> Refusal | None:
    """The first reason against filing the finding; None if it is fit to be filed.

    Refused are: what is no bug, what was seen with plants, what a person has marked, what belongs to a group that has
    an issue, a random state or layout that changes nothing, what is fixed in the newest torch that was tried, a suspect
    without proof, and what breaks a rule of PyTorch's for fuzzers.
    """
    if not facts.is_bug:
        subject = facts.subject
        explained = subject.format_command(*(("corpus", "show") if subject.is_finding else ("triage",)))
        return Refusal(why_not(facts), f"nothing does: `{explained}` explains the verdict")
    if plants := facts.report.get("plants"):
        where = f"it was seen in a torch with planted bugs ({several(plants, ', ')})"
        return Refusal(where, "judge it without `--plant`: what it shows then is PyTorch's")
    if (marked := next(_marked(facts), None)) is not None:
        return marked
    if facts.wrong and all(output.get("name") == RANDOM_STATE for output in facts.wrong):
        differs = "only the state of the random generator after the call differs"
        return Refusal(differs, "a program whose next random numbers are wrong for that")
    if doubt := (facts.report.get("evidence") or {}).get("layout_doubt"):
        return Refusal(f"a layout that means nothing: {doubt}", "a program in which `.view()` or a kernel minds it")
    # Fixed in the newest torch that was tried; an older one says nothing of the torch where it was seen.
    history, newest = facts.history, facts.history.newest if facts.history is not None else None
    is_newer = newest is not None and order(newest) >= order(public(facts.torch or ""))
    if history is not None and newest is not None and is_newer and history.torch[newest] == ReplayStatus.FIXED:
        subject, corpus = facts.subject, facts.subject.options.get("corpus")
        replayed = format_command("replay", published=subject.published, select=subject.name, corpus=corpus)
        remedy = f"nothing, unless it comes back: `{replayed}` says so"
        return Refusal(f"it is fixed in torch {newest}, the newest that was tried", remedy)
    if facts.umbrella is not None and facts.severity is Severity.OPT_IN and facts.grouped > 1:
        group = facts.umbrella.name
        one = f"`{replace(facts.subject, name=group).format_command('issue')}` drafts it"
        return Refusal(f"one issue for the {facts.grouped} findings of the group {group} is enough", one)
    broken = (rule for rule in rules(facts) if rule.met is False)
    unmet = (Refusal(f"a rule of PyTorch's for fuzzers is not met: {r.text} ({r.note})", r.remedy) for r in broken)
    return _unproved(facts) or next(unmet, None)


# What a person says of a finding that is not to be filed.
_MARKS = {
    "known": "it is known",
    "dup": "it is a duplicate of",
    "fixed": "it is marked as fixed",
    "invalid": "it is marked as invalid",
    "wontfix": "it is marked as one that PyTorch will not fix",
}


def _marked(facts: IssueFacts) -> Iterator[Refusal]:
    mark, umbrella = facts.mark, facts.umbrella
    if mark is not None and mark.status in _MARKS:
        known = f": {mark.issue}" if mark.status == "known" and mark.issue else ""
        other = f" {mark.duplicate_of or 'another finding'}" if mark.status == "dup" else ""
        note = f" ({mark.note})" if mark.note else ""
        comment = "comment on that issue instead; " if mark.issue else ""
        wrong = f"{comment}if that is wrong, `{_reopened(facts.subject)}`"
        yield Refusal(f"{_MARKS[mark.status]}{known}{other}{note}", wrong)
    name = (facts.culprit or {}).get("pass")
    if is_custom(name):
        yield Refusal(f"{name} is at fault, which is no part of PyTorch", "fix it there")
    if umbrella is None:
        return
    group = f"it belongs to the group {umbrella.name}, which"
    if umbrella.issue:
        yield Refusal(f"{group} has an issue: {umbrella.issue}", "comment on that issue with the reproducer")
    elif umbrella.status not in ("open", "known"):
        note = f" ({umbrella.note})" if umbrella.note else ""
        wrong = f"if that is wrong, `{_reopened(replace(facts.subject, name=umbrella.name))}`"
        yield Refusal(f"{group} is marked {umbrella.status}{note}", wrong)


def _unproved(facts: IssueFacts) -> Refusal | None:
    culprit = facts.culprit
    unnamed = culprit is None or "stack" in read_details(culprit)  # a stack places a loss and blames nothing
    if facts.proved or facts.without_compiler or (unnamed and facts.verdict in _EVIDENT):
        return None
    if culprit is None:
        reason = "nothing in the compiler could be shown to cause it"
    else:
        name = culprit.get("rewrite") or culprit.get("pass") or culprit.get("family")
        reason = f"`{name}` is a suspect, not a proof: switching it off alone was not shown to repair the case"
    is_stored, subject = facts.subject.is_finding, facts.subject
    words = ("corpus", "refresh") if is_stored else ("triage",)
    further = subject.format_command(*words, timeout=_MORE_SECONDS, proof=not is_stored)
    return Refusal(reason, f"a proved culprit: `{further}` looks further, with more time")


def _reopened(subject: CommandSubject) -> str:
    return subject.format_command("corpus", "mark", after=("open",))


# The index of a folder of drafts: what is fit to be filed, the worst first, then what is refused, and why.

INDEX = "INDEX.md"
_ROW = re.compile(r"^\| (?:\[(?P<link>\w+)\]\(\w+\.md\)|(?P<name>\w+)) \| (?P<severity>\w+) \| .* \|$")


class IndexEntry(NamedTuple):
    """A finding in the index, as a row of one of its two tables."""

    finding: str
    severity: str
    has_draft: bool
    row: str


def make_entry(finding: str, facts: IssueFacts, refusal: Refusal | None) -> IndexEntry:
    """The entry of a finding by its public id."""
    words, severity = title(facts) if facts.is_bug else why_not(facts), str(facts.severity or "none")
    name = f"[{finding}]({finding}.md)" if refusal is None else finding
    return IndexEntry(finding, severity, refusal is None, _row(name, severity, words, *(refusal or ())))


def with_entry(index: str, entry: IndexEntry, replaces: str | None = None) -> str:
    """An index with one entry added in place of its own or of one merged into it; a person's text is lost."""
    rows = [row for line in index.splitlines() if (row := _ROW.match(line)) and row["name"] not in ("draft", "finding")]
    known = [IndexEntry(row["link"] or row["name"], row["severity"], bool(row["link"]), row[0]) for row in rows]
    return make_index([*(other for other in known if other.finding not in (entry.finding, replaces)), entry])


def make_index(entries: Iterable[IndexEntry]) -> str:
    """The text of an index, in Markdown."""
    ranks = {str(severity): severity.rank for severity in Severity}

    def place(entry: IndexEntry) -> tuple[int, int, str]:
        number = re.search(r"\d+", entry.finding)
        return ranks.get(entry.severity, len(ranks)), int(number[0]) if number else 0, entry.finding

    ordered = sorted(entries, key=place)
    drafts, refused = ([entry.row for entry in ordered if entry.has_draft is wanted] for wanted in (True, False))
    lines = ["# Drafts", "", f"{len(drafts)} to be filed, {len(refused)} refused. The worst come first.", ""]
    if drafts:
        lines += [_row("draft", "severity", "what"), "|---|---|---|", *drafts]
    if refused:
        lines += ["", "## Refused", "", _row("finding", "severity", "what", "why not", "what would change that")]
        lines += ["|---|---|---|---|---|", *refused]
    return "\n".join(lines) + "\n"


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.replace("|", "\\|").split()) for cell in cells) + " |"
