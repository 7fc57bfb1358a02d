"""GitHub's search API: the requests, its limits, and its errors in one sentence each."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Self
from urllib.parse import urlsplit

import httpx

from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.report.search.ranking import Hit

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
    """The answer to one query: ``total`` reports match it, of which the best ``hits`` were read.

    ``complete`` is False where GitHub ran out of time and says that there may be more.
    """

    hits: tuple[Hit, ...]
    total: int
    complete: bool


@dataclass
class GitHub:
    """A client of the search API, for one search.

    Args:
        base: the API's URL.
        token: raises the limit from 10 to 30 searches a minute.
        notify: is given a sentence before each wait.
        sleep: waits so many seconds.
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
        }
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
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
        """The reports of one kind in a repository that match a query, GitHub's best matches first.

        Args:
            query: words, without qualifiers.
            kind: "issue" or "pull request"; GitHub answers for one of them at a time.
            repository: as ``owner/name``.

        Raises:
            SearchFailed: there is no answer; the message says why.
        """
        hits: list[Hit] = []
        total, complete = 0, True
        for page in range(1, _MOST_PAGES + 1):
            text = f"{query} repo:{repository} {_KINDS[kind]}"
            answer = self._get({"q": text, "per_page": _PER_PAGE, "page": page})
            try:
                items = answer["items"]
                total = int(answer["total_count"])
                complete = complete and not answer.get("incomplete_results")
                hits += [_hit(item, kind) for item in items]
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise SearchFailed(f"{self._host} does not answer as GitHub's search API does: {error!r}.") from error
            # More than the pages that are read are not worth a request: GitHub has put its best matches first.
            if not items or len(hits) >= total or total > _PER_PAGE * _MOST_PAGES:
                break
        return Answer(tuple(hits), total, complete)

    @property
    def _host(self) -> str:
        return urlsplit(self.base).netloc

    def _get(self, parameters: Mapping[str, str | int]) -> dict[str, Any]:
        while True:
            try:
                response = self._client.get("/search/issues", params=parameters)
            except httpx.TimeoutException as error:
                raise SearchFailed(f"{self._host} did not answer within {_TIMEOUT:.0f} s: try again later.") from error
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise SearchFailed(f"{self._host} cannot be reached ({_short(error)}): check the network.") from error
            if response.is_success:
                break
            self._wait_or_raise(response)
        try:
            answer = response.json()
        except ValueError as error:
            raise SearchFailed(f"{self._host} answered with something else than JSON: check GITHUB_API_URL.") from error
        if not isinstance(answer, dict):
            raise SearchFailed(f"{self._host} does not answer as GitHub's search API does: check GITHUB_API_URL.")
        return answer

    def _wait_or_raise(self, response: httpx.Response) -> None:
        """Wait until GitHub takes another search, as long as that is soon."""
        status, said = response.status_code, _message(response)
        seconds = _wait_of(response)
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


def _wait_of(response: httpx.Response) -> float | None:
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
        pass  # A limit all the same, of unknown length: a minute is the window of the search API.
    else:
        return None if response.status_code == 403 else 60.0
    return 60.0


def _hit(item: Mapping[str, object], kind: str) -> Hit:
    return Hit(
        url=str(item["html_url"]),
        kind=kind,
        title=str(item["title"]),
        body=str(item.get("body") or ""),
        state=_state(item),
        updated=datetime.fromisoformat(str(item.get("updated_at") or item["created_at"])),
    )


def _state(item: Mapping[str, object]) -> str:
    """Open, closed or merged; PyTorch's bot merges by pushing and closing, and says so with a label alone."""
    pull, labels = item.get("pull_request"), item.get("labels")
    names = (
        [str(label.get("name")).lower() for label in labels if isinstance(label, dict)]
        if isinstance(labels, list)
        else []
    )
    if isinstance(pull, dict) and (pull.get("merged_at") or "merged" in names):
        return "merged"
    return str(item["state"])


def _message(response: httpx.Response) -> str:
    """What GitHub says of a refusal, as the end of a sentence."""
    try:
        message = response.json()["message"]
    except (ValueError, KeyError, TypeError):
        return ""
    return f": {' '.join(str(message).split())[:200].rstrip('.')}"


def _short(error: Exception) -> str:
    return (str(error) or type(error).__name__).rstrip(".")
