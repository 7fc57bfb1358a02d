"""A corpus, or a campaign in it, as one self-contained HTML file: findings to filter, a page each, coverage, pace."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import cast

from jinja2 import Template
from markupsafe import Markup

from fuzzcompile.corpus.queries import Judging, Overview
from fuzzcompile.corpus.records import (
    Finding,
    Related,
    Reproducer,
    StoredCampaign,
    StoredCoverage,
    StoredReplay,
    Umbrella,
    identify_compiler,
)
from fuzzcompile.corpus.replay.replay_history import History, ReplayStatus, history, order
from fuzzcompile.corpus.store import Store
from fuzzcompile.corpus.transactions import Mark, get_status, issue_url
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import UsageError
from fuzzcompile.model.hints import CommandSubject, format_command
from fuzzcompile.model.severity import Severity
from fuzzcompile.model.signatures import UNATTRIBUTED
from fuzzcompile.model.stages import STAGES
from fuzzcompile.model.templates import find_template_folder
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.circumstances import seen_on, versions
from fuzzcompile.report.filing import Refusal, find_refusal
from fuzzcompile.report.finding_facts import IssueFacts
from fuzzcompile.report.pages.case_page import inline, scrubbed, view_report
from fuzzcompile.report.verdict_text import name_culprit
from fuzzcompile.report.wording import title
from fuzzcompile.report.words import WORDS

# The findings of a corpus as a report lists them: each with its sentence, what became of it, and what to do.


@dataclass(frozen=True)
class FindingEntry:
    """A finding as its page and the list show it."""

    finding: Finding  # as the corpus stores it, with its ``reproducer`` and ``replays``
    facts: IssueFacts  # what may be claimed of it
    reproducer: Reproducer | None
    replays: Sequence[StoredReplay]
    hit: bool | None  # whether the campaign of the summary hit it; None without a summary. ``new``: it was the first
    new: bool
    title: Markup  # the fault, in a sentence
    refusal: Refusal | None  # the reason why it is not to be filed as an issue; None if it is fit to be
    history: History  # on other versions of torch; ``is_fixed`` if the newest that was tried does not show it
    is_fixed: bool
    stage: str  # at fault; ``culprit`` is the code at fault in a few words
    culprit: str
    severity: str  # ``unknown`` in a corpus that does not say; ``effect`` is the same in plain words
    effect: str
    status: str  # the mark on it, or else on its group
    issue: str | None  # that a person named for it, or for its group, unless the reason against filing it has it

    @property
    def name(self) -> str:
        """F1, F2 and so on: the address of its page in the report."""
        return self.finding.public_id

    @property
    def place(self) -> tuple[bool, bool, tuple[int, bool, int, int]]:
        """Sorts what matters first: what is open and not known to be fixed, then the worst."""
        return (self.status != "open", self.is_fixed, self.finding.place)


def make_entries(
    read: Overview, groups: Iterable[Umbrella] = (), campaign: Mapping[str, bool] | None = None
) -> list[FindingEntry]:
    """The findings, what matters first in front.

    ``groups`` is what a person said of groups of findings; ``campaign`` has the signatures that a campaign hit, each
    with whether it was the first to (None if no campaign is looked at).
    """
    said = {group.name: group for group in groups}
    entries = [_entry(read, finding, said.get(finding.umbrella or ""), campaign) for finding in read.findings]
    return sorted(entries, key=lambda entry: entry.place)


def _entry(
    read: Overview, finding: Finding, group: Umbrella | None, campaign: Mapping[str, bool] | None
) -> FindingEntry:
    reproducer, replays = read.reproducers.get(finding.id), read.replays.get(finding.id, ())
    seen = {"torch": next(iter(finding.torch_versions), None), "device": next(iter(finding.devices), None)}
    replayed = history(replays)
    related: Sequence[Related] = read.related.get(finding.id, ())
    facts = IssueFacts(
        cast("ReportJson", scrubbed(finding.report)),
        reproducer.source if reproducer is not None else None,
        read.environments.get(finding.id) or seen,
        finding.first_seen.date().isoformat(),
        finding.hits,
        confirmed=reproducer is not None and reproducer.confirmed,
        shown=(reproducer.shown if reproducer is not None else None) or {},
        history=replayed,
        related=related,
        searched=finding.searched.date().isoformat() if finding.searched else None,
        queries=finding.queries or (),
        mark=Mark(get_status(finding.status), finding.issue, finding.duplicate_of, finding.note),
        subject=CommandSubject(finding.public_id, published=True),
        umbrella=group,
        machines=finding.machines,
    )
    names = {finding.signature, *read.former.get(finding.id, ())} & set(campaign or ())
    refusal, severity, newest = find_refusal(facts), finding.severity or "unknown", replayed.newest
    return FindingEntry(
        finding,
        facts,
        reproducer,
        replays,
        hit=None if campaign is None else bool(names),
        new=campaign is not None and any(campaign[name] for name in names),
        title=inline(title(facts)),
        refusal=refusal,
        history=replayed,
        is_fixed=newest is not None and replayed.torch[newest] == ReplayStatus.FIXED,
        stage=str((finding.culprit or {}).get("stage") or UNATTRIBUTED),
        culprit=name_culprit(facts.culprit),
        severity=severity,
        effect=WORDS["effect"].get(severity, severity),
        status=group.status if finding.status == "open" and group is not None else finding.status,
        issue=_find_issue(finding.issue or (group.issue if group is not None else None), refusal),
    )


def _find_issue(text: str | None, refusal: Refusal | None) -> str | None:
    if text is None or (refusal is not None and text in refusal.reason):
        return None
    try:
        return issue_url(text)
    except UsageError:  # an older corpus may hold any text
        return text


# What matters first about a corpus, in a sentence each.

FIRST = 5  # findings named at the top


def first(entries: Sequence[FindingEntry]) -> list[FindingEntry]:
    """Of findings in their order, those to look at first: open, not known to be fixed, and not minor."""
    still = [entry for entry in entries if entry.status == "open" and not entry.is_fixed]
    return [entry for entry in still if not entry.finding.is_minor][:FIRST]


def headlines(entries: Sequence[FindingEntry], summary: Mapping[str, object] | None) -> Iterator[str]:
    """Sentences on the whole, the most important first; none claims more than the corpus holds."""
    if summary is not None:
        yield from _about_campaign(entries, summary)
    if not entries:
        return
    severities = Counter(entry.severity for entry in entries)
    parts = [f"{number} {WORDS['does'][word][number != 1]}" for word in Severity if (number := severities[word])]
    if parts:
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
    cases, pace = summary.get("cases"), summary.get("cases_per_minute")
    speed = f" ({pace:g} a minute)" if isinstance(pace, int | float) else ""
    yield f"The campaign judged {cases} cases{speed}, hit {_count(hit, 'finding')}, {new} of them new."
    listed = summary.get("findings")
    missing = (len(listed) if isinstance(listed, list) else 0) - hit
    if missing > 0:
        yield f"{_count(missing, 'finding')} of its summary {_are(missing)} not in this corpus."


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


# How fast campaigns judged cases: a bar chart over each campaign's own time.

_BARS = 60
_LEAST_SECONDS = 5.0  # of time that a bar stands for: less would show single cases


@dataclass(frozen=True)
class Pace:
    """A campaign and its cases, of which ``screened`` were judged without generated code."""

    campaign: StoredCampaign
    compiler: str  # the torch, and the target if there was one
    ended: str  # its ending, in words
    cases: int
    screened: int
    seconds: float  # from its start to its end, its last heartbeat or its last case
    bars: Mapping[str, str]  # the chart, as a path by colour, scaled to 100 by 100; empty without cases
    top: float  # cases a minute at the upper end of the chart

    @property
    def per_minute(self) -> float:
        """Cases a minute, over the whole campaign."""
        return 60 * self.cases / max(self.seconds, 1e-9)


def paces(campaigns: Sequence[StoredCampaign], judgings: Sequence[Judging]) -> list[Pace]:
    """The campaigns with their cases, the latest first."""
    by_campaign = defaultdict[int, list[Judging]](list)
    for judging in judgings:
        by_campaign[judging.campaign_id].append(judging)
    return [_pace(campaign, by_campaign[campaign.id]) for campaign in reversed(campaigns)]


def _pace(campaign: StoredCampaign, judgings: Sequence[Judging]) -> Pace:
    ages = [(judging.moment - campaign.started).total_seconds() for judging in judgings]
    seconds = max([(campaign.end - campaign.started).total_seconds(), *ages, 1.0])
    width = max(seconds / _BARS, min(_LEAST_SECONDS, seconds))
    full, all_ = Counter[int](), Counter[int]()  # full compiles, with those of screens on top of them
    for age, judging in zip(ages, judgings, strict=True):
        place = max(0, min(int(age / width), int(seconds / width)))
        all_[place] += 1
        full[place] += not judging.screened
    most, step = max(all_.values(), default=0), 100 / max(seconds / width, 1)

    def path(heights: Counter[int]) -> str:
        return "".join(
            f"M{place * step:.2f} 100v-{100 * height / most:.1f}h{0.86 * step:.2f}V100z"
            for place, height in sorted(heights.items())
            if height
        )

    return Pace(
        campaign,
        identify_compiler(campaign.environment),
        WORDS["ended"].get(campaign.ended or "", campaign.ended or "killed, or running still"),
        len(judgings),
        sum(judging.screened for judging in judgings),
        seconds,
        {"screened": path(all_), "full": path(full)} if most else {},
        60 * most / width,
    )


# What campaigns reached of the compiler, stage by stage, as the corpus stores it.


@dataclass(frozen=True)
class ReachedStage:
    """One stage under one compiler: names that fired, that their own check always refused, that were only called."""

    stage: str
    fired: Sequence[str]
    refused: Sequence[str]
    called: Sequence[str]
    total: int


def reached(coverage: Iterable[StoredCoverage]) -> dict[str, list[ReachedStage]]:
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


# Pages of findings, packed: a report on thousands stays small, and a browser unpacks what is opened.

# Pages that are packed together: enough to share words, few enough to unpack at once.
CHUNK = 40


def pack_pages(pages: Sequence[str]) -> Iterator[str]:
    """Each chunk of pages as JSON, compressed by gzip (the same bytes for the same pages), in base64."""
    for start in range(0, len(pages), CHUNK):
        text = json.dumps(pages[start : start + CHUNK], ensure_ascii=False).encode(errors="replace")
        yield base64.b64encode(gzip.compress(text, 9, mtime=0)).decode()


def _hash_script(script: str) -> str:
    """The name of an inline script in a content security policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


