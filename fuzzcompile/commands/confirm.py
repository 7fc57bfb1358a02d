"""Confirmation of another machine's findings on this one: judge them, and store whether they show here."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from fuzzcompile.campaign.confirming import ORIGIN, Confirmation, confirmation_of
from fuzzcompile.commands.triage import Answer, triage_files
from fuzzcompile.contract import told
from fuzzcompile.corpus import CaseRecord, Finding, Store, compiler_of, public_id
from fuzzcompile.corpus.machines import conditions as conditions_of
from fuzzcompile.corpus.machines import place_of
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.worker.conditions import Conditions

Result = Literal["confirmed", "shows here", "not reproduced", "differs", "not judged", "left out"]


@dataclass(frozen=True)
class Confirmed:
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
) -> Iterator[Confirmed]:
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
    targets = dict.fromkeys(conditions.target or told(finding.report) for finding in found)
    for target in targets:
        where = conditions if target is None else replace(conditions, device="cpu", target=target)
        environment = describe(resolve(where.device), target)
        group = [finding for finding in found if (conditions.target or told(finding.report)) == target]
        wait = [finding for finding in group if _why_not(finding, environment, named=bool(names)) is None]
        if names:
            for finding in group:
                if (why := _why_not(finding, environment, named=True)) is not None:
                    yield Confirmed(finding.public_id, "left out", why)
        yield from _judged(store, wait, where, environment, on_start)


def _why_not(finding: Finding, environment: Mapping[str, object], *, named: bool) -> str | None:
    """Return why judging a finding here would tell nothing new; one that is ``named`` may be of any machine."""
    machines = finding.machines
    place = place_of(environment)
    if place in machines.shown:
        return "it was seen on this machine: confirm it on another one"
    if place in machines.judged:
        return "this machine has judged its program already"
    if not (named or machines.waits_for(environment)):
        return "it does not wait for this machine"
    if conditions_of(environment) not in machines.under:
        return f"it was not seen under torch {compiler_of(environment)} on {environment['device']}"
    return None


def _judged(
    store: Store,
    findings: Sequence[Finding],
    conditions: Conditions,
    environment: Mapping[str, object],
    on_start: Callable[[str], None] | None,
) -> Iterator[Confirmed]:
    asked = [confirmation_of(store, finding) for finding in findings]
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        paths = [Path(folder, f"{confirmation.finding}.py") for confirmation in asked]
        for path, confirmation in zip(paths, asked, strict=True):
            path.write_text(confirmation.case.source, encoding="utf-8")
        with closing(triage_files(paths, conditions)) as answers:
            for confirmation in asked:
                if on_start is not None:
                    on_start(confirmation.finding)
                yield _stored(store, confirmation, next(answers), environment)


def _stored(store: Store, asked: Confirmation, answer: Answer, environment: Mapping[str, object]) -> Confirmed:
    report, case = answer.report, asked.case
    if report is None:
        return Confirmed(asked.finding, "not judged", answer.error or "")
    record = CaseRecord(case.sha256, case.source, ORIGIN)
    stored = store.record(None, record, environment, report, token=_token(asked, environment))
    finding = store.finding(asked.finding)
    if stored.finding_id == finding.id:
        if finding.machines.second_machine == "confirmed":
            return Confirmed(asked.finding, "confirmed", f"{report['verdict']}, on {finding.machines.count} machines")
        return Confirmed(
            asked.finding, "shows here", "the machine that first showed it is not recorded, or not trusted"
        )
    if stored.finding_id is not None:
        seen = f"{report['verdict']}, {report['signature']}"
        return Confirmed(asked.finding, "differs", f"it shows {public_id(stored.finding_id)} here: {seen}")
    return Confirmed(asked.finding, "not reproduced", f"on this machine: {report['verdict']}")


def _token(asked: Confirmation, environment: Mapping[str, object]) -> str:
    """Return the key under which a case judged twice by one machine under the same conditions is stored once."""
    where = f"{compiler_of(environment)} {environment['device']}"
    return f"confirm:{asked.case.sha256[:16]}:{environment['machine']}:{sha256(where.encode()).hexdigest()[:16]}"
