"""The findings of a corpus as a report lists them: each with its sentence, what became of it, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

from markupsafe import Markup

from fuzzcompile.corpus.marking import Mark, issue_url, status_of
from fuzzcompile.corpus.overview import Overview
from fuzzcompile.corpus.records import Finding, Related, Reproducer, StoredReplay, Umbrella
from fuzzcompile.corpus.replay.history import History, history
from fuzzcompile.corpus.replay.status import Status
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.signatures import UNATTRIBUTED
from fuzzcompile.report.facts import IssueFacts
from fuzzcompile.report.filing import Refusal, refusal_of
from fuzzcompile.report.machines import seen_on
from fuzzcompile.report.pages.judged import Judged
from fuzzcompile.report.pages.markup import inline, scrubbed
from fuzzcompile.report.verdict import name_of
from fuzzcompile.report.versions import versions
from fuzzcompile.report.wording import title

# What each severity does to a user, in a word or two.
SEVERITIES: dict[str, str] = {
    Severity.SILENT: "silently wrong",
    Severity.ERROR: "raises",
    Severity.ALIASING: "aliasing",
    Severity.RAISING_LAYOUT: ".view() raises",
    Severity.LAYOUT: "layout",
    Severity.ACCEPTS_INVALID: "accepts invalid",
}


@dataclass(frozen=True)
class Entry:
    """A finding with all that its page shows.

    Attributes:
        hit: whether the campaign of the summary hit it; None without a summary.
        new: whether that campaign was the first.
    """

    finding: Finding
    facts: IssueFacts
    reproducer: Reproducer | None
    replays: Sequence[StoredReplay]
    hit: bool | None = None
    new: bool = False

    @property
    def name(self) -> str:
        """F1, F2 and so on: the address of its page in the report."""
        return self.finding.public_id

    @cached_property
    def judged(self) -> Judged:
        """What its report says."""
        return Judged(self.facts, self.facts.subject)

    @cached_property
    def title(self) -> Markup:
        """What goes wrong, in a sentence."""
        return inline(title(self.facts))

    @cached_property
    def refusal(self) -> Refusal | None:
        """Why it is not to be filed as an issue; None if it is fit to be."""
        return refusal_of(self.facts)

    @property
    def history(self) -> History:
        """How it fared on other versions of torch."""
        return self.facts.history or History({})

    @property
    def is_fixed(self) -> bool:
        """Whether the newest torch that was tried does not show it."""
        newest = self.history.newest
        return newest is not None and self.history.torch[newest] == Status.FIXED

    @property
    def stage(self) -> str:
        """The stage at fault."""
        return str((self.finding.culprit or {}).get("stage") or UNATTRIBUTED)

    @property
    def severity(self) -> str:
        """The word of its severity, ``unknown`` in a corpus that does not say."""
        return self.finding.severity or "unknown"

    @property
    def effect(self) -> str:
        """Its severity in plain words."""
        return SEVERITIES.get(self.severity, self.severity)

    @property
    def status(self) -> str:
        """What a person said of it, or else of its group."""
        group = self.facts.umbrella
        return group.status if self.finding.status == "open" and group is not None else self.finding.status

    @property
    def issue(self) -> str | None:
        """The issue that a person named for it, or for its group, unless the reason against filing it has it."""
        group = self.facts.umbrella
        text = self.finding.issue or (group.issue if group is not None else None)
        if text is None or (self.refusal is not None and text in self.refusal.reason):
            return None
        try:
            return issue_url(text)
        except UsageError:  # an older corpus may hold any text
            return text

    @property
    def culprit(self) -> str:
        """The code at fault in a few words."""
        return name_of(self.facts.culprit)

    @property
    def place(self) -> tuple[bool, bool, tuple[int, bool, int, int]]:
        """Sorts what matters first: what is open and not known to be fixed, then the worst."""
        return (self.status != "open", self.is_fixed, self.finding.place)

    @property
    def seen_on(self) -> str:
        """On how many machines it was seen."""
        return seen_on(self.finding.machines)

    @property
    def versions(self) -> list[tuple[str, str]]:
        """Where its report was made."""
        return versions({**self.facts.environment, **self.facts.where})

    @property
    def search_text(self) -> str:
        """What a search of the list finds it by, besides what the list shows."""
        return " ".join(filter(None, (self.finding.signature, self.finding.note, self.finding.umbrella)))


def entries_of(
    read: Overview, groups: Iterable[Umbrella] = (), campaign: Mapping[str, bool] | None = None
) -> list[Entry]:
    """The findings, what matters first in front.

    Args:
        read: what the corpus holds.
        groups: what a person said of groups of findings.
        campaign: the signatures that a campaign hit, each with whether it was the first to; None if no campaign is
            looked at.
    """
    said = {group.name: group for group in groups}
    entries = [_entry(read, finding, said.get(finding.umbrella or ""), campaign) for finding in read.findings]
    return sorted(entries, key=lambda entry: entry.place)


def _entry(read: Overview, finding: Finding, group: Umbrella | None, campaign: Mapping[str, bool] | None) -> Entry:
    reproducer, replays = read.reproducers.get(finding.id), read.replays.get(finding.id, ())
    seen = {"torch": next(iter(finding.torch_versions), None), "device": next(iter(finding.devices), None)}
    mark = Mark(status_of(finding.status), finding.issue, finding.duplicate_of, finding.note)
    related: Sequence[Related] = read.related.get(finding.id, ())
    facts = IssueFacts(
        cast("ReportJson", scrubbed(finding.report)),
        reproducer.source if reproducer is not None else None,
        read.environments.get(finding.id) or seen,
        finding.first_seen.date().isoformat(),
        finding.hits,
        confirmed=reproducer is not None and reproducer.confirmed,
        shown=(reproducer.shown if reproducer is not None else None) or {},
        history=history(replays),
        related=related,
        searched=finding.searched.date().isoformat() if finding.searched else None,
        queries=finding.queries or (),
        mark=mark,
        subject=CommandSubject(finding.public_id, published=True),
        umbrella=group,
        machines=finding.machines,
    )
    names = {finding.signature, *read.former.get(finding.id, ())} & set(campaign or ())
    new = campaign is not None and any(campaign[name] for name in names)
    return Entry(finding, facts, reproducer, replays, None if campaign is None else bool(names), new)
