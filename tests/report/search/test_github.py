"""The client reads what GitHub's API answers, keeps its limits, and says what went wrong in one sentence."""

from __future__ import annotations

import time

import pytest
from fake_github import Answered

from fuzzcompile.model.errors import UsageError
from fuzzcompile.report.github_search import GitHub, SearchFailed

LIMITED = {"message": "API rate limit exceeded for 192.0.2.1. (But here's the good news: ...)"}


class Waits:
    """Counts what would have been waited, in seconds, and keeps what was said of it."""

    def __init__(self):
        self.seconds, self.said = [], []


@pytest.fixture
def waits():
    return Waits()


@pytest.fixture
def client(github, waits):
    with GitHub(github.url, None, waits.said.append, waits.seconds.append) as opened:
        yield opened


def test_issues_and_pull_requests_are_told_apart_and_merged_ones_from_closed(github, client):
    github.add(1, "Stride of renorm", state="closed")
    github.add(2, "Fix stride of renorm", pull=True, state="closed", merged=True)
    github.add(3, "Fix stride of renorm by bot", pull=True, state="closed", labels=("Merged", "ciflow/trunk"))
    github.add(4, "Try to fix stride of renorm", pull=True, state="closed")
    (issue,) = client.search("renorm stride", "issue").hits
    pulls = client.search("renorm stride", "pull request").hits
    assert (issue.kind, issue.state, issue.body) == ("issue", "closed", "")
    assert [(pull.kind, pull.state) for pull in pulls] == [("pull request", s) for s in ("merged", "merged", "closed")]


def test_a_second_page_is_read_where_it_is_the_last(github, client):
    for number in range(73):
        github.add(number, f"renorm {number}")
    answer = client.search("renorm", "issue")
    assert (len(answer.hits), answer.total, len(github.queries)) == (73, 73, 2)
    assert len({hit.url for hit in answer.hits}) == 73


def test_of_many_matches_the_best_page_is_read_and_their_number_kept(github, client):
    for number in range(130):
        github.add(number, f"renorm {number}")
    answer = client.search("renorm", "issue")
    assert (len(answer.hits), answer.total, len(github.queries)) == (50, 130, 1)


def test_an_answer_that_github_did_not_finish_is_marked(github, client):
    github.incomplete = True
    assert not client.search("renorm", "issue").complete


@pytest.mark.parametrize(
    ("status", "headers", "seconds"),
    [
        (429, {"retry-after": "7"}, 7),
        (403, {"retry-after": "1"}, 1),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "2000000030"}, 31),
        (429, {}, 60),
    ],
)
def test_a_limit_that_ends_soon_is_waited_for(github, client, waits, monkeypatch, status, headers, seconds):
    monkeypatch.setattr(time, "time", lambda: 2_000_000_000.0)
    github.first = [Answered(status, LIMITED, headers)]
    github.add(1, "renorm")
    assert len(client.search("renorm", "issue").hits) == 1
    assert waits.seconds == [pytest.approx(seconds)] and "waiting" in waits.said[0]


def test_a_limit_that_does_not_end_is_not_waited_for_forever(github, client, waits):
    github.first = [Answered(429, LIMITED, {"retry-after": "5"})] * 9
    with pytest.raises(SearchFailed, match="GITHUB_TOKEN"):
        client.search("renorm", "issue")
    assert 0 < len(waits.seconds) < 5


def test_a_limit_of_an_hour_is_said_at_once(github, client, waits):
    github.first = [
        Answered(403, LIMITED, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": f"{time.time() + 3600:.0f}"})
    ]
    with pytest.raises(SearchFailed, match=r"no more searches for 3[56]\d\d s"):
        client.search("renorm", "issue")
    assert not waits.seconds


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (Answered(401, {"message": "Bad credentials"}), "token .*Bad credentials"),
        (Answered(422, {"message": "Validation Failed"}), "refused the search .HTTP 422.: Validation Failed"),
        (
            Answered(403, {"message": "Resource not accessible"}, {"x-ratelimit-remaining": "8"}),
            "Resource not accessible",
        ),
        (Answered(502, "<html>Bad gateway</html>"), "out of order .HTTP 502."),
        (Answered(200, "<html>A hotel's log-in page</html>"), "JSON"),
        (Answered(200, '["a list"]'), "does not answer as GitHub's"),
        (Answered(200, {"total_count": 1, "items": [{"title": "no address"}]}), "does not answer as GitHub's"),
        (Answered(200, {"message": "no items"}), "does not answer as GitHub's"),
    ],
)
def test_an_answer_that_is_none_is_one_sentence(github, client, answer, said):
    github.first = [answer]
    with pytest.raises(SearchFailed, match=said) as raised:
        client.search("renorm", "issue")
    assert raised.value.exit_status == 3 and "\n" not in str(raised.value)


def test_no_network_and_no_answer_are_one_sentence(github):
    with GitHub("http://127.0.0.1:9") as nowhere, pytest.raises(SearchFailed, match="cannot be reached"):
        nowhere.search("renorm", "issue")


def test_a_token_is_sent_and_an_address_that_is_none_refused(github, monkeypatch):
    monkeypatch.setenv("GH_TOKEN", "t0")
    with GitHub.of_environment(print) as client:
        client.search("renorm", "issue")
    assert github.tokens == ["Bearer t0"]
    monkeypatch.setenv("GITHUB_API_URL", "github.com")
    with pytest.raises(UsageError, match="GITHUB_API_URL"):
        GitHub.of_environment(print)
