"""A corpus, or a campaign in it, as one self-contained HTML file: findings to filter, a page each, coverage, pace."""

from __future__ import annotations

import base64
import contextlib
import gzip
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import NamedTuple, cast

from markupsafe import Markup

from fuzzcompile.corpus.models import CampaignRow, CoverageRow, Umbrella
from fuzzcompile.corpus.reader import Judging, Overview
from fuzzcompile.corpus.records import Finding, identify_compiler
from fuzzcompile.corpus.replay.replay_history import ReplayStatus, history, order
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import issue_url
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.evidence import count_noun
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.model.package_files import find_template_folder
from fuzzcompile.model.package_files import get_environment as templates
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.signatures import UNATTRIBUTED
from fuzzcompile.model.stages import STAGES
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.circumstances import WORDS, seen_on, versions
from fuzzcompile.report.filing import find_refusal
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.pages.case_page import inline, scrubbed, view_report
from fuzzcompile.report.titles import title
from fuzzcompile.report.verdict_text import name_culprit


class FindingEntry:
    """A finding as its page and the list show it, with what a person said of its ``group``."""

    def __init__(
        self, read: Overview, finding: Finding, group: Umbrella | None, campaign: Mapping[str, bool] | None
    ) -> None:
        # ``campaign`` has the signatures that a campaign hit, and whether it was the first to; None if none is shown.
        self.finding = finding  # as the corpus stores it
        self.reproducer, self.replays = read.reproducers.get(finding.id), read.replays.get(finding.id, ())
        seen = {"torch": next(iter(finding.torch_versions), None), "device": next(iter(finding.devices), None)}
        facts = IssueFacts.of_stored(
            finding,
            self.reproducer,
            read.environments.get(finding.id) or seen,
            self.replays,
            read.related.get(finding.id, ()),
            group,
            CommandSubject(finding.public_id, published=True),
        )
        self.facts = replace(facts, report=cast("ReportJson", scrubbed(finding.report)))  # what may be claimed of it
        names = {finding.signature, *read.former.get(finding.id, ())} & set(campaign or ())
        self.hit = None if campaign is None else bool(names)  # whether the campaign hit it; ``new``: was the first to
        self.new = campaign is not None and any(campaign[name] for name in names)
        self.title = inline(title(self.facts))  # the fault, in a sentence
        self.refusal = find_refusal(self.facts)  # why it is not to be filed as an issue; None if it is fit to be
        self.history = history(self.replays)  # on other versions of torch; fixed if the newest does not show it
        newest = self.history.newest
        self.is_fixed = newest is not None and self.history.torch[newest] == ReplayStatus.FIXED
        self.stage = str((finding.culprit or {}).get("stage") or UNATTRIBUTED)
        self.culprit = name_culprit(self.facts.culprit)
        self.severity = finding.severity or "unknown"  # in a corpus that does not say
        self.effect = WORDS["effect"].get(self.severity, self.severity)
        self.status = group.status if finding.status == "open" and group is not None else finding.status
        self.issue = finding.issue or (group.issue if group is not None else None)
        if self.issue is not None and self.refusal is not None and self.issue in self.refusal.reason:
            self.issue = None
        with contextlib.suppress(UsageError):  # an older corpus may hold any text
            self.issue = issue_url(self.issue) if self.issue is not None else None

    @property
    def name(self) -> str:
        """F1, F2 and so on: the address of its page in the report."""
        return self.finding.public_id


FIRST = 5  # findings named at the top


def headlines(entries: Sequence[FindingEntry], summary: Mapping[str, object] | None) -> Iterator[str]:
    """Sentences on the whole, the most important first; none claims more than the corpus holds."""
    if summary is not None:
        yield from _about_campaign(entries, summary)
    if not entries:
        return
    severities = Counter(entry.severity for entry in entries)
    if parts := [f"{number} {WORDS['does'][word][number != 1]}" for word in Severity if (number := severities[word])]:
        yield f"{', '.join(parts)}."
    fit = sum(entry.refusal is None for entry in entries)
    known = sum(entry.status != "open" for entry in entries)
    marked = f"; {known} {_are(known)} marked as known or otherwise settled" if known else ""
    if fit or known:
        yield f"{fit or 'None'} {_are(fit)} fit to be filed as an issue{marked}."
    if tried := [entry for entry in entries if entry.history.newest is not None]:
        newest = sorted({str(entry.history.newest) for entry in tried})
        fixed = sum(entry.is_fixed for entry in tried)
        which = f"torch {newest[-1]}" if len(newest) == 1 else "the newest torch that it was tried on"
        yield f"{fixed} of the {len(tried)} that were run again {_are(fixed)} fixed in {which}."
    else:
        yield f"No other version of torch was tried: `{format_command('replay', published=True)}` does so."
    if bare := [entry.name for entry in entries if entry.reproducer is None]:
        command = format_command("minimize", bare[0], published=True)
        yield f"{len(bare)} {'has' if len(bare) == 1 else 'have'} no reproducer yet: `{command}` makes one."


