"""The draft of one issue for a group of minor findings: a table of what each shows, and their scripts, folded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fuzzcompile.model.privacy import fold_lines, scrub
from fuzzcompile.model.templates import get_environment
from fuzzcompile.model.verdicts import Verdict
from fuzzcompile.report.effects import pair, refusal
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.versions import versions

if TYPE_CHECKING:
    from fuzzcompile.corpus.records import Umbrella


_LONGEST = 120
_CLOSED = ("dup", "fixed", "invalid", "wontfix")


@dataclass(frozen=True)
class Row:
    """What one finding shows, as cells of a Markdown table."""

    finding: str
    operator: str
    call: str
    invalid: str
    eager: str
    compiled: str


def draft_umbrella(group: Umbrella, members: Sequence[IssueFacts]) -> str:
    """The draft of a group's issue, in Markdown.

    Args:
        group: the group, and what a person said of it.
        members: its findings; those that a person closed are left out.
    """
    kept = [facts for facts in members if facts.mark is None or facts.mark.status not in _CLOSED]
    refuses = all(facts.verdict == Verdict.ACCEPTS_INVALID for facts in kept)
    return (
        get_environment()
        .get_template("reports/umbrella.md.j2")
        .render(
            group=group,
            refuses=refuses,
            rows=sorted((_row(facts) for facts in kept), key=lambda row: (row.operator, row.call)),
            scripts=[(facts.subject.name, scrub(script)) for facts, script in _scripts(kept)],
            versions=versions(kept[0].environment) if kept else [],
            unconfirmed=[facts.subject.name for facts in kept if not facts.confirmed],
        )
    )


def _row(facts: IssueFacts) -> Row:
    culprit, cause = facts.culprit or {}, facts.cause or {}
    kind, message = refusal(facts) if facts.verdict == Verdict.ACCEPTS_INVALID else ("", "")
    seen = pair(facts.wrong[0]) if facts.wrong else None
    eager, compiled = seen or ("", fold_lines(facts.detail))
    if kind:
        gives = facts.report.get("evidence", {}).get("gives")
        eager, compiled = f"{kind}: {message}", str(gives or "runs")
    operator = culprit.get("rewrite") or culprit.get("family") or "unknown"
    cells = (str(operator), facts.expression or "", str(cause.get("before") or ""), eager, compiled)
    return Row(facts.subject.name, *map(_cell, cells))


def _cell(text: str) -> str:
    """Text as code that neither ends the cell nor the code."""
    short = fold_lines(scrub(text), _LONGEST).replace("|", "\\|").replace("`", "'")
    return f"`{short}`" if short else "not known"


def _scripts(members: Sequence[IssueFacts]) -> Iterator[tuple[IssueFacts, str]]:
    for facts in members:
        script = facts.plain or facts.reproducer
        if script is not None:
            yield facts, script
