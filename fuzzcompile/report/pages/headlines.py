"""What matters first about a corpus, in a sentence each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from fuzzcompile.model.hints import format_command
from fuzzcompile.model.severity import Severity
from fuzzcompile.report.pages.entries import Entry

FIRST = 5  # findings named at the top
_DOES = {
    Severity.SILENT: ("is silently wrong", "are silently wrong"),
    Severity.ERROR: ("raises, crashes or hangs where eager runs", "raise, crash or hang where eager runs"),
    Severity.ALIASING: ("shares or copies other memory than eager", "share or copy other memory than eager"),
    Severity.RAISING_LAYOUT: (
        "returns a layout on which .view() raises",
        "return a layout on which .view() raises",
    ),
    Severity.LAYOUT: ("returns other strides", "return other strides"),
    Severity.ACCEPTS_INVALID: ("accepts what eager refuses", "accept what eager refuses"),
}


def first(entries: Sequence[Entry]) -> list[Entry]:
    """Of findings in their order, those to look at first: open, not known to be fixed, and not minor."""
    still = [entry for entry in entries if entry.status == "open" and not entry.is_fixed]
    return [entry for entry in still if not entry.finding.is_minor][:FIRST]


def headlines(entries: Sequence[Entry], summary: Mapping[str, object] | None) -> list[str]:
    """Sentences on the whole, the most important first; none claims more than the corpus holds."""
    return [sentence for sentence in (*_campaign(entries, summary), *_findings(entries)) if sentence]


def _campaign(entries: Sequence[Entry], summary: Mapping[str, object] | None) -> Iterator[str]:
    if summary is None:
        return
    hit, new = sum(bool(entry.hit) for entry in entries), sum(entry.new for entry in entries)
    cases, pace = summary.get("cases"), summary.get("cases_per_minute")
    speed = f" ({pace:g} a minute)" if isinstance(pace, int | float) else ""
    yield f"The campaign judged {cases} cases{speed}, hit {_count(hit, 'finding')}, {new} of them new."
    listed = summary.get("findings")
    missing = (len(listed) if isinstance(listed, list) else 0) - hit
    if missing > 0:
        yield f"{_count(missing, 'finding')} of its summary {'is' if missing == 1 else 'are'} not in this corpus."


def _findings(entries: Sequence[Entry]) -> Iterator[str]:
    if not entries:
        return
    severities = Counter(entry.severity for entry in entries)
    parts = [f"{number} {_DOES[word][number != 1]}" for word in Severity if (number := severities[word])]
    yield f"{', '.join(parts)}." if parts else ""
    yield _standing(entries)
    yield _fixed(entries)
    bare = [entry.name for entry in entries if entry.reproducer is None]
    if bare:
        have = "has" if len(bare) == 1 else "have"
        yield (
            f"{len(bare)} {have} no reproducer yet: `{format_command('minimize', bare[0], published=True)}` makes one."
        )


def _standing(entries: Sequence[Entry]) -> str:
    fit = sum(entry.refusal is None for entry in entries)
    known = sum(entry.status != "open" for entry in entries)
    marked = f"; {known} {'is' if known == 1 else 'are'} marked as known or otherwise settled" if known else ""
    return f"{fit or 'None'} {'is' if fit == 1 else 'are'} fit to be filed as an issue{marked}." if fit or known else ""


def _fixed(entries: Sequence[Entry]) -> str:
    tried = [entry for entry in entries if entry.history.newest is not None]
    if not tried:
        return f"No other version of torch was tried: `{format_command('replay', published=True)}` does so."
    newest = sorted({str(entry.history.newest) for entry in tried})
    fixed = sum(entry.is_fixed for entry in tried)
    which = f"torch {newest[-1]}" if len(newest) == 1 else "the newest torch that it was tried on"
    return f"{fixed} of the {len(tried)} that were run again {'is' if fixed == 1 else 'are'} fixed in {which}."


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
