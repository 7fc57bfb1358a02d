"""Refresh of stored findings: judge them on the torch at hand, and store report, reproducer and plain script anew."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fuzzcompile.corpus.records import Finding, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.commands.triage import FileAnswer, triage_files
from fuzzcompile.fuzz.campaign.campaign_outputs import write_draft
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import ReportJson, read_target
from fuzzcompile.model.errors import FuzzcompileError
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.programs.ir.case_text import program_key
from fuzzcompile.programs.shrink.conclusion import show
from fuzzcompile.run.device import describe_environment, resolve_device

# The kind of a reproducer that no reduction made.
_AS_FOUND = "as found"
Result = Literal["refreshed", "gone", "differs", "not confirmed", "not judged"]


@dataclass(frozen=True)
class RefreshResult:
    """The result of refreshing a finding.

    ``result`` is "refreshed", "gone" (its case shows no bug on this torch), "differs" (it fails in another way), "not
    confirmed" (its reproducer shows nothing when run alone) or "not judged". ``finding`` is its name, ``kept`` the name
    it has now: findings that are seen to be one bug are merged.
    ``note`` is one sentence for the user.
    """

    finding: str
    result: Result
    kept: str
    signature: str
    note: str = ""


def refresh(
    store: Store,
    names: Sequence[str],
    conditions: Conditions,
    *,
    drafts: Path | None = None,
    on_start: Callable[[str], None] | None = None,
) -> Iterator[RefreshResult]:
    """Judge the best reproducer (or the case) of each finding again, and store what it shows now.

    A finding that does not show any more is left as it is. What is stored of one is kept if the next is interrupted.

    Args:
        store: the corpus.
        names: public ids of findings.
        conditions: where to run them. A finding of a target is judged for that target.
        drafts: a folder for their issue drafts, which are written anew.
        on_start: called with the name of each finding before it is judged.

    Raises:
        KeyboardInterrupt: the user interrupts it; what was judged before is stored.
        OSError: a draft cannot be written.
        EnvironmentUnfit: no worker can be started.
    """
    findings = [store.finding(name) for name in names]
    targets = dict.fromkeys(conditions.target or read_target(finding.report) for finding in findings)
    for target in targets:
        group = [f for f in findings if (conditions.target or read_target(f.report)) == target]
        where = conditions if target is None else replace(conditions, device="cpu", target=target)
        for refreshed in _refresh_target(store, group, where, on_start):
            if drafts is not None:
                write_draft(store, refreshed.kept, drafts)
            yield refreshed


def _refresh_target(
    store: Store, findings: Sequence[Finding], conditions: Conditions, on_start: Callable[[str], None] | None
) -> Iterator[RefreshResult]:
    """Refresh findings whose cases workers judge under the same conditions."""
    scripts = [_choose_script(store, finding) for finding in findings]
    settled: set[str] = set()
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        paths = [Path(folder, finding.public_id, "repro.py") for finding in findings]
        for path, (source, _) in zip(paths, scripts, strict=True):
            path.parent.mkdir()
            path.write_text(source, encoding="utf-8")
        with contextlib.closing(triage_files(paths, conditions)) as answers:
            for finding, (source, best) in zip(findings, scripts, strict=True):
                if on_start is not None:
                    on_start(finding.public_id)
                answer = next(answers)
                if store.finding(finding.public_id).public_id in settled:
                    continue  # it was merged into one that has been judged
                refreshed = _refresh_finding(store, finding, source, best, answer, conditions)
                settled.add(refreshed.kept)
                yield refreshed


def _choose_script(store: Store, finding: Finding) -> tuple[str, Reproducer | None]:
    """Return the source to judge, that of the best reproducer, else of the case; and that reproducer."""
    best = store.best_reproducer(finding.public_id)
    return (finding.source if best is None else best.source), best


def _refresh_finding(
    store: Store, finding: Finding, source: str, best: Reproducer | None, answer: FileAnswer, conditions: Conditions
) -> RefreshResult:
    report = answer.report
    if report is None:
        return _leave_finding(finding, "not judged", answer.error or "")
    if not report["is_bug"]:
        return _leave_finding(finding, "gone", f"on torch {report['torch']} it shows no bug: {report['verdict']}")
    if Verdict(report["verdict"]).kind != Verdict(finding.verdict).kind:
        return _leave_finding(finding, "differs", f"on torch {report['torch']} the verdict is {report['verdict']}")
    try:
        made = _make_reproducer(source, report, best)
    except FuzzcompileError as error:  # a script is no case: it has no reproducer to build
        return _leave_finding(finding, "not judged", str(error))
    if not made.confirmed:
        return _leave_finding(finding, "not confirmed", "its reproducer shows nothing when run alone")
    environment = describe_environment(resolve_device(conditions.device), conditions.target)
    made = replace(made, environment=environment)
    kept = store.add_reproducer(finding.public_id, made, replaces=hash_source(source))
    return RefreshResult(finding.public_id, "refreshed", kept.public_id, kept.signature)


def _make_reproducer(source: str, report: ReportJson, best: Reproducer | None) -> Reproducer:
    """The reproducer made anew, with its plain script and ladder."""
    neighbour = None if best is None else best.neighbour
    shown = show(source, report, neighbour, for_issue=True)
    if shown.interrupted:
        raise KeyboardInterrupt
    return Reproducer(
        source=shown.reproducer,
        sha256=hash_source(shown.reproducer),
        lines=len(shown.reproducer.splitlines()),
        kind=_AS_FOUND if best is None else best.kind,
        confirmed=shown.confirmed,
        torch=report["torch"],
        report=report,
        neighbour=neighbour,
        program=program_key(shown.reproducer),
        shown=shown.plain,
    )


def _leave_finding(finding: Finding, result: Result, note: str) -> RefreshResult:
    return RefreshResult(finding.public_id, result, finding.public_id, finding.signature, note)
