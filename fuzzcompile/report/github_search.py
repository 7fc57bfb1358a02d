"""Search GitHub for public reports on a finding: the words to ask for, the queries, the ranking, and the search API."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import textwrap
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

import httpx

from fuzzcompile.corpus.models import Related
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.model.culprit_contract import CulpritJson, read_details
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.model.stages import DECOMPOSITION, FAKE_TENSOR, FUNCTIONALIZATION, REWRITING_STAGES
from fuzzcompile.report.circumstances import WORDS

# The words by which a maintainer would look for a finding, read off its report and its program.


def base_classes(source: str, names: Collection[str], torch: str | None) -> list[str]:
    """The bases, from the same file of torch, of its classes that are called ``names``.

    A report is often about the base class, whose code its subclasses run. Where another ``torch`` than the one that
    showed the bug is installed, nothing is read: it may be laid out otherwise.
    """
    try:
        installed = metadata.distribution("torch")
        if installed.version != torch:
            return []
        module = ast.parse(Path(str(installed.locate_file(source))).read_text(encoding="utf-8"))
    except (metadata.PackageNotFoundError, OSError, UnicodeDecodeError, SyntaxError):
        return []
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    bases = [base for name in names if name in classes for base in classes[name].bases]
    return list(dict.fromkeys(base.id for base in bases if isinstance(base, ast.Name) and base.id in classes))


_OPERATORS: dict[type[ast.operator], str] = {
    ast.MatMult: "matmul",
    ast.Mod: "remainder",
    ast.FloorDiv: "floor_divide",
    ast.Pow: "pow",
    ast.Div: "div",
    ast.Mult: "mul",
    ast.Sub: "sub",
    ast.Add: "add",
}
# Functions of a case file that set it up.
_SET_UP = {"make", "run", "reference"}


class CalledOperator(NamedTuple):
    """A call of an operator, and the names of the arguments that it is given by name."""

    name: str
    keywords: tuple[str, ...] = ()


def list_calls(source: str) -> list[CalledOperator]:
    """The operators that a source calls, each once, in its order; of a case file, those of its program alone."""
    try:
        module = ast.parse(textwrap.dedent(source))
    except SyntaxError:
        return []
    keywords = defaultdict[str, dict[str, None]](dict)
    for node in _nodes(module):
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            keywords[_OPERATORS[type(node.op)]] |= {}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            # An attribute of the module itself has a name that the user chose.
            is_own = isinstance(node.func.value, ast.Name) and node.func.value.id == "self"
            if not is_own and not node.func.attr.startswith("__"):
                keywords[node.func.attr] |= dict.fromkeys(word.arg for word in node.keywords if word.arg)
    return [CalledOperator(name, tuple(names)) for name, names in keywords.items()]


def most_telling(calls: Sequence[CalledOperator], rewrite: str) -> list[CalledOperator]:
    """The calls that tell programs apart (all, if none does), those in a rewrite's name first."""
    words, named = WORDS["search"], rewrite.lower().replace("_", "")
    telling = [call for call in calls if call.name not in words["everywhere"]] or calls
    return sorted(telling, key=lambda call: (call.name.replace("_", "") not in named, call.name in words["common"]))


