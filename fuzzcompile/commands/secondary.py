"""Secondary findings: candidates of a reduction that fail in another way, judged and stored on their own."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.commands.triage import triage_files
from fuzzcompile.corpus import CaseRecord, Store, public_id
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.conditions import Conditions

# Most secondary candidates of one reduction show one bug in many sizes.
MOST = 4
ORIGIN = "reduction"


@dataclass(frozen=True)
class SecondaryFinding:
    """A candidate that shows a bug: the finding that it was stored under, and whether the corpus lacked it."""

    finding: str
    signature: str
    verdict: str
    is_new: bool


def store_secondary_findings(
    store: Store, sources: Sequence[str], conditions: Conditions, most: int = MOST
) -> list[SecondaryFinding]:
    """Judge the shortest ``most`` of the sources that the corpus lacks, and store those that show a bug.

    Raises:
        EnvironmentUnfit: no worker can be started.
    """
    new = sorted((source for source in sources if not store.has_source(source_hash(source))), key=len)[:most]
    if not new:
        return []
    environment, findings = describe(resolve(conditions.device), conditions.target), list[SecondaryFinding]()
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        paths = [Path(folder, f"other_{number}.py") for number in range(len(new))]
        for path, source in zip(paths, new, strict=True):
            path.write_text(source, encoding="utf-8")
        answers = triage_files(paths, conditions)
        for source, answer in zip(new, answers, strict=True):
            report = answer.report
            if report is None or not report["is_bug"]:
                continue
            stored = store.record(None, CaseRecord(source_hash(source), source, ORIGIN), environment, report)
            if stored.finding_id is not None:
                signature = report["signature"] or ""
                name = public_id(stored.finding_id)
                findings.append(SecondaryFinding(name, signature, report["verdict"], stored.is_new_finding))
    return findings
