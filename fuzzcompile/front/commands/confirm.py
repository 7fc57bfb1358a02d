"""Confirmation of another machine's findings on this one: judge them, and store whether they show here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fuzzcompile.corpus.machines import conditions as conditions_of
from fuzzcompile.corpus.machines import find_place
from fuzzcompile.corpus.records import CaseRecord, Finding, identify_compiler, public_id
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.commands.triage import FileAnswer, triage_files
from fuzzcompile.fuzz.campaign.leftovers import ORIGIN, PendingConfirmation, make_confirmation
from fuzzcompile.model.conditions import Conditions
from fuzzcompile.model.contract import read_target
from fuzzcompile.run.device import describe_environment, resolve_device

Result = Literal["confirmed", "shows here", "not reproduced", "differs", "not judged", "left out"]


@dataclass(frozen=True)
class ConfirmationResult:
    """The result of judging a finding on this machine.

    ``result`` is "confirmed" (it is seen on two machines now), "shows here" (but the other machine is not known),
    "not reproduced", "differs" (its program shows another bug), "not judged", or "left out" where this machine cannot
    add to what is known. ``note`` is one sentence for the user.
    """

    finding: str
    result: Result
    note: str


def confirm(
    store: Store, names: Sequence[str], conditions: Conditions, *, on_start: Callable[[str], None] | None = None
) -> Iterator[ConfirmationResult]:
    """Judge the program of each finding here, unless this machine cannot add to what is known, and store the verdict.

    Args:
        store: the corpus.
        names: public ids of findings; with none, all open ones that wait for a machine like this and may be run.
        conditions: where to run them. A finding of a target is judged for that target.
        on_start: called with the name of each finding before it is judged.

    Raises:
        EnvironmentUnfit: no worker can be started.
    """
    of_one = [each.id for each in store.summaries("open") if each.trusted and each.machines.count == 1]
    found = [store.finding(name) for name in names or of_one]
    targets = dict.fromkeys(conditions.target or read_target(finding.report) for finding in found)
    for target in targets:
        where = conditions if target is None else replace(conditions, device="cpu", target=target)
        environment = describe_environment(resolve_device(where.device), target)
        group = [finding for finding in found if (conditions.target or read_target(finding.report)) == target]
        wait = [finding for finding in group if _explain_exclusion(finding, environment, named=bool(names)) is None]
        if names:
            for finding in group:
                if (why := _explain_exclusion(finding, environment, named=True)) is not None:
                    yield ConfirmationResult(finding.public_id, "left out", why)
        yield from _judge_findings(store, wait, where, environment, on_start)


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


def _judge_findings(
    store: Store,
    findings: Sequence[Finding],
    conditions: Conditions,
    environment: Mapping[str, object],
    on_start: Callable[[str], None] | None,
) -> Iterator[ConfirmationResult]:
    asked = [make_confirmation(store, finding) for finding in findings]
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        paths = [Path(folder, f"{confirmation.finding}.py") for confirmation in asked]
        for path, confirmation in zip(paths, asked, strict=True):
            path.write_text(confirmation.case.source, encoding="utf-8")
        with closing(triage_files(paths, conditions)) as answers:
            for confirmation in asked:
                if on_start is not None:
                    on_start(confirmation.finding)
                yield _store_answer(store, confirmation, next(answers), environment)


def _store_answer(
    store: Store, asked: PendingConfirmation, answer: FileAnswer, environment: Mapping[str, object]
) -> ConfirmationResult:
    report, case = answer.report, asked.case
    if report is None:
        return ConfirmationResult(asked.finding, "not judged", answer.error or "")
    record = CaseRecord(case.sha256, case.source, ORIGIN)
    stored = store.record(None, record, environment, report, token=_make_token(asked, environment))
    finding = store.finding(asked.finding)
    if stored.finding_id == finding.id:
        if finding.machines.second_machine == "confirmed":
            return ConfirmationResult(
                asked.finding, "confirmed", f"{report['verdict']}, on {finding.machines.count} machines"
            )
        return ConfirmationResult(
            asked.finding, "shows here", "the machine that first showed it is not recorded, or not trusted"
        )
    if stored.finding_id is not None:
        seen = f"{report['verdict']}, {report['signature']}"
        return ConfirmationResult(asked.finding, "differs", f"it shows {public_id(stored.finding_id)} here: {seen}")
    return ConfirmationResult(asked.finding, "not reproduced", f"on this machine: {report['verdict']}")


def _make_token(asked: PendingConfirmation, environment: Mapping[str, object]) -> str:
    """Return the key under which a case judged twice by one machine under the same conditions is stored once."""
    where = f"{identify_compiler(environment)} {environment['device']}"
    return f"confirm:{asked.case.sha256[:16]}:{environment['machine']}:{sha256(where.encode()).hexdigest()[:16]}"