_SCRIPTS = ("pages/vendor/highlight.min.js", "pages/report.js")
_CHARTS = 3  # campaigns with a chart; a table lists the latest
_LISTED = 50
_GRID = 100  # findings in the grid of versions


@dataclass(frozen=True)
class Contents:
    """Contents of a corpus, read at one time; ``name`` is what to call it, without a path."""

    name: str
    read: Overview
    groups: Sequence[Umbrella]
    campaigns: Sequence[StoredCampaign]
    coverage: Sequence[StoredCoverage]

    @classmethod
    def of(cls, store: Store) -> Contents:
        """Read an open corpus."""
        name = store.location.partition("?")[0].replace("\\", "/").rstrip("/").rpartition("/")[2]
        return cls(name, store.overview(), store.umbrellas(), store.campaigns(), store.coverage())


def page_of_corpus(contents: Contents, made: datetime, summary: Mapping[str, object] | None = None) -> str:
    """The report as one HTML document, with what a campaign hit by its summary (``fuzzcompile run --summary``)."""
    entries = make_entries(contents.read, contents.groups, _list_signatures(summary))
    ran = paces(contents.campaigns, contents.read.judgings)
    scripts = [(find_template_folder() / name).read_text(encoding="utf-8") for name in _SCRIPTS]
    environment = templates()
    page = environment.get_template("pages/finding.html.j2")
    return environment.get_template("pages/report.html.j2").render(
        name=contents.name,
        made=made,
        entries=entries,
        first=first(entries),
        headlines=[inline(line) for line in headlines(entries, summary)],
        summary=summary,
        filters=list(_filters(entries)),
        words=WORDS["effect"],
        compilers=sorted({*(pace.compiler for pace in ran), *(v for e in entries for v in e.finding.torch_versions)}),
        cases=sum(pace.cases for pace in ran),
        charts=[pace for pace in ran if pace.bars][:_CHARTS],
        ran=ran[:_LISTED],
        campaigns=len(ran),
        coverage=reached(contents.coverage),
        grid=_grid(entries),
        replay=format_command("replay", torch="2.12.0", published=True),
        coverage_of_torch=format_command("coverage", published=True),
        chunk=CHUNK,
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(map(_hash_script, scripts)),
        packed=pack_pages([_render_finding(page, entry) for entry in entries]),
        fuzzcompile=__version__,
    )