def _about_campaign(entries: Sequence[FindingEntry], summary: Mapping[str, object]) -> Iterator[str]:
    hit, new = sum(bool(entry.hit) for entry in entries), sum(entry.new for entry in entries)
    cases, pace, listed = summary.get("cases"), summary.get("cases_per_minute"), summary.get("findings")
    speed = f" ({pace:g} a minute)" if isinstance(pace, int | float) else ""
    yield f"The campaign judged {cases} cases{speed}, hit {count_noun(hit, 'finding')}, {new} of them new."
    missing = (len(listed) if isinstance(listed, list) else 0) - hit
    if missing > 0:
        yield f"{count_noun(missing, 'finding')} of its summary {_are(missing)} not in this corpus."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


_BARS = 60
_LEAST_SECONDS = 5.0  # of time that a bar stands for: less would show single cases


class Pace:
    """A campaign and its cases, of which ``screened`` were judged without generated code."""

    def __init__(self, campaign: CampaignRow, judgings: Sequence[Judging]) -> None:
        self.campaign, self.compiler = campaign, identify_compiler(campaign.environment)
        self.ended = WORDS["ended"].get(campaign.ended or "", campaign.ended or "killed, or running still")
        self.cases, self.screened = len(judgings), sum(judging.screened for judging in judgings)
        ages = [(judging.moment - campaign.started).total_seconds() for judging in judgings]
        # From its start to its end, its last heartbeat or its last case.
        self.seconds = max([(campaign.end - campaign.started).total_seconds(), *ages, 1.0])
        self.per_minute = 60 * self.cases / self.seconds
        width = max(self.seconds / _BARS, min(_LEAST_SECONDS, self.seconds))
        full, all_ = Counter[int](), Counter[int]()  # full compiles, with those of screens on top of them
        for age, judging in zip(ages, judgings, strict=True):
            place = max(0, min(int(age / width), int(self.seconds / width)))
            all_[place] += 1
            full[place] += not judging.screened
        most, step = max(all_.values(), default=0), 100 / max(self.seconds / width, 1)
        self.top = 60 * most / width  # cases a minute at the upper end of the chart
        # The chart, as a path by colour, scaled to 100 by 100; empty without cases.
        self.bars = {
            kind: "".join(
                f"M{place * step:.2f} 100v-{100 * height / most:.1f}h{0.86 * step:.2f}V100z"
                for place, height in sorted(heights.items())
                if height
            )
            for kind, heights in (("screened", all_), ("full", full))
            if most
        }


class ReachedStage(NamedTuple):
    """One stage under one compiler: names that fired, that their own check always refused, that were only called."""

    stage: str
    fired: Sequence[str]
    refused: Sequence[str]
    called: Sequence[str]
    total: int


def reached(coverage: Iterable[CoverageRow]) -> dict[str, list[ReachedStage]]:
    """The stages in the compiler's order, by compiler."""
    stages = defaultdict[tuple[str, str], dict[str, set[str]]](lambda: defaultdict(set))
    for row in coverage:
        stages[row.torch, row.stage][row.outcome].add(row.rewrite)
    order = {stage: place for place, stage in enumerate(STAGES)}
    tables = defaultdict[str, list[ReachedStage]](list)
    for compiler, stage in sorted(stages, key=lambda key: (key[0], order.get(key[1], len(order)), key[1])):
        outcomes = stages[compiler, stage]
        fired, refused, called = (outcomes.get(name, set()) for name in ("fired", "refused", "fallback"))
        names = sorted(fired), sorted(refused - fired), sorted(called - fired - refused)
        tables[compiler].append(ReachedStage(stage, *names, sum(map(len, names))))
    return dict(tables)


