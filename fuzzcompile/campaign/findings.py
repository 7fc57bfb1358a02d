"""What is kept of a finding beside its runs: its reproducer in the corpus, its issue draft in a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from fuzzcompile.case import source_hash
from fuzzcompile.corpus import Kept, Reproducer, Store
from fuzzcompile.replaying.history import history
from fuzzcompile.reporting.facts import IssueFacts, Mark
from fuzzcompile.reporting.filing import refusal_of
from fuzzcompile.reporting.index import INDEX, entry_of, with_entry
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


def facts_of(store: Store, finding: str | int) -> IssueFacts:
    """All that a draft may claim of a stored finding.

    Raises:
        UsageError: the corpus has no such finding.
    """
    stored = store.finding(finding)
    reproducer = store.best_reproducer(finding)
    umbrellas = {umbrella.name: umbrella for umbrella in store.umbrellas()}
    return IssueFacts(
        reproducer.report if reproducer is not None and reproducer.report else stored.report,
        reproducer.source if reproducer is not None else None,
        store.environment_of(finding),
        stored.first_seen.date().isoformat(),
        stored.hits,
        confirmed=reproducer is not None and reproducer.confirmed,
        shown=(reproducer.shown if reproducer is not None else None) or {},
        history=history(store.replays(finding)),
        related=store.related(finding),
        searched=stored.searched.date().isoformat() if stored.searched else None,
        queries=stored.queries or (),
        mark=Mark(stored.status, stored.issue, stored.note, stored.duplicate_of),
        umbrella=umbrellas.get(stored.umbrella or ""),
    )


def write_draft(store: Store, finding: str, folder: Path) -> None:
    """Write the draft of ``finding`` into ``folder``, which is made if need be, and its line in the index there.

    A finding that is not to be filed has a line that says why, and no draft.

    Raises:
        OSError: it cannot be written.
    """
    facts = facts_of(store, finding)
    refusal = refusal_of(facts)
    folder.mkdir(parents=True, exist_ok=True)
    draft, index = folder / f"{finding}.md", folder / INDEX
    if refusal is None:
        draft.write_text(draft_issue(facts), encoding="utf-8")
    else:
        draft.unlink(missing_ok=True)
    earlier = index.read_text(encoding="utf-8") if index.is_file() else ""
    index.write_text(with_entry(earlier, entry_of(finding, facts, refusal)), encoding="utf-8")