def _render_finding(page: Template, entry: FindingEntry) -> str:
    facts = entry.facts
    return page.render(
        entry=entry,
        judged=view_report(facts, facts.subject),
        seen_on=seen_on(entry.finding.machines),
        versions=versions({**facts.environment, **facts.where}),
    )


def _list_signatures(summary: Mapping[str, object] | None) -> dict[str, bool] | None:
    if summary is None:
        return None
    listed = summary.get("findings")
    lines = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list) else []
    return {str(line.get("signature")): bool(line.get("new")) for line in lines}


def _filters(entries: Sequence[FindingEntry]) -> Iterator[tuple[str, list[tuple[str, int]]]]:
    """Properties to filter the list by, each with its values and how many findings have them."""
    known = {"severity": list(WORDS["effect"]), "stage": list(STAGES)}
    for key in ("severity", "verdict", "stage", "status"):
        counts = Counter(entry.finding.verdict if key == "verdict" else str(getattr(entry, key)) for entry in entries)
        places = {value: place for place, value in enumerate(known.get(key, []))}
        yield key, sorted(counts.items(), key=lambda item: (places.get(item[0], len(places)), -item[1], item[0]))


def _grid(entries: Sequence[FindingEntry]) -> dict[str, object]:
    """Findings by versions of torch; those that are left out have their answers on their own pages alone."""
    tried = [entry for entry in entries if entry.history.torch]
    versions = sorted({version for entry in tried for version in entry.history.torch}, key=order)
    return {"versions": versions, "rows": tried[:_GRID], "left_out": max(0, len(tried) - _GRID)}
