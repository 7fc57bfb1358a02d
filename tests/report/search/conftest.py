from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer

import pytest
from fake_github import FakeGitHub, handler_of


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeGitHub]:
    """A server on this machine, to which the environment points."""
    fake = FakeGitHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(fake))
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    fake.url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("GITHUB_API_URL", fake.url)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("GITHUB_TOKEN", "GH_TOKEN", "FUZZCOMPILE_CORPUS"):
        monkeypatch.delenv(name, raising=False)
    yield fake
    server.shutdown()
    server.server_close()