def _nodes(module: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(module):
        is_set_up = isinstance(child, ast.FunctionDef) and child.name in _SET_UP
        if not is_set_up and not (isinstance(module, ast.Module) and isinstance(child, ast.If)):
            yield from _nodes(child)
            yield child


_MOST_TERMS = 3  # of a kind
# Passes that hold many rules: their names lead everywhere.
_NUMBERED_PASS = re.compile(r"pass_pattern_\d+|.*_p(?:re|ost)_pass|passes?_\d+")
_VARIANT = re.compile(r"(?:_(?:inference|training|half|mask|bs\d+|fp\d+))+$")
_ERROR = re.compile(r"\b([A-Z]\w*(?:Error|Exception)): *")
# Labels of an operator's rule: ``aten.celu.default``, or ``CppVecOverrides.expm1`` of a code generator.
_OPERATOR_RULE = re.compile(r"(?:aten|prims|torch|[A-Z]\w*)[.:]+_*(\w+)")


# Words one of which a report on the compiler has; of some stages, the first is another.
_COMPILER = ("inductor", "torch.compile", "dynamo", "decomp", "aot_eager", "aotautograd")
_STAGES = {DECOMPOSITION: "decomposition", FAKE_TENSOR: "fake tensor", FUNCTIONALIZATION: "functionalization"}


class SearchTerms(NamedTuple):
    """Search terms by kind; each tuple holds the most telling word first."""

    names: tuple[str, ...] = ()  # of the rewrite, its pass and its classes
    places: tuple[str, ...] = ()  # names of the source file at fault, where it holds few rules
    operators: tuple[str, ...] = ()  # the user's operators, that at fault first
    arguments: tuple[str, ...] = ()  # names of the arguments that the user gives them
    owner: str = ""  # the operator that is given the first argument
    symptoms: tuple[str, ...] = ()  # words for the kind of fault
    errors: tuple[str, ...] = ()  # the exception's type, and the words of its message that do not hang on the case
    context: tuple[str, ...] = ()  # words one of which a report on the compiler has; the first is asked for


def extract_terms(report: ReportJson, source: str, expression: str = "") -> SearchTerms:
    """The terms of a report and of the program that shows it; ``expression`` is the operation in the user's words."""
    culprit: CulpritJson = report.get("culprit") or {}
    rewrite, details = str(culprit.get("rewrite")), read_details(culprit)
    at_fault = [call for line in details.get("matched") or () for call in list_calls(line["code"] or "")]
    calls = most_telling([*list_calls(expression), *(at_fault or list_calls(source))], rewrite)
    fault = re.fullmatch(r"([\w.]+)\((\w+)\)", str((report.get("cause") or {}).get("fingerprint") or ""))
    operator, argument = ([fault[1].rpartition(".")[2]], [fault[2]]) if fault else ([], [])
    rule, family = _OPERATOR_RULE.match(rewrite if culprit else ""), culprit.get("family")
    ruled = [rule[1]] if rule else []
    ruled += [family] if family and f"aten.{family}." in (details.get("diff") or "") else []
    operators = _distinct([*operator, *ruled, *(call.name for call in calls)])
    given = [call for call in calls if call.keywords and call.name in operators]
    stem = PurePosixPath(str(culprit.get("source") or "")).stem
    is_broad = stem.strip("_") in {"", "init"} or stem in WORDS["search"]["broad_files"]
    verdict, outputs = str(report.get("verdict")), (report.get("evidence") or {}).get("outputs") or ()
    of_outputs = [words for output in outputs if (words := WORDS["of_output"].get(str(output.get("finding"))))]
    symptoms = (
        of_outputs[0] if of_outputs and verdict in ("metadata", "aliasing") else WORDS["of_verdict"].get(verdict, ())
    )
    asked = _STAGES.get(str(culprit.get("stage")), "inductor")
    return SearchTerms(
        names=_distinct([name for name in _names(culprit, report.get("torch")) if name not in operators]),
        places=() if is_broad else (stem,),
        operators=operators,
        arguments=_distinct([*argument, *(keyword for call in given for keyword in call.keywords)]),
        owner=next(iter([*operator, *(call.name for call in given)]), ""),
        symptoms=tuple(symptoms),
        errors=tuple(_errors(str(report.get("detail") or ""))),
        context=tuple(dict.fromkeys((asked, *_COMPILER))),
    )


def _names(culprit: CulpritJson, torch: str | None) -> Iterator[str]:
    if culprit.get("stage") not in REWRITING_STAGES:
        return
    told = [culprit.get("rewrite"), *(culprit.get("siblings") or ()), culprit.get("family"), culprit.get("pass")]
    named = [_VARIANT.sub("", name) for name in told if name and name.isidentifier()]
    yield from named[:1]
    yield from base_classes(str(culprit.get("source")), named, torch)
    yield from (name for name in named[1:] if not _NUMBERED_PASS.fullmatch(name))


def _errors(detail: str) -> Iterator[str]:
    types = list(_ERROR.finditer(detail))
    if not types:
        return
    yield types[-1][1]
    message = re.split(r"[;\n]", detail[types[-1].end() :])[0]
    # What hangs on the case stands between: numbers, quoted text, sizes in brackets.
    parts = re.split(r"\S*\d\S*|'[^']*'|\"[^\"]*\"|`[^`]*`|\([^)]*\)|\[[^]]*\]|[^\w\s-]", message)
    longest = max((part.split() for part in parts), key=len, default=[])
    if len(longest) > 2:
        yield " ".join(longest[:6])


def _distinct(words: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(words))[:_MOST_TERMS]


# Queries for GitHub's search, which finds what holds all words of a query, in its title, text or comments.

# Asked for issues and for pull requests, so many queries are what GitHub answers in a minute without a token.
MOST_QUERIES = 5
# GitHub refuses longer ones; qualifiers do not count.
_MOST_CHARACTERS = 256


def make_queries(terms: SearchTerms) -> list[str]:
    """Up to `MOST_QUERIES` queries, the narrowest first, without qualifiers such as ``repo:``."""
    operators, symptoms, queries = terms.operators[:1], terms.symptoms[:1], list[str]()
    if terms.names:
        queries.append(" OR ".join(f'"{name}"' for name in terms.names))
    if len(terms.errors) > 1:
        queries.append(f'"{terms.errors[1]}" compile')
    if terms.owner:
        queries.append(_joined(terms.owner, *terms.arguments[:1], "inductor"))
    if terms.places:
        queries.append(_joined(*operators, *terms.places))
    if operators:
        words = ((*symptoms, *terms.context[:1]), (*symptoms, "compile"), ("inductor",))
        queries += [_joined(*operators, *added) for added in words]
        queries.append(_joined(*terms.operators[:2], "inductor"))
    elif terms.names:
        queries.append(_joined(terms.names[0], *symptoms))
    return list(dict.fromkeys(query for query in queries if len(query) <= _MOST_CHARACTERS))[:MOST_QUERIES]


def _joined(*words: str) -> str:
    return " ".join(f'"{word}"' if " " in word else word for word in words)


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


class Hit(NamedTuple):
    """A report as GitHub's search returns it. ``kind`` and ``state`` are those of `Related`."""

    url: str
    kind: str
    title: str
    body: str
    state: str
    updated: datetime


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
    named = places["names"] or places["places"] or any(" " in term for term, _ in places["errors"])
    # Without the name of a rewrite, the operator decides: that at fault, which comes first.
    fault = any(term in terms.operators[:1] for term, _ in places["operators"])
    # Each kind counts by its best term, so that ten words for one symptom do not outweigh the name of a pass.
    score = sum(
        weight * max(((_IN_TITLE if place == "title" else 1.0) for _, place in places[kind]), default=0.0)
        for kind, weight in _WEIGHTS.items()
    )
    score += _OPERATOR_AND_SYMPTOM * bool(places["operators"] and places["symptoms"])
    if score < _LEAST or not (named or (fault and places["context"])):
        return None
    score += _RECENT * 0.5 ** (max(0.0, (today - hit.updated).total_seconds()) / 86400 / _HALF_LIFE)
    by_place: dict[str, dict[str, None]] = {"title": {}, "text": {}}
    for term, place in (held for kind in places.values() for held in kind):
        by_place[place][term] = None
    why = "; ".join(f"{place}: {', '.join(terms)}" for place, terms in by_place.items() if terms)
    return Related(hit.url, hit.kind, hit.title, hit.state, round(score, 2), why)


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


API: Final = "https://api.github.com"
REPOSITORY: Final = "pytorch/pytorch"
_TIMEOUT = 20.0
_PER_PAGE = 50
_MOST_PAGES = 2
# GitHub counts the searches of a minute; a wait beyond this is not for a limit of that kind.
_LONGEST_WAIT = 75.0
_MOST_WAITS = 3
_KINDS = {"issue": "is:issue", "pull request": "is:pull-request"}


class SearchFailed(EnvironmentUnfit):
    """GitHub did not answer the search."""


class Answer(NamedTuple):
    """The ``total`` reports of a kind that match a query, and the best; ``complete`` unless GitHub ran out of time."""

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

    def search(self, query: str, kind: str) -> Answer:
        """The reports of one kind that match a query; SearchFailed says why there is no answer."""
        hits: list[Hit] = []
        total, complete, asked = 0, True, f"{query} repo:{REPOSITORY} {_KINDS[kind]}"
        for page in range(1, _MOST_PAGES + 1):
            response = self._get({"q": asked, "per_page": _PER_PAGE, "page": page})
            try:
                answer = response.json()
                items, total = answer["items"], int(answer["total_count"])
                complete = complete and not answer.get("incomplete_results")
                hits += [_read_hit(item, kind) for item in items]
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                is_json = not isinstance(error, json.JSONDecodeError | UnicodeDecodeError)
                what = f"does not answer as GitHub's search API does ({error!r})"
                what = what if is_json else "answered with something else than JSON"
                raise SearchFailed(f"{self._host} {what}: check GITHUB_API_URL.") from error
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
            seconds = _read_wait(response)
            if response.is_success:
                return response
            if seconds is None or seconds > _LONGEST_WAIT or self._waits >= _MOST_WAITS:
                raise SearchFailed(self._explain(response, seconds))
            self._waits += 1
            self.notify(f"GitHub takes no more searches for {seconds:.0f} s: waiting.")
            self.sleep(seconds)

    def _explain(self, response: httpx.Response, seconds: float | None) -> str:
        status, said = response.status_code, ""
        with contextlib.suppress(ValueError, KeyError, TypeError):
            said = f": {' '.join(str(response.json()['message']).split())[:200].rstrip('.')}"
        if seconds is not None:
            hint = "try again later" if self.token else "set GITHUB_TOKEN, or try again later"
            return f"GitHub takes no more searches for {seconds:.0f} s: {hint}."
        if status == 401:
            return f"GitHub refused the token of GITHUB_TOKEN or GH_TOKEN{said}: set a valid one, or none."
        if status >= 500:
            return f"GitHub's search is out of order (HTTP {status}){said}: try again later."
        return f"GitHub refused the search (HTTP {status}){said}."


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
    state, updated = "merged" if merged else str(item["state"]), str(item.get("updated_at") or item["created_at"])
    text = str(item["title"]), str(item.get("body") or "")
    return Hit(str(item["html_url"]), kind, *text, state, datetime.fromisoformat(updated))


@dataclass(frozen=True)
class Search:
    """What was asked, and the likeliest reports first. That there are none is known only of what was asked."""

    when: datetime
    asked: Sequence[Answer]
    related: Sequence[Related]

    def to_text(self) -> str:
        """The ranked links with their reasons, then what was asked."""
        head = f"{len(self.related)} reports in {REPOSITORY} may be about it:"
        none = f"No report in {REPOSITORY} matches well enough, of those that these queries found:"
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
        queries = [{**asked._asdict(), "read": len(asked.hits)} for asked in self.asked]
        keys = ("query", "kind", "total", "read", "complete")
        return {
            "repository": REPOSITORY,
            "searched": self.when.isoformat(timespec="seconds"),
            "queries": [{key: query[key] for key in keys} for query in queries],
            "related": [report.to_json() for report in self.related],
        }


def search(report: ReportJson, source: str, github: GitHub, expression: str = "") -> Search:
    """Search PyTorch's issues and pull requests, open and closed, for a finding.

    ``source`` is the shortest program that shows it, ``expression`` the operation at fault in the user's words.
    SearchFailed if GitHub does not answer one of the queries: a search that asked for less would claim too much.
    """
    terms = extract_terms(report, source, expression)
    asked = [github.search(query, kind) for query in make_queries(terms) for kind in _KINDS]
    when = datetime.now(UTC)
    return Search(when, asked, ranked(terms, [hit for answer in asked for hit in answer.hits], when))
