"""GitHub's search API: the requests, its limits, and its errors in one sentence each."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from fuzzcompile.corpus.records import Related
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.report.search_terms import SearchTerms, extract_terms

# Queries for GitHub's search, which finds what holds all words of a query, in its title, text or comments.

# Asked for issues and for pull requests, so many queries are what GitHub answers in a minute without a token.
MOST_QUERIES = 5
# GitHub refuses longer ones; qualifiers do not count.
_MOST_CHARACTERS = 256


def make_queries(terms: SearchTerms) -> list[str]:
    """Up to `MOST_QUERIES` queries, the narrowest first, without qualifiers such as ``repo:``."""
    queries = dict.fromkeys(query for query in _queries(terms) if len(query) <= _MOST_CHARACTERS)
    return list(queries)[:MOST_QUERIES]


def _queries(terms: SearchTerms) -> Iterator[str]:
    operators, symptoms = terms.operators[:1], terms.symptoms[:1]
    if terms.names:
        yield " OR ".join(f'"{name}"' for name in terms.names)
    if len(terms.errors) > 1:
        yield f'"{terms.errors[1]}" compile'
    if terms.owner:
        yield _joined((terms.owner,), terms.arguments[:1], ("inductor",))
    if terms.places:
        yield _joined(operators, terms.places)
    if operators:
        yield _joined(operators, symptoms, terms.context[:1])
        yield _joined(operators, symptoms, ("compile",))
        yield _joined(operators, ("inductor",))
        yield _joined(terms.operators[:2], ("inductor",))
    elif terms.names:
        yield _joined(terms.names[:1], symptoms)


def _joined(*groups: tuple[str, ...]) -> str:
    return " ".join(f'"{word}"' if " " in word else word for group in groups for word in group)


# Which of the reports that a search returned are likely to be about the same bug.

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


# Each term that a report holds, and whether in its "title" or its "text"; by the kind of term.
_Places = dict[str, list[tuple[str, str]]]


def ranked(terms: SearchTerms, hits: Iterable[Hit], today: datetime) -> list[Related]:
    """The reports that share enough with a finding, the likeliest first, at most ten.

    A report counts if it names the rewrite, its file or the error's message, or if it names the operator and speaks of
    the compiler. Of reports with one score, open ones come first.
    """
    scored = {hit.url: _score(terms, hit, today) for hit in hits}
    related = filter(None, scored.values())
    return sorted(related, key=lambda report: (-report.score, report.state != "open", report.url))[:_MOST]


def _score(terms: SearchTerms, hit: Hit, today: datetime) -> Related | None:
    places = {kind: list(_find_terms(getattr(terms, kind), hit)) for kind in _WEIGHTS}
    if not _is_close(places, terms):
        return None
    # Each kind counts by its best term, so that ten words for one symptom do not outweigh the name of a pass.
    score = sum(
        weight * max(((_IN_TITLE if place == "title" else 1.0) for _, place in places[kind]), default=0.0)
        for kind, weight in _WEIGHTS.items()
    )
    score += _OPERATOR_AND_SYMPTOM * bool(places["operators"] and places["symptoms"])
    if score < _LEAST:
        return None
    score += _RECENT * 0.5 ** (max(0.0, (today - hit.updated).total_seconds()) / 86400 / _HALF_LIFE)
    return Related(hit.url, hit.kind, hit.title, hit.state, round(score, 2), _explain(places))


def _is_close(places: _Places, terms: SearchTerms) -> bool:
    if places["names"] or places["places"] or any(" " in term for term, _ in places["errors"]):
        return True
    # Without the name of a rewrite, the operator decides: that at fault, which comes first.
    fault = any(term in terms.operators[:1] for term, _ in places["operators"])
    return fault and bool(places["context"])


def _find_terms(terms: Sequence[str], hit: Hit) -> Iterator[tuple[str, str]]:
    for term in terms:
        # As a word, however its parts are joined: ``batch_norm``, ``batch norm`` and ``BatchNorm``.
        parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[+#]+", term) or [term]
        joined = r"[\s_.-]*".join(re.escape(part) for part in parts)
        word = re.compile(rf"(?<![A-Za-z0-9_]){joined}(?:s|[123]d)?(?![A-Za-z0-9_])", re.IGNORECASE)
        if word.search(hit.title):
            yield term, "title"
        elif word.search(hit.body):
            yield term, "text"


def _explain(places: _Places) -> str:
    by_place: dict[str, list[str]] = {"title": [], "text": []}
    for term, place in dict.fromkeys(held for kind in places.values() for held in kind):
        by_place[place].append(term)
    return "; ".join(f"{place}: {', '.join(terms)}" for place, terms in by_place.items() if terms)


API: Final = "https://api.github.com"
_TIMEOUT = 20.0
_PER_PAGE = 50
_MOST_PAGES = 2
# GitHub counts the searches of a minute; a wait beyond this is not for a limit of that kind.
_LONGEST_WAIT = 75.0
_MOST_WAITS = 3
_KINDS = {"issue": "is:issue", "pull request": "is:pull-request"}


class SearchFailed(EnvironmentUnfit):
    """GitHub did not answer the search."""


@dataclass(frozen=True)
class Answer:
    """The answer to one query: ``total`` reports of a kind match it, of which the best ``hits`` were read.

    ``complete`` is False where GitHub ran out of time and says that there may be more.
    """

    query: str
    kind: str
    hits: tuple[Hit, ...]
    total: int
    complete: bool


@dataclass
class GitHub:
    """A client of the search API, for one search.

    A token raises the limit from 10 to 30 searches a minute; ``notify`` is given a sentence before each wait.
    """

    base: str = API
    token: str | None = None
    notify: Callable[[str], None] = lambda sentence: None
    sleep: Callable[[float], None] = time.sleep
    _waits: int = 0
    _client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        if urlsplit(self.base).scheme not in ("http", "https"):
            raise UsageError(f"GITHUB_API_URL is {self.base!r}, which is no URL: set it to one such as {API}.")
        headers = {
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            "User-Agent": "fuzzcompile",
            **({"Authorization": f"Bearer {self.token}"} if self.token else {}),
        }
        self._client = httpx.Client(base_url=self.base, headers=headers, timeout=_TIMEOUT, follow_redirects=True)

    @classmethod
    def of_environment(cls, notify: Callable[[str], None]) -> Self:
        """A client with the URL and the token of the environment, by the names that GitHub's own tools read."""
        token = os.environ.get("GITHUB_TOKEN") or os.environ.get("GH_TOKEN")
        return cls(os.environ.get("GITHUB_API_URL") or API, token, notify)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._client.close()

    def search(self, query: str, kind: str, repository: str) -> Answer:
        """The reports of one kind ("issue" or "pull request") in a repository that match the words of a query.

        Raises:
            SearchFailed: there is no answer; the message says why.
        """
        hits: list[Hit] = []
        total, complete = 0, True
        for page in range(1, _MOST_PAGES + 1):
            response = self._get(
                {"q": f"{query} repo:{repository} {_KINDS[kind]}", "per_page": _PER_PAGE, "page": page}
            )
            try:
                answer = response.json()
            except ValueError as error:
                raise SearchFailed(
                    f"{self._host} answered with something else than JSON: check GITHUB_API_URL."
                ) from error
            try:
                items, total = answer["items"], int(answer["total_count"])
                complete = complete and not answer.get("incomplete_results")
                hits += [_read_hit(item, kind) for item in items]
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise SearchFailed(
                    f"{self._host} does not answer as GitHub's search API does ({error!r}): check GITHUB_API_URL."
                ) from error
            # More than the pages that are read are not worth a request: GitHub has put its best matches first.
            if not items or len(hits) >= total or total > _PER_PAGE * _MOST_PAGES:
                break
        return Answer(query, kind, tuple(hits), total, complete)

    @property
    def _host(self) -> str:
        return urlsplit(self.base).netloc

    def _get(self, parameters: Mapping[str, str | int]) -> httpx.Response:
        while True:
            try:
                response = self._client.get("/search/issues", params=parameters)
            except httpx.TimeoutException as error:
                raise SearchFailed(f"{self._host} did not answer within {_TIMEOUT:.0f} s: try again later.") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                why = (str(error) or type(error).__name__).rstrip(".")
                raise SearchFailed(f"{self._host} cannot be reached ({why}): check the network.") from error
            if response.is_success:
                return response
            self._wait_or_raise(response)

    def _wait_or_raise(self, response: httpx.Response) -> None:
        """Wait until GitHub takes another search, as long as that is soon."""
        status, said, seconds = response.status_code, _read_message(response), _read_wait(response)
        if seconds is not None and seconds <= _LONGEST_WAIT and self._waits < _MOST_WAITS:
            self._waits += 1
            self.notify(f"GitHub takes no more searches for {seconds:.0f} s: waiting.")
            self.sleep(seconds)
            return
        if seconds is not None:
            hint = "try again later" if self.token else "set GITHUB_TOKEN, or try again later"
            raise SearchFailed(f"GitHub takes no more searches for {seconds:.0f} s: {hint}.")
        if status == 401:
            raise SearchFailed(f"GitHub refused the token of GITHUB_TOKEN or GH_TOKEN{said}: set a valid one, or none.")
        if status >= 500:
            raise SearchFailed(f"GitHub's search is out of order (HTTP {status}){said}: try again later.")
        raise SearchFailed(f"GitHub refused the search (HTTP {status}){said}.")


