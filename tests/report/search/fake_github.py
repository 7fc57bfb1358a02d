"""A server on this machine that answers as GitHub's search API does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit


@dataclass
class Answered:
    """An answer to come before any other; ``body`` is sent as it is if it is text."""

    status: int
    body: object
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeGitHub:
    """Reports by number, found where all words of a query stand in their title or body, as GitHub's search does."""

    url: str = ""
    reports: list[dict] = field(default_factory=list)
    queries: list[str] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)
    first: list[Answered] = field(default_factory=list)
    incomplete: bool = False

    def add(self, number, title, body="", *, pull=False, state="open", merged=False, labels=()) -> str:
        updated = "2026-09-01T10:00:00Z"
        kind = "pull" if pull else "issues"
        item = {
            "number": number, "title": title, "body": body or None, "state": state, "updated_at": updated,
            "html_url": f"https://github.com/pytorch/pytorch/{kind}/{number}", "labels": [{"name": n} for n in labels],
        }  # fmt: skip
        if pull:
            item["pull_request"] = {"merged_at": updated if merged else None}
        self.reports.append(item)
        return item["html_url"]

    def answer(self, query: str, per_page: int, page: int) -> dict:
        words = query.split()
        wanted = "pull_request" if "is:pull-request" in words else "issue" if "is:issue" in words else None
        assert wanted and "repo:pytorch/pytorch" in words, "GitHub answers 422 without one of the two"
        text = query.partition(" repo:")[0]
        alternatives = [part.replace('"', "").lower().split() for part in text.split(" OR ")]
        matching = [
            item
            for item in self.reports
            if ("pull_request" in item) == (wanted == "pull_request")
            and any(all(w in f"{item['title']} {item['body']}".lower() for w in words) for words in alternatives)
        ]
        shown = matching[(page - 1) * per_page : page * per_page]
        return {"total_count": len(matching), "incomplete_results": self.incomplete, "items": shown}


def handler_of(fake: FakeGitHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = parse_qs(urlsplit(self.path).query)
            fake.queries.append(asked["q"][0])
            fake.tokens.append(self.headers.get("Authorization"))
            if fake.first:
                answer = fake.first.pop(0)
            elif urlsplit(self.path).path != "/search/issues":
                answer = Answered(404, {"message": "Not Found"})
            else:
                answer = Answered(200, fake.answer(asked["q"][0], int(asked["per_page"][0]), int(asked["page"][0])))
            body = answer.body if isinstance(answer.body, str) else json.dumps(answer.body)
            self.send_response(answer.status)
            for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, *args: object) -> None:
            pass

    return Handler