# Pages that are packed together: enough to share words, few enough to unpack at once.
CHUNK = 40


def _pack_pages(pages: Sequence[str]) -> Iterator[str]:
    """Each chunk of pages as JSON, compressed by gzip (the same bytes for the same pages), in base64."""
    for start in range(0, len(pages), CHUNK):
        text = json.dumps(pages[start : start + CHUNK], ensure_ascii=False).encode(errors="replace")
        yield base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


_SCRIPTS = ("pages/vendor/highlight.min.js", "pages/report.js")
_CHARTS = 3  # campaigns with a chart; a table lists the latest
_LISTED = 50
_GRID = 100  # findings in the grid of versions


def page_of_corpus(store: Store, made: datetime, summary: Mapping[str, object] | None = None) -> str:
    """An open corpus as one HTML document, with what a campaign hit by its summary (``fuzzcompile run --summary``)."""
    read, groups = store.overview(), {group.name: group for group in store.umbrellas()}
    listed = None if summary is None else summary.get("findings")
    lines = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list) else []
    hit = None if summary is None else {str(line.get("signature")): bool(line.get("new")) for line in lines}
    entries = [FindingEntry(read, finding, groups.get(finding.umbrella or ""), hit) for finding in read.findings]
    # What is open and not known to be fixed, then the worst.
    entries.sort(key=lambda entry: (entry.status != "open", entry.is_fixed, entry.finding.place))
    first = [e for e in entries if e.status == "open" and not e.is_fixed and not e.finding.is_minor]
    # Findings by versions of torch; those that are left out have their answers on their own pages alone.
    tried = [entry for entry in entries if entry.history.torch]
    tried_versions = sorted({version for entry in tried for version in entry.history.torch}, key=order)
    judgings = defaultdict[int, list[Judging]](list)
    for judging in read.judgings:
        judgings[judging.campaign_id].append(judging)
    ran = [Pace(campaign, judgings[campaign.id]) for campaign in reversed(store.campaigns())]
    scripts = [(find_template_folder() / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    environment = templates()
    page = environment.get_template("pages/finding.html.j2")
    pages = [
        page.render(
            entry=entry,
            judged=view_report(entry.facts, entry.facts.subject),
            seen_on=seen_on(entry.finding.machines),
            versions=versions({**entry.facts.environment, **entry.facts.where}),
        )
        for entry in entries
    ]
    return environment.get_template(
        "pages/report.html.j2"
    ).render(
        name=store.location.partition("?")[0].replace("\\", "/").rstrip("/").rpartition("/")[2],  # without a path
        made=made,
        entries=entries,
        first=first[:FIRST],
        headlines=[inline(line) for line in headlines(entries, summary)],
        summary=summary,
        filters=list(_filters(entries)),
        words=WORDS["effect"],
        compilers=sorted({*(pace.compiler for pace in ran), *(v for e in entries for v in e.finding.torch_versions)}),
        cases=sum(pace.cases for pace in ran),
        charts=[pace for pace in ran if pace.bars][:_CHARTS],
        ran=ran[:_LISTED],
        campaigns=len(ran),
        coverage=reached(store.coverage()),
        grid={"versions": tried_versions, "rows": tried[:_GRID], "left_out": max(0, len(tried) - _GRID)},
        replay=format_command("replay", torch="2.12.0", published=True),
        coverage_of_torch=format_command("coverage", published=True),
        chunk=CHUNK,
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(f"'sha256-{name}'" for name in hashes),  # the scripts in a content security policy
        packed=_pack_pages(pages),
        fuzzcompile=__version__,
    )


def _filters(entries: Sequence[FindingEntry]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    known = {"severity": list(WORDS["effect"]), "stage": list(STAGES)}
    for key in ("severity", "verdict", "stage", "status"):
        counts = Counter(entry.finding.verdict if key == "verdict" else str(getattr(entry, key)) for entry in entries)
        places = {value: place for place, value in enumerate(known.get(key, []))}
        yield key, sorted(counts.items(), key=lambda item: (places.get(item[0], len(places)), -item[1], item[0]))
