"""What is kept of a finding beside its runs: its reproducer in the corpus, its issue draft in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fuzzcompile.case import source_hash
from fuzzcompile.corpus import Kept, Reproducer, Store
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.issue import draft_issue
from fuzzcompile.worker.minimize import Minimized


def keep_reproducer(
    store: Store, finding: str, minimized: Minimized, environment: Mapping[str, object] | None = None
) -> Kept:
    """Store the reproducer of ``finding`` (its public id, signature or the beginning of one).

    Args:
        store: the open corpus.
        finding: what was minimized.
        minimized: the result.
        environment: where it was minimized, if it is known (`fuzzcompile.execution.environment.describe`).

    Returns:
        The finding that has it now: findings that were seen to be the same bug are merged.
    """
    return store.add_reproducer(
        finding,
        Reproducer(
            source=minimized.reproducer,
            sha256=source_hash(minimized.reproducer),
            lines=minimized.lines_after,
            kind=minimized.how,
            confirmed=minimized.confirmed,
            torch=minimized.report["torch"],
            report=minimized.report,
            neighbour=minimized.neighbour,
            program=minimized.program_key,
            shown=minimized.shown,
            case_sha256=source_hash(minimized.original) if minimized.original else None,
            environment=environment,
        ),
    )


def draft_of(store: Store, finding: str | int) -> str:
    """The issue draft of a stored finding, in Markdown.

    Raises:
        UsageError: the corpus has no such finding.
    """
    stored = store.finding(finding)
    reproducer = store.best_reproducer(finding)
    return draft_issue(
        IssueFacts(
            reproducer.report if reproducer is not None and reproducer.report else stored.report,
            reproducer.source if reproducer is not None else None,
            store.environment_of(finding),
            stored.first_seen.date().isoformat(),
            stored.hits,
            confirmed=reproducer is not None and reproducer.confirmed,
        )
    )


def write_draft(store: Store, finding: str, folder: Path) -> None:
    """Write the draft of ``finding`` into ``folder``, which is made if need be.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{finding}.md").write_text(draft_of(store, finding), encoding="utf-8")
