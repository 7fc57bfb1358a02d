"""Issue drafts of findings."""

from __future__ import annotations

from pathlib import Path

from fuzzcompile.corpus import Store
from fuzzcompile.execution.device import resolve
from fuzzcompile.execution.environment import describe
from fuzzcompile.reporting.issue import draft_issue, facts_from
from fuzzcompile.worker.judge import Shrunk


def draft_of(store: Store, finding: str | int) -> str:
    """The issue draft of a stored finding, in Markdown.

    Raises:
        UsageError: the corpus has no such finding.
    """
    found = store.finding(finding)
    reproducer = store.best_reproducer(finding)
    report = reproducer.report if reproducer is not None and reproducer.report else found.report
    return draft_issue(
        facts_from(
            report,
            reproducer.source if reproducer is not None else None,
            store.environment_of(finding),
            found.first_seen.date().isoformat(),
            found.hits,
            confirmed=reproducer is not None and reproducer.confirmed,
        )
    )


def draft_of_report(shrunk: Shrunk, device: str) -> str:
    """The issue draft of a case that is in no corpus."""
    environment = describe(resolve(device))
    return draft_issue(facts_from(shrunk.report, shrunk.reproducer, environment, None, 1, confirmed=shrunk.confirmed))


def write_draft(store: Store, finding: str, folder: Path) -> Path:
    """Write the draft of ``finding`` to ``folder`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding}.md"
    path.write_text(draft_of(store, finding), encoding="utf-8")
    return path
