"""Corpora of findings for tests of the report on them."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from triage_reports import CULPRIT, SIGNATURE, output
from triage_reports import report as triage_report

from fuzzcompile.corpus.records import Campaign, CaseRecord, Coverage, Reproducer
from fuzzcompile.corpus.store import Store

MADE = datetime(2026, 11, 22, 12, 0, tzinfo=UTC)
ENVIRONMENT = {"torch": "2.13.0+cpu", "device": "cpu", "cpu": "Xeon"}


def found(
    store: Store, number: int, verdict: str = "miscompile", *, culprit_name: str | None = None, **fields: Any
) -> str:
    """Store a finding; return its name."""
    named = CULPRIT if culprit_name is None else {**CULPRIT, "rewrite": culprit_name}
    given = {"signature": f"{SIGNATURE}:cause{number}", "culprit": named, **fields}
    wrong = output(finding="far", max_abs_error_compiled=0.5)
    judged = triage_report(verdict, wrong, **given)
    campaign = store.start_campaign(Campaign(0, {}, "fuzzcompile run", "0.1.0", ENVIRONMENT))
    source = f"def make(): return {number}\n"
    case = CaseRecord(hashlib.sha256(source.encode()).hexdigest(), source, "generated")
    coverage = [Coverage("joint_graph", "pass_pattern_0", "addmm", "fired", 1)]
    recorded = store.record(campaign, case, ENVIRONMENT, judged, coverage)
    store.finish_campaign(campaign, {}, "budget")
    assert recorded.finding_id is not None
    return f"F{recorded.finding_id}"


def reproduced(store: Store, finding: str, source: str = "def make(): ...\n", **fields: Any) -> None:
    """Store a confirmed reproducer of a finding, with the finding's report or that of ``fields``."""
    fields.setdefault("report", dict(store.finding(finding).report))
    sha256 = hashlib.sha256(source.encode()).hexdigest()
    store.add_reproducer(finding, Reproducer(source, sha256, 1, "graph", True, "2.13.0+cpu", **fields))
