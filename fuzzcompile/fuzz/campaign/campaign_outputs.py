"""The files that a campaign writes besides the corpus: log, summary, SARIF, issue drafts; and its reproducers."""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from fuzzcompile.corpus.records import Reproducer, StoredReproducer
from fuzzcompile.corpus.store import Store
from fuzzcompile.fuzz.campaign.campaign_events import (
    CaseJudged,
    Event,
    FindingReduced,
    FindingsMerged,
    Finished,
    Started,
    Tick,
)
from fuzzcompile.fuzz.cluster.cluster_state import ClusterChange
from fuzzcompile.model.hints import CommandSubject
from fuzzcompile.model.signatures import hash_source
from fuzzcompile.model.versions import __version__
from fuzzcompile.programs.shrink.outcome import MinimizeResult
from fuzzcompile.report.ci_formats import Scanned
from fuzzcompile.report.ci_formats import sarif as sarif_log
from fuzzcompile.report.filing import INDEX, find_refusal, make_entry, with_entry
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.issue_draft import draft_issue, draft_umbrella, is_worth_one_issue
from fuzzcompile.report.output_files import EventLog, check_writable, write_whole


def keep_reproducer(
    store: Store, finding: str, minimized: MinimizeResult, environment: Mapping[str, object] | None = None
) -> StoredReproducer:
    """Store the reproducer of ``finding``, minimized in ``environment``; return the finding that has it now.

    Findings that turn out to be the same bug are merged.
    """
    return store.add_reproducer(
        finding,
        Reproducer(
            source=minimized.reproducer,
            sha256=hash_source(minimized.reproducer),
            lines=minimized.lines_after,
            kind=minimized.how,
            confirmed=minimized.confirmed,
            torch=minimized.report["torch"],
            report=minimized.report,
            neighbour=minimized.neighbour,
            program=minimized.program_key,
            shown=minimized.shown,
            case_sha256=hash_source(minimized.original) if minimized.original else None,
            environment=environment,
        ),
    )


def collect_issue_facts(store: Store, finding: str | int) -> IssueFacts:
    """Return the facts that a draft may state about a stored finding."""
    stored = store.finding(finding)
    facts = IssueFacts.of_stored(
        stored,
        store.best_reproducer(finding),
        store.environment_of(finding),
        store.replays(finding),
        store.related(finding),
        store.umbrella(stored.umbrella),
        CommandSubject(stored.public_id, {"corpus": store.location}),
    )
    return replace(facts, grouped=store.count_grouped(stored.umbrella)) if stored.umbrella else facts


def draft_group(store: Store, name: str) -> str | None:
    """Draft one issue for a group of findings; return None if the corpus has no findings in a group of that name."""
    group, members = store.umbrella(name), _collect_group(store, name)
    return draft_umbrella(group, members) if members and group is not None else None


def _collect_group(store: Store, name: str) -> list[IssueFacts]:
    return [collect_issue_facts(store, finding.public_id) for finding in store.summaries() if finding.umbrella == name]


def write_draft(store: Store, finding: str, folder: Path) -> None:
    """Write the draft of ``finding`` into ``folder``, which is created if needed, and its line in the index there.

    A finding that is not to be filed gets a line with the reason, and no draft. Of a finding that was merged into
    another, that of the other is written, and the draft of its group as well where that is worth one issue.

    Raises:
        OSError: a file cannot be written.
    """
    name, facts = store.finding(finding).public_id, collect_issue_facts(store, finding)
    facts = replace(facts, subject=facts.subject.to_publish())
    refusal = find_refusal(facts)
    folder.mkdir(parents=True, exist_ok=True)
    index = folder / INDEX
    for gone in {finding, name} - ({name} if refusal is None else set()):
        (folder / f"{gone}.md").unlink(missing_ok=True)
    if refusal is None:
        (folder / f"{name}.md").write_text(draft_issue(facts), encoding="utf-8")
    if (group := facts.umbrella) is not None:
        of_group, members = folder / f"{group.name}.md", _collect_group(store, group.name)
        if is_worth_one_issue(group, members):
            of_group.write_text(draft_umbrella(group, members), encoding="utf-8")
        else:
            of_group.unlink(missing_ok=True)
    earlier = index.read_text(encoding="utf-8") if index.is_file() else ""
    index.write_text(with_entry(earlier, make_entry(name, facts, refusal), replaces=finding), encoding="utf-8")


# Seconds between two lines of counters in a log: they change with every case, which has a line of its own.
_TICK_SECONDS = 10.0


def format_entry(event: Event) -> tuple[str, Mapping[str, object]]:
    """Return the name of an event and its fields."""
    match event:
        case Started():
            return "campaign_started", {**vars(event), "budget": str(event.budget)}
        case CaseJudged():
            return "case_judged", {**vars(event), "seconds": round(event.seconds, 3)}
        case FindingReduced():
            small = event.minimized
            reduced = {"lines_before": small.lines_before, "lines": small.lines_after, "confirmed": small.confirmed}
            spent = {"tests": small.tests, "seconds": round(small.seconds, 1)}
            return "finding_reduced", {"finding": event.finding, **reduced, **spent}
        case FindingsMerged():
            return "findings_merged", {"finding": event.finding, "merged": list(event.merged)}
        case Tick():
            tally, cluster = event.tally, {} if event.cluster is None else {"cluster": vars(event.cluster)}
            rounded = {"verdicts": dict(tally.verdicts), "seconds": round(tally.seconds, 1)}
            return "progress", {**vars(tally), **rounded, **cluster}
        case Finished():
            return "campaign_finished", event.to_json()
        case ClusterChange():
            return event.event, event.fields
        case _:  # "trouble", "finding_found"
            return re.sub(r"(?<!^)(?=[A-Z])", "_", type(event).__name__).lower(), vars(event)


class CampaignOutputs(contextlib.ExitStack):
    """The requested files of one campaign: log, SARIF of the findings that it hit, and summary; all are checked before.

    The summary is written whole at the end, after an interrupt too; ``location`` is that of the corpus.
    """

    def __init__(self, log: Path | None, sarif: Path | None, summary: Path | None, location: str | None) -> None:
        super().__init__()
        self._sarif, self._summary, self._location = sarif, summary, location
        for path, option in ((sarif, "--sarif"), (summary, "--summary")):
            if path is not None:
                check_writable(path, option)
        self._log, self._ticked = self.enter_context(EventLog(log)), 0.0

    def log(self, event: Event) -> None:
        """Write an event to the log; of ticks, which come twice a second, only one every ten seconds."""
        if isinstance(event, Tick):
            if time.monotonic() - self._ticked < _TICK_SECONDS:
                return
            self._ticked = time.monotonic()
        self._log.write(*format_entry(event))

    def finish(self, finished: Finished) -> None:
        """Write the last event, the summary and the findings."""
        self.log(finished)
        if self._summary is not None:
            text = json.dumps(finished.to_json(), allow_nan=False, indent=1)
            write_whole(self._summary, f"{text}\n".encode(), "--summary")
        if self._sarif is not None:
            write_whole(self._sarif, sarif_log(self._collect_scanned(finished), __version__), "--sarif")

    def _collect_scanned(self, finished: Finished) -> list[Scanned]:
        with Store.open(self._location, create=False) as store:
            scanned = []
            for line in finished.findings:
                finding, best = store.finding(line.finding), store.best_reproducer(line.finding)
                report, source = finding.report, finding.source
                if best is not None and best.report is not None:
                    report, source = best.report, best.source
                name = finding.public_id
                scanned.append(Scanned(Path(f"{name}.py"), report, finding=name, content=source))
            return scanned
