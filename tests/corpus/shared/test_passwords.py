"""The password of a database occurs nowhere: neither in what is said, nor in what is stored or written."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from corpus_examples import ENVIRONMENT, bug, campaign, case, reproducer
from postgres_server import PostgresServer

from fuzzcompile.corpus.models import Base
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main
from fuzzcompile.model import hints
from fuzzcompile.model.privacy import strip_password, strip_passwords


def call(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(arguments)
    return int(ending.value.code or 0)


@pytest.fixture
def filled(database: str) -> str:
    with Store.open(database) as store:
        key = store.start_campaign(campaign())
        store.record(key, case(), ENVIRONMENT, bug())
        store.add_reproducer("F1", reproducer(report=bug()))
        store.finish_campaign(key, {}, "budget")
    return database


COMMANDS = {
    "corpus list": 0, "corpus list --json": 0, "corpus show F1 --json": 0, "corpus stats": 0, "mark F1 known #1": 0,
    "config": 0, "corpus export F1 out": 0, "corpus gc --dry-run": 0, "config --json": 0,
    "corpus show F9": 2, "corpus show F9 --debug": 2,
}  # fmt: skip


def test_no_command_says_it(
    filled: str,
    server: PostgresServer,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", filled)
    for command, status in COMMANDS.items():
        assert call(*command.split()) == status, (command, capfd.readouterr())
    for wrong in ("@127.0.0.1:1/", f"@127.0.0.1:{server.port}/no_such"):
        monkeypatch.setenv("FUZZCOMPILE_CORPUS", f"postgresql://fuzz:{server.password}{wrong}")
        assert call("corpus", "list", "--debug") == 3
    said = "".join(capfd.readouterr())
    assert "F1" in said and "postgresql" in said and "Traceback" in said
    assert server.password not in said
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(server.password.encode() in content for content in written)


def test_a_password_on_the_command_line_works_and_is_warned_of(
    filled: str, server: PostgresServer, capfd: pytest.CaptureFixture[str]
) -> None:
    url = f"{filled.replace(f':{server.password}', '')}?password={server.password}"
    assert call("corpus", "list", "--corpus", url) == 0
    out, err = capfd.readouterr()
    assert "F1" in out and "PGPASSWORD" in err and server.password not in out + err
    assert call("corpus", "show", "F7", "--corpus", filled) == 2
    assert server.password not in "".join(capfd.readouterr())


def test_the_url_that_is_shown_can_be_given_again(
    filled: str, server: PostgresServer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with Store.open(filled) as store:
        shown = store.location
    monkeypatch.setenv("PGPASSWORD", server.password)
    assert call("corpus", "list", "--corpus", shown) == 0
    assert capfd.readouterr().err == ""


def test_a_hint_leaves_out_the_corpus_in_force(filled: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", filled)
    with Store.open() as store:
        assert hints.format_command("corpus", "show", "F1", corpus=store.location).endswith("corpus show F1")


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("postgresql://u:p%40w@h:5/db", "postgresql://u@h:5/db"),
        ("--corpus=postgres://u:p/w:x@h/db?password=a&sslmode=require", "--corpus=postgres://u@h/db?sslmode=require"),
        ("postgresql:///db?host=/run&PASSWORD=a b", "postgresql:///db?host=/run b"),
        ("postgresql://u@h/db?user=u&sslpassword=a", "postgresql://u@h/db?user=u"),
        ("said 'postgresql://u:p@ss@h/d?user=a@b'", "said 'postgresql://u@h/d?user=a@b'"),
        ("said 'postgresql://u@h/d?password=a'b': gone", "said 'postgresql://u@h/d': gone"),
        ("postgresql://u@firm:p@h/d", "postgresql://u@firm@h/d"),
        ("tcp://host:8786 and https://host:80/path", "tcp://host:8786 and https://host:80/path"),
    ],
)
def test_passwords_are_cut_out_of_any_text(text: str, left: str) -> None:
    assert strip_passwords(text) == left


@pytest.mark.parametrize(
    ("argument", "left"),
    [
        ("postgresql://u:my pass@h/d", "postgresql://u@h/d"),
        ("--corpus=postgresql+psycopg://u:p@ss/w'o@h/d?user=a@b", "--corpus=postgresql+psycopg://u@h/d?user=a@b"),
        ("postgresql://h/d?password=a'b c&sslmode=require", "postgresql://h/d?sslmode=require"),
        ("postgresql://h/d?sslmode=require&password=a'b", "postgresql://h/d?sslmode=require"),
        ("https://host:80/path?at=a", "https://host:80/path?at=a"),
        ("see postgresql://u:p@h/d and this", "see postgresql://u@h/d and this"),
        ("F1", "F1"),
    ],
)
def test_a_password_is_cut_out_of_an_argument_whatever_it_holds(
    argument: str, left: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert strip_password(argument) == left
    monkeypatch.setattr(sys, "argv", ["fuzzcompile", "run", argument])
    assert shlex.split(hints.format_typed_line()) == ["fuzzcompile", "run", left]


def test_an_at_sign_in_a_password_is_not_taken_for_the_host(capfd: pytest.CaptureFixture[str]) -> None:
    assert call("corpus", "list", "--corpus", "postgresql://u:p@secret@127.0.0.1:1/d") == 3
    said = "".join(capfd.readouterr())
    assert "%40 for @" in said and "secret" not in said


@pytest.mark.slow
def test_a_campaign_writes_it_nowhere(database: str, server: PostgresServer, tmp_path: Path) -> None:
    """All bytes of a campaign: the corpus, what it prints, its log, summary, drafts and report."""
    options = ["--corpus", database, "--device", "cpu", "--workers", "1", "--log", "log", "--summary", "sum.json"]
    command = [sys.executable, "-m", "fuzzcompile", "run", "--budget", "2c", *options, "--screen-only", "--drafts", "d"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0 and "PGPASSWORD" in done.stderr, done
    with Store.open(database) as store, store._engine.connect() as connection:
        tables = [connection.exec_driver_sql(f"SELECT * FROM {name}").all() for name in Base.metadata.tables]
    dump = repr(tables)
    assert "fuzzcompile run" in dump and json.loads((tmp_path / "sum.json").read_text())["cases"] >= 1
    assert server.password not in done.stdout + done.stderr + dump
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert written and not any(server.password.encode() in content for content in written)