def _read_wait(response: httpx.Response) -> float | None:
    """In how many seconds GitHub takes another request; None where its refusal is not one of too many requests."""
    headers = response.headers
    if response.status_code not in (403, 429):
        return None
    try:
        if "retry-after" in headers:
            return max(1.0, float(headers["retry-after"]))
        if headers.get("x-ratelimit-remaining") == "0":
            return max(1.0, float(headers["x-ratelimit-reset"]) - time.time() + 1.0)
    except (KeyError, ValueError):
        return 60.0  # A limit all the same, of unknown length: a minute is the window of the search API.
    return None if response.status_code == 403 else 60.0


def _read_hit(item: Mapping[str, Any], kind: str) -> Hit:
    pull, labels = item.get("pull_request"), item.get("labels")
    names = [str(label.get("name")).lower() for label in labels or () if isinstance(label, dict)]
    # PyTorch's bot merges by pushing and closing, and says so with a label alone.
    merged = isinstance(pull, dict) and (pull.get("merged_at") or "merged" in names)
    return Hit(
        str(item["html_url"]),
        kind,
        str(item["title"]),
        str(item.get("body") or ""),
        "merged" if merged else str(item["state"]),
        datetime.fromisoformat(str(item.get("updated_at") or item["created_at"])),
    )


