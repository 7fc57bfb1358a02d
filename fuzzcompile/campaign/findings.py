"""Reproducers and issue drafts of findings: one is stored in the corpus, the other written to a folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fuzzcompile.corpus import Kept, Mark, Reproducer, Store
from fuzzcompile.corpus.marking import status_of
from fuzzcompile.hints import Named
from fuzzcompile.replaying.history import history
from fuzzcompile.reporting.facts import IssueFacts
from fuzzcompile.reporting.filing import refusal_of
from fuzzcompile.reporting.index import INDEX, entry_of, with_entry
from fuzzcompile.reporting.issue import draft_issue
from fuzzcompile.reporting.umbrella import draft_umbrella
from fuzzcompile.signatures import source_hash
from fuzzcompile.worker.reductions import Minimized


def keep_reproducer(
    store: Store, finding: str, minimized: Minimized, environment: Mapping[str, object] | None = None
) -> Kept:
    """Store the reproducer of ``finding`` (its public id, signature or the beginning of one).

    Args:
        store: the open corpus.
        finding: the finding that was minimized.
        minimized: the result.
        environment: where it was minimized, if that is known (`fuzzcompile.execution.environment.describe`).

    Returns:
        The finding that has the reproducer now: findings that turn out to be the same bug are merged.
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
    """Return the facts that a draft may state about a stored finding.

    Raises:
        UsageError: the corpus has no such finding.
    """
    stored = store.finding(finding)
    reproducer = store.best_reproducer(finding)
    return IssueFacts(
        stored.report,
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
        mark=Mark(status_of(stored.status), stored.issue, stored.duplicate_of, stored.note),
        umbrella=store.umbrella(stored.umbrella),
        machines=stored.machines,
        subject=Named(stored.public_id, {"corpus": store.location}),
    )


def umbrella_draft(store: Store, name: str) -> str | None:
    """Draft one issue for a group of findings; return None if the corpus has no findings in a group of that name."""
    members = [facts_of(store, finding.public_id) for finding in store.summaries() if finding.umbrella == name]
    group = store.umbrella(name)
    return draft_umbrella(group, members) if members and group is not None else None


def write_draft(store: Store, finding: str, folder: Path) -> None:
    """Write the draft of ``finding`` into ``folder``, which is created if needed, and its line in the index there.

    A finding that is not to be filed gets a line with the reason, and no draft. For a finding that was merged into
    another, the draft and line of the other are written. If the finding is in a group, the draft of the group is
    written as well.

    Raises:
        OSError: a file cannot be written.
    """
    name, facts = store.finding(finding).public_id, facts_of(store, finding)
    facts = replace(facts, subject=facts.subject.to_publish())
    refusal = refusal_of(facts)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / INDEX
    for gone in {finding, name} - ({name} if refusal is None else set()):
        (folder / f"{gone}.md").unlink(missing_ok=True)
    if refusal is None:
        (folder / f"{name}.md").write_text(draft_issue(facts), encoding="utf-8")
    if facts.umbrella is not None and (group := umbrella_draft(store, facts.umbrella.name)) is not None:
        (folder / f"{facts.umbrella.name}.md").write_text(group, encoding="utf-8")
    earlier = index.read_text(encoding="utf-8") if index.is_file() else ""
    index.write_text(with_entry(earlier, entry_of(name, facts, refusal), replaces=finding), encoding="utf-8")
