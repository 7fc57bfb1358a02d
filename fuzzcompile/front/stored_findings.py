"""Stored findings judged on the torch and machine at hand: made anew (refresh), or confirmed for another machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fuzzcompile.corpus.machines import conditions as conditions_of
from fuzzcompile.corpus.machines import find_place
from fuzzcompile.corpus.records import CaseRecord, Finding, Reproducer, identify_compiler, public_id
from fuzzcompile.corpus.store import Store
from fuzzcompile.diagnosis.worker.file_triage import FileAnswer, triage_sources
from fuzzcompile.front.minimize_case import show_again
from fuzzcompile.fuzz.campaign.campaign_outputs import write_draft
from fuzzcompile.fuzz.campaign.leftovers import ORIGIN, PendingConfirmation, make_confirmation
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import read_target
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.run.device import describe_environment, resolve_device

OnStart = Callable[[str], object]
RefreshOutcome = Literal["refreshed", "gone", "differs", "not confirmed", "not judged"]


def _group_by_target(findings: Sequence[Finding], conditions: Conditions) -> Iterator[tuple[list[Finding], Conditions]]:
    """Yield the findings by target, with the conditions to judge them under: one of a target is judged for it."""
    targets = [conditions.target or read_target(finding.report) for finding in findings]
    for target in dict.fromkeys(targets):
        group = [finding for finding, own in zip(findings, targets, strict=True) if own == target]
        yield group, conditions if target is None else replace(conditions, device="cpu", target=target)


@dataclass(frozen=True)
class RefreshResult:
    """The result of refreshing a finding.

    ``result`` is "refreshed", "gone" (its case shows no bug on this torch), "differs" (it fails in another way), "not
    confirmed" (its reproducer shows nothing when run alone) or "not judged".
    """

    finding: str
    result: RefreshOutcome
    kept: str  # the name it has now: findings that are seen to be one bug are merged
    signature: str
    note: str = ""  # one sentence for the user


def refresh(
    store: Store,
    names: Sequence[str],
    conditions: Conditions,
    *,
    drafts: Path | None = None,
    on_start: OnStart = lambda name: None,
) -> Iterator[RefreshResult]:
    """Judge the best reproducer (or the case) of each finding again, and store what it shows now.

    A finding that does not show any more is left as it is. What is stored of one is kept if the next is interrupted.
    Issue drafts are written anew into the folder ``drafts``.
    """
    for group, where in _group_by_target([store.finding(name) for name in names], conditions):
        settled: set[str] = set()
        best = {finding.public_id: store.best_reproducer(finding.public_id) for finding in group}
        scripts = {of.public_id: own.source if (own := best[of.public_id]) else of.source for of in group}
        files = {f"{name}/repro.py": script for name, script in scripts.items()}
        with closing(triage_sources(files, where, lambda file: on_start(str(Path(file).parent)))) as answers:
            for finding, answer in zip(group, answers, strict=True):
                name = finding.public_id
                if store.finding(name).public_id in settled:
                    continue  # it was merged into one that has been judged
                refreshed = _refresh_finding(store, finding, scripts[name], best[name], answer, where)
                settled.add(refreshed.kept)
                if drafts is not None:
                    write_draft(store, refreshed.kept, drafts)
                yield refreshed


def _refresh_finding(
    store: Store, finding: Finding, source: str, best: Reproducer | None, answer: FileAnswer, conditions: Conditions
) -> RefreshResult:
    def leave(result: RefreshOutcome, note: str) -> RefreshResult:
        return RefreshResult(finding.public_id, result, finding.public_id, finding.signature, note)

    report = answer.report
    if report is None:
        return leave("not judged", answer.error or "")
    if not report["is_bug"]:
        return leave("gone", f"on torch {report['torch']} it shows no bug: {report['verdict']}")
    if Verdict(report["verdict"]).kind != Verdict(finding.verdict).kind:
        return leave("differs", f"on torch {report['torch']} the verdict is {report['verdict']}")
    neighbour = None if best is None else best.neighbour
    try:
        shown = show_again(source, report, neighbour, conditions)
    except FuzzcompileError as error:  # a script is no case: it has no reproducer to build
        return leave("not judged", str(error))
    if shown.interrupted:
        raise KeyboardInterrupt
    if not shown.confirmed:
        return leave("not confirmed", "its reproducer shows nothing when run alone")
    made = Reproducer(
        source=shown.reproducer,
        sha256=hash_source(shown.reproducer),
        lines=len(shown.reproducer.splitlines()),
        kind="as found" if best is None else best.kind,
        confirmed=True,
        torch=report["torch"],
        report=report,
        neighbour=neighbour,
        program=program_key(shown.reproducer),
        shown=shown.plain,
        environment=describe_environment(resolve_device(conditions.device), conditions.target),
    )
    kept = store.add_reproducer(finding.public_id, made, replaces=hash_source(source))
    return RefreshResult(finding.public_id, "refreshed", kept.public_id, kept.signature)


ConfirmationOutcome = Literal["confirmed", "shows here", "not reproduced", "differs", "not judged", "left out"]


@dataclass(frozen=True)
class ConfirmationResult:
    """The result of judging a finding on this machine.

    ``result`` is "confirmed" (it is seen on two machines now), "shows here" (but the other machine is not known),
    "not reproduced", "differs" (its program shows another bug), "not judged", or "left out" where this machine cannot
    add to what is known.
    """

    finding: str
    result: ConfirmationOutcome
    note: str  # one sentence for the user


def confirm(
    store: Store, names: Sequence[str], conditions: Conditions, *, on_start: OnStart = lambda name: None
) -> Iterator[ConfirmationResult]:
    """Judge the program of each finding here, unless this machine cannot add to what is known, and store the verdict.

    Without ``names``: all open ones that wait for a machine like this and may be run.
    """
    of_one = [each.id for each in store.summaries("open") if each.trusted and each.machines.count == 1]
    for group, where in _group_by_target([store.finding(name) for name in names or of_one], conditions):
        environment = describe_environment(resolve_device(where.device), where.target)
        excluded = [_explain_exclusion(finding, environment, named=bool(names)) for finding in group]
        waiting = []
        for finding, why in zip(group, excluded, strict=True):
            if why is None:
                waiting.append(make_confirmation(store, finding))
            elif names:
                yield ConfirmationResult(finding.public_id, "left out", why)
        files = {f"{asked.finding}.py": asked.case.source for asked in waiting}
        with closing(triage_sources(files, where, lambda file: on_start(Path(file).stem))) as answers:
            for asked, answer in zip(waiting, answers, strict=True):
                yield _store_answer(store, asked, answer, environment)


def _explain_exclusion(finding: Finding, environment: Mapping[str, object], *, named: bool) -> str | None:
    """Return why judging a finding here would tell nothing new; one that is ``named`` may be of any machine."""
    machines = finding.machines
    place = find_place(environment)
    if place in machines.shown:
        return "it was seen on this machine: confirm it on another one"
    if place in machines.judged:
        return "this machine has judged its program already"
    if not (named or machines.waits_for(environment)):
        return "it does not wait for this machine"
    if conditions_of(environment) not in machines.under:
        return f"it was not seen under torch {identify_compiler(environment)} on {environment['device']}"
    return None


def _store_answer(
    store: Store, asked: PendingConfirmation, answer: FileAnswer, environment: Mapping[str, object]
) -> ConfirmationResult:
    report, case = answer.report, asked.case
    if report is None:
        return ConfirmationResult(asked.finding, "not judged", answer.error or "")
    # A case judged twice by one machine under the same conditions is stored once.
    where = sha256(f"{identify_compiler(environment)} {environment['device']}".encode()).hexdigest()[:16]
    token = f"confirm:{case.sha256[:16]}:{environment['machine']}:{where}"
    record = CaseRecord(case.sha256, case.source, ORIGIN)
    stored = store.record(None, record, environment, report, token=token)
    finding = store.finding(asked.finding)
    if stored.finding_id is None:
        return ConfirmationResult(asked.finding, "not reproduced", f"on this machine: {report['verdict']}")
    if stored.finding_id != finding.id:
        seen = f"{report['verdict']}, {report['signature']}"
        return ConfirmationResult(asked.finding, "differs", f"it shows {public_id(stored.finding_id)} here: {seen}")
    if finding.machines.second_machine == "confirmed":
        note = f"{report['verdict']}, on {finding.machines.count} machines"
        return ConfirmationResult(asked.finding, "confirmed", note)
    note = "the machine that first showed it is not recorded, or not trusted"
    return ConfirmationResult(asked.finding, "shows here", note)