def _read_message(response: httpx.Response) -> str:
    try:
        message = response.json()["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {' '.join(str(message).split())[:200].rstrip('.')}"


# A search for public reports on one finding, from its terms to the ranked links.

REPOSITORY: Final = "pytorch/pytorch"


@dataclass(frozen=True)
class Search:
    """What was asked, and the likeliest reports first. That there are none is known only of what was asked."""

    repository: str
    when: datetime
    asked: Sequence[Answer]
    related: Sequence[Related]

    def to_text(self) -> str:
        """The ranked links with their reasons, then what was asked."""
        head = f"{len(self.related)} reports in {self.repository} may be about it:"
        none = f"No report in {self.repository} matches well enough, of those that these queries found:"
        lines = [head if self.related else none]
        for report in self.related:
            lines += [f"  {report.url}  {report.kind}, {report.state}: {report.title}", f"      {report.why}"]
        if self.related:
            lines.append("Asked, open and closed:")
        lines += [f"  {asked.query}  ({len(asked.hits)} of {asked.total} {asked.kind}s read)" for asked in self.asked]
        if not all(asked.complete for asked in self.asked):
            lines.append("GitHub ran out of time on a query, so that there may be more: search again later.")
        return "\n".join(lines)

    def to_json(self) -> dict[str, object]:
        """The search for machines."""
        return {
            "repository": self.repository,
            "searched": self.when.isoformat(timespec="seconds"),
            "queries": [
                {
                    "query": asked.query,
                    "kind": asked.kind,
                    "total": asked.total,
                    "read": len(asked.hits),
                    "complete": asked.complete,
                }
                for asked in self.asked
            ],
            "related": [vars(report) for report in self.related],
        }


def search(report: ReportJson, source: str, github: GitHub, expression: str = "") -> Search:
    """Search PyTorch's issues and pull requests, open and closed, for a finding.

    ``source`` is the shortest program that shows it, ``expression`` the operation at fault in the user's words.

    Raises:
        SearchFailed: GitHub did not answer one of the queries: a search that asked for less would claim too much.
    """
    terms = extract_terms(report, source, expression)
    asked = [github.search(query, kind, REPOSITORY) for query in make_queries(terms) for kind in _KINDS]
    when = datetime.now(UTC)
    return Search(REPOSITORY, when, asked, ranked(terms, [hit for answer in asked for hit in answer.hits], when))
