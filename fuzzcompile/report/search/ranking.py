"""Which of the reports that a search returned are likely to be about the same bug."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from fuzzcompile.corpus.records import Related
from fuzzcompile.report.search.terms import Terms

# The weight of a term by its kind, in the text; in the title it counts `_IN_TITLE` times. The names of passes are
# rare, so that a report with one is likely about it; symptoms and the compiler's name are words of every report.
_WEIGHTS = {
    "names": 6.0,
    "errors": 3.0,
    "places": 2.0,
    "operators": 2.0,
    "arguments": 1.0,
    "symptoms": 0.5,
    "context": 0.5,
}
_IN_TITLE = 2.5
_OPERATOR_AND_SYMPTOM = 2.0
# What a report of today counts more than a very old one; after this many days, half of it.
_RECENT, _HALF_LIFE = 1.0, 365.0
# Below it, a report shares no more with the finding than many do.
_LEAST = 4.0
_MOST = 10


@dataclass(frozen=True)
class Hit:
    """A report as GitHub's search returns it. ``kind`` and ``state`` are those of `Related`."""

    url: str
    kind: str
    title: str
    body: str
    state: str
    updated: datetime


def ranked(terms: Terms, hits: Iterable[Hit], today: datetime) -> list[Related]:
    """The reports that share enough with a finding, the likeliest first, at most ten.

    A report counts if it names the rewrite, its file or the error's message, or if it names the operator and speaks of
    the compiler. Of reports with one score, open ones come first.
    """
    scored = {hit.url: _scored(terms, hit, today) for hit in hits}
    related = sorted(
        filter(None, scored.values()), key=lambda report: (-report.score, report.state != "open", report.url)
    )
    return related[:_MOST]


def _scored(terms: Terms, hit: Hit, today: datetime) -> Related | None:
    places = {kind: list(_places(getattr(terms, kind), hit)) for kind in _WEIGHTS}
    if not _is_close(places, terms):
        return None
    # Each kind counts by its best term, so that ten words for one symptom do not outweigh the name of a pass.
    score = sum(
        max((weight * _factor(place) for _, place in places[kind]), default=0.0) for kind, weight in _WEIGHTS.items()
    )
    score += _OPERATOR_AND_SYMPTOM * bool(places["operators"] and places["symptoms"])
    if score < _LEAST:
        return None
    score += _RECENT * 0.5 ** (max(0.0, (today - hit.updated).total_seconds()) / 86400 / _HALF_LIFE)
    return Related(hit.url, hit.kind, hit.title, hit.state, round(score, 2), _why(places))


def _is_close(places: dict[str, list[tuple[str, str]]], terms: Terms) -> bool:
    if any(places[kind] for kind in ("names", "places")) or any(" " in term for term, _ in places["errors"]):
        return True
    # Without the name of a rewrite, the operator decides: that at fault, which comes first.
    fault = any(term in terms.operators[:1] for term, _ in places["operators"])
    return fault and bool(places["context"])


def _places(terms: Sequence[str], hit: Hit) -> Iterator[tuple[str, str]]:
    """Each term that a report holds, and where."""
    for term in terms:
        pattern = _pattern(term)
        if pattern.search(hit.title):
            yield term, "title"
        elif pattern.search(hit.body):
            yield term, "text"


def _pattern(term: str) -> re.Pattern[str]:
    """The term as a word, however its parts are joined: ``batch_norm``, ``batch norm`` and ``BatchNorm``."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[+#]+", term) or [term]
    joined = r"[\s_.-]*".join(re.escape(part) for part in parts)
    return re.compile(rf"(?<![A-Za-z0-9_]){joined}(?:s|[123]d)?(?![A-Za-z0-9_])", re.IGNORECASE)


def _factor(place: str) -> float:
    return _IN_TITLE if place == "title" else 1.0


def _why(places: dict[str, list[tuple[str, str]]]) -> str:
    """Which terms a report holds: "title: celu, alpha; text: ZeroDivisionError"."""
    by_place = {
        place: list(dict.fromkeys(term for held in places.values() for term, where in held if where == place))
        for place in ("title", "text")
    }
    return "; ".join(f"{place}: {', '.join(terms)}" for place, terms in by_place.items() if terms)
