"""A search for public reports on one finding, from its terms to the ranked links."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from fuzzcompile.corpus.records import Related
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.report.search.github import GitHub
from fuzzcompile.report.search.queries import queries_of
from fuzzcompile.report.search.ranking import Hit, ranked
from fuzzcompile.report.search.terms import terms_of

REPOSITORY: Final = "pytorch/pytorch"


@dataclass(frozen=True)
class Asked:
    """A query as it was asked: ``total`` reports of a kind match it, of which ``read`` were ranked."""

    query: str
    kind: str
    total: int
    read: int
    complete: bool


@dataclass(frozen=True)
class Search:
    """What was asked, and the likeliest reports first. That there are none is known only of what was asked."""

    repository: str
    when: datetime
    asked: Sequence[Asked]
    related: Sequence[Related]

    @property
    def incomplete(self) -> bool:
        """Whether GitHub ran out of time on a query, so that there may be more."""
        return not all(asked.complete for asked in self.asked)

    def to_text(self) -> str:
        """The ranked links with their reasons, then what was asked."""
        head = f"{len(self.related)} reports in {self.repository} may be about it:"
        none = f"No report in {self.repository} matches well enough, of those that these queries found:"
        lines = [head if self.related else none]
        for report in self.related:
            lines += [f"  {report.url}  {report.kind}, {report.state}: {report.title}", f"      {report.why}"]
        if self.related:
            lines.append("Asked, open and closed:")
        lines += [f"  {asked.query}  ({asked.read} of {asked.total} {asked.kind}s read)" for asked in self.asked]
        if self.incomplete:
            lines.append("GitHub ran out of time on a query, so that there may be more: search again later.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The search for machines."""
        return {
            "repository": self.repository,
            "searched": self.when.isoformat(timespec="seconds"),
            "queries": [vars(asked) for asked in self.asked],
            "related": [vars(report) for report in self.related],
        }


def search(report: ReportJson, source: str, github: GitHub, expression: str = "") -> Search:
    """Search PyTorch's issues and pull requests, open and closed, for a finding.

    Args:
        report: of the finding.
        source: the shortest program that shows it.
        github: where to ask.
        expression: the operation at fault in the user's words, where it is known.

    Raises:
        SearchFailed: GitHub did not answer one of the queries: a search that asked for less would claim too much.
    """
    terms = terms_of(report, source, expression)
    asked, hits = list[Asked](), list[Hit]()
    for query in queries_of(terms):
        for kind in ("issue", "pull request"):
            answer = github.search(query, kind, REPOSITORY)
            asked.append(Asked(query, kind, answer.total, len(answer.hits), answer.complete))
            hits += answer.hits
    when = datetime.now(UTC)
    return Search(REPOSITORY, when, asked, ranked(terms, hits, when))
