"""A corpus, or a campaign in it, as one self-contained HTML file: findings to filter, a page each, coverage, pace."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from markupsafe import Markup

from fuzzcompile.corpus.overview import Overview
from fuzzcompile.corpus.records import StoredCampaign, StoredCoverage, Umbrella
from fuzzcompile.corpus.replay.versions import order
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.hints import format_command
from fuzzcompile.model.stages import STAGES
from fuzzcompile.model.templates import find_template_folder
from fuzzcompile.model.templates import get_environment as templates
from fuzzcompile.model.versions import __version__
from fuzzcompile.report.pages.entries import SEVERITIES, Entry, entries_of
from fuzzcompile.report.pages.headlines import first, headlines
from fuzzcompile.report.pages.markup import inline
from fuzzcompile.report.pages.packing import CHUNK, packed, script_hash
from fuzzcompile.report.pages.reached import reached
from fuzzcompile.report.pages.throughput import paces

_SCRIPTS = ("pages/vendor/highlight.min.js", "pages/report.js")
_CHARTS = 3  # campaigns with a chart; a table lists the latest
_LISTED = 50
_GRID = 100  # findings in the grid of versions


@dataclass(frozen=True)
class Contents:
    """What a corpus holds, read at one time.

    Attributes:
        name: what to call the corpus, without a path.
        read: findings and what belongs to them.
        groups: groups of findings, and what a person said of them.
        campaigns: every campaign, oldest first.
        coverage: what they reached.
    """

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
    """The report.

    Args:
        contents: what the corpus holds.
        made: the time to print on it.
        summary: what ``fuzzcompile run --summary`` wrote of one campaign, to say what that campaign hit.

    Returns:
        The HTML document.
    """
    entries = entries_of(contents.read, contents.groups, _signatures_of(summary))
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
        filters=_filters(entries),
        words=SEVERITIES,
        compilers=sorted({*(pace.compiler for pace in ran), *(v for e in entries for v in e.finding.torch_versions)}),
        cases=sum(pace.cases for pace in ran),
        charts=[pace for pace in ran if pace.bars is not None][:_CHARTS],
        ran=ran[:_LISTED],
        campaigns=len(ran),
        coverage=reached(contents.coverage),
        grid=_grid(entries),
        replay=format_command("replay", torch="2.12.0", published=True),
        coverage_of_torch=format_command("coverage", published=True),
        chunk=CHUNK,
        scripts=[Markup(script) for script in scripts],
        policy=" ".join(map(script_hash, scripts)),
        packed=packed([page.render(entry=entry) for entry in entries]),
        fuzzcompile=__version__,
    )


def _signatures_of(summary: Mapping[str, object] | None) -> dict[str, bool] | None:
    """The signatures that a campaign hit, each with whether it was new."""
    if summary is None:
        return None
    listed = summary.get("findings")
    lines = [line for line in listed if isinstance(line, Mapping)] if isinstance(listed, list) else []
    return {str(line.get("signature")): bool(line.get("new")) for line in lines}


@dataclass(frozen=True)
class Filter:
    """A property to filter the list by, with its values and how many findings have each."""

    key: str
    label: str
    values: Sequence[tuple[str, int]]


def _filters(entries: Sequence[Entry]) -> list[Filter]:
    known = {"severity": list(SEVERITIES), "stage": list(STAGES)}
    filters = []
    for key in ("severity", "verdict", "stage", "status"):
        counts = Counter(entry.finding.verdict if key == "verdict" else str(getattr(entry, key)) for entry in entries)
        places = {value: place for place, value in enumerate(known.get(key, []))}
        values = sorted(counts.items(), key=lambda item: (places.get(item[0], len(places)), -item[1], item[0]))
        filters.append(Filter(key, key, values))
    return filters


@dataclass(frozen=True)
class Grid:
    """Findings by versions of torch; ``left_out`` findings have their answers on their own pages alone."""

    versions: Sequence[str]
    rows: Sequence[Entry]
    left_out: int


def _grid(entries: Sequence[Entry]) -> Grid:
    tried = [entry for entry in entries if entry.history.torch]
    versions = sorted({version for entry in tried for version in entry.history.torch}, key=order)
    return Grid(versions, tried[:_GRID], max(0, len(tried) - _GRID))
