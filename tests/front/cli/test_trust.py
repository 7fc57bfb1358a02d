"""Commands that would run what was imported refuse it with one sentence, until it is trusted."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from calling import call, sentence

from fuzzcompile.corpus.records import CaseRecord
from fuzzcompile.corpus.replay import replay_engine
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import main
from fuzzcompile.fuzz.campaign import campaign_run

EXPORT = Path(__file__).parents[3] / "corpus" / "torch-2.13.0-cpu" / "addmm-drops-alpha"


@pytest.fixture(autouse=True)
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A corpus that holds one imported finding; running it would raise."""
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    monkeypatch.chdir(tmp_path)

    def ran(*_: object, **__: object) -> None:
        raise AssertionError("it was run")

    monkeypatch.setattr(replay_engine, "run_script", ran, raising=False)
    monkeypatch.setattr(campaign_run, "start_workers", ran)
    assert call("corpus", "import", EXPORT) == 0
    assert "corpus trust --all" in capsys.readouterr().out
    return tmp_path


def listed(capsys: pytest.CaptureFixture[str]) -> bool:
    assert call("corpus", "list", "--json") == 0
    return bool(json.loads(capsys.readouterr().out)["trusted"])


@pytest.mark.parametrize(
    "command", [("minimize", "F1"), ("replay",), ("replay", "--select", "F1"), ("corpus", "refresh"),
                ("corpus", "refresh", "F1")], ids=" ".join,
)  # fmt: skip
def test_a_command_that_would_run_it_refuses(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*command) == 2
    said = sentence(capsys)
    assert "F1 comes from another corpus" in said and "--trust" in said and "corpus trust F1" in said


def test_pending_refuses_where_only_foreign_findings_wait(capsys: pytest.CaptureFixture[str]) -> None:
    source = EXPORT.parent / "celu-alpha-zero"
    exported = json.loads((source / "finding.json").read_text()) | {"reproducer": None, "status": "open"}
    Path("bare").mkdir()
    Path("bare/finding.json").write_text(json.dumps(exported))
    Path("bare/case.py").write_text((source / "case.py").read_text())
    assert call("corpus", "import", "bare") == 0
    capsys.readouterr()
    assert call("minimize", "--pending") == 2
    assert "F2 comes from another corpus" in sentence(capsys)


def test_lists_and_pages_say_that_it_is_not_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    assert not listed(capsys)
    assert call("corpus", "list") == 0 and "not trusted" in capsys.readouterr().out
    assert call("corpus", "show", "F1") == 0
    shown = capsys.readouterr().out
    assert "read the code below" in shown and (EXPORT / "case.py").read_text() in shown
    assert call("corpus", "trust", "F1") == 0
    assert "2 sources" in capsys.readouterr().out and listed(capsys)


def test_trust_takes_names_or_all(capsys: pytest.CaptureFixture[str]) -> None:
    for given in ((), ("F1", "--all")):
        assert call("corpus", "trust", *given) == 2
    assert call("corpus", "trust", "--all") == 0
    assert "Trusted: 2 sources." in capsys.readouterr().out
    assert call("corpus", "trust", "F1") == 0
    assert "already" in capsys.readouterr().out


def test_code_cannot_be_hidden_from_its_reader(capsys: pytest.CaptureFixture[str]) -> None:
    Path("hidden").mkdir()
    told = json.loads((EXPORT / "finding.json").read_text()) | {"reproducer": None, "signature": "post_grad:a.py:b"}
    Path("hidden/finding.json").write_text(json.dumps(told))
    Path("hidden/case.py").write_text("import os  \x1b[2K\rimport torch \u202e\n", newline="")
    assert call("corpus", "import", "hidden") == 0
    assert call("corpus", "show", "F2") == 0
    shown = capsys.readouterr().out
    assert "import os  \\x1b[2K\\rimport torch \\u202e\n" in shown


@pytest.mark.parametrize("terminal", [True, False])
def test_a_case_cannot_change_what_a_terminal_shows(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = "evil() # \x1b[2K\u202e\n"
    environment = {"torch": "2.13.0+cpu", "device": "cpu", "cpu": "\x1b[2Ka\nb", "machine": "aaaaaaaa"}
    told: Any = {"schema": 1, "torch": "2.13.0+cpu", "device": "cpu", "verdict": "equal", "is_bug": False}
    record = CaseRecord(hashlib.sha256(source.encode()).hexdigest(), source, "generated")
    with Store.open(tmp_path / "odd.db") as store:
        store.record(None, record, environment, told)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    with pytest.raises(SystemExit) as ending:
        main(["corpus", "case", record.sha256[:12], "--corpus", str(tmp_path / "odd.db")])
    out, err = capsys.readouterr()
    assert ending.value.code == 0, err
    assert out == ("evil() # \\x1b[2K\\u202e\n" if terminal else source)
    assert "\\x1b[2Ka b" in err and "\x1b" not in err
