"""A search for public reports on a stored finding, kept in the corpus."""

from __future__ import annotations

from collections.abc import Callable

from fuzzcompile.corpus.records import Finding, Reproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson
from fuzzcompile.report.github_search import GitHub, Search, search


def search_reports(store: Store, name: str, notify: Callable[[str], None]) -> Search:
    """Search GitHub for reports on a finding, and store them in place of those of an earlier search.

    Args:
        store: the open corpus.
        name: of the finding.
        notify: is given a sentence before each wait.

    Raises:
        UsageError: there is no such finding.
        SearchFailed: GitHub did not answer; what an earlier search found is kept.
    """
    finding, reproducer = store.finding(name), store.best_reproducer(name)
    shown = (reproducer.shown if reproducer is not None else None) or {}
    source = reproducer.source if reproducer is not None else finding.source
    with GitHub.of_environment(notify) as github:
        result = search(_choose_report(finding, reproducer), source, github, shown.get("expression", ""))
    store.keep_related(name, result.related, list(dict.fromkeys(asked.query for asked in result.asked)))
    return result


def _choose_report(finding: Finding, reproducer: Reproducer | None) -> ReportJson:
    """The report of the reproducer, with the culprit of the finding where the reproducer's names less."""
    own = reproducer.report if reproducer is not None else None
    if own is None:
        return finding.report
    return {**own, "culprit": max((own.get("culprit"), finding.report.get("culprit")), key=_rank_culprit)}


def _rank_culprit(culprit: CulpritJson | None) -> tuple[bool, bool]:
    return (bool(culprit and culprit.get("necessary")), bool(culprit and culprit.get("source")))
