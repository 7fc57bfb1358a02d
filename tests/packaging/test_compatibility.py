"""What docs/compatibility.md promises: its lists are those of the code, and what earlier versions wrote is read."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from calling import call
from earlier_corpora import EARLIER, SIGNATURE, make_corpus

import fuzzcompile
from fuzzcompile.analyses.profile import layer_profile, recordings
from fuzzcompile.corpus import export, maintenance
from fuzzcompile.front.api.triage import TriageOptions
from fuzzcompile.front.cli.main import _FORMER, _MOVED, cli
from fuzzcompile.front.known_bugs import Baseline
from fuzzcompile.model import contract
from fuzzcompile.model.settings import SETTINGS
from fuzzcompile.programs.casefiles import case_module
from fuzzcompile.programs.casefiles.case_file import count_processes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text(encoding="utf-8")
OPTIONS = Path(__file__).with_name("public_options.txt")
# One of the first findings that this project kept, as it was exported on 21 November 2026.
FIRST = Path(__file__).with_name("export_schema_1")
PLACE = "decomposition:torch/_inductor/decomposition.py:addmm"


def rows(mark: str) -> list[list[str]]:
    """The cells of a table of the page, without its head; code without its backticks."""
    text = re.search(rf"<!-- {mark} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert text is not None, mark
    return [[cell.strip(" `") for cell in line.strip("|").split(" | ")] for line in text[1].splitlines()[2:]]


def words(mark: str) -> set[str]:
    text = re.search(rf"<!-- {mark} -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert text is not None, mark
    return set(re.findall(r"`([\w-]+)`", text[1]))


def commands(group: click.Group, before: str = "") -> Iterator[tuple[str, click.Command]]:
    for name, command in sorted(group.commands.items()):
        if isinstance(command, click.Group):
            yield from commands(command, f"{before}{name} ")
        else:
            yield f"{before}{name}", command


def test_the_page_lists_the_commands_and_the_former_ones() -> None:
    assert [name for name, _ in rows("commands")] == [name for name, _ in commands(cli)]
    assert dict(rows("former commands")) == {former: " ".join(now) for former, now in _MOVED.items()}
    assert all(f"`{former}`" in PAGE for former in _FORMER)


def test_no_option_goes_or_comes_unnoticed() -> None:
    """One that goes breaks the promise unless its name goes on working; one that comes is promised from then on."""
    options = {
        name: sorted(option for part in command.params for option in (*part.opts, *part.secondary_opts))
        for name, command in commands(cli)
    }
    listed = dict(line.split(": ", 1) for line in OPTIONS.read_text().splitlines())
    assert listed == {name: " ".join(o for o in own if o.startswith("--")) for name, own in options.items()}


def test_the_page_lists_the_python_names() -> None:
    public = {*fuzzcompile.__all__, *fuzzcompile._HOMES}
    assert {name for name, _ in rows("Python names")} == {f"fuzzcompile.{name}" for name in public}
    assert all(getattr(fuzzcompile, name) for name in public)
    assert words("options") == set(TriageOptions.__annotations__)
    fields = {name for name, _ in inspect.getmembers(fuzzcompile.Report)} | {"json"}
    assert words("Report") == {name for name in fields if not name.startswith("_")}


def test_the_page_lists_the_settings_and_what_a_case_file_may_bind() -> None:
    assert words("settings") == {setting.key for setting in SETTINGS}
    read = re.findall(r'namespace\.get\("(\w+)"', inspect.getsource(case_module))
    assert words("case file") | {"make"} == {*read, "NPROC"}
    assert count_processes("NPROC = 2\ndef make(): ...\n") == 2


def test_the_page_has_the_numbers_of_the_files() -> None:
    now = [contract.SCHEMA, layer_profile.SCHEMA, maintenance.HEAD, export.SCHEMA, recordings.SCHEMA]
    assert [number for _, number, *_ in rows("files")] == list(map(str, now))
    assert next(re.findall(r"\d{4}", forms) for file, _, forms, _ in rows("files") if file == "corpus") == EARLIER


@pytest.mark.parametrize("revision", [*EARLIER, maintenance.HEAD])
def test_a_corpus_of_each_schema_is_read_by_the_commands(
    revision: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = make_corpus(tmp_path / "corpus.db", revision)
    assert call("corpus", "list", "--json", "--corpus", corpus) == 0
    (finding,) = map(json.loads, capsys.readouterr().out.splitlines())
    assert (finding["finding"], finding["signature"], finding["hits"]) == ("F1", SIGNATURE, 1)
    assert call("corpus", "mark", "F1", "known", "#1", "--corpus", corpus) == 0
    assert call("corpus", "export", "F1", tmp_path / "out", "--corpus", corpus) == 0
    assert json.loads((tmp_path / "out" / "finding.json").read_text())["status"] == "known"


def test_an_export_of_schema_1_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    corpus = tmp_path / "corpus.db"
    assert call("corpus", "import", FIRST, "--corpus", corpus) == 0
    capsys.readouterr()
    assert call("corpus", "show", "F1", "--json", "--corpus", corpus) == 0
    shown: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (shown["signature"], shown["severity"], shown["hits"]) == (PLACE, "accepts_invalid", 3)
    assert shown["reproducer"]["source"] == (FIRST / "repro.py").read_text()


def test_what_a_newer_version_exported_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    newer = shutil.copytree(FIRST, tmp_path / "newer") / "finding.json"
    newer.write_text(json.dumps(json.loads(newer.read_text()) | {"schema": export.SCHEMA + 1}))
    assert call("corpus", "import", newer.parent, "--corpus", tmp_path / "corpus.db") != 0
    assert "a newer fuzzcompile wrote it (schema 3, this one reads 2)" in capsys.readouterr().err


@pytest.fixture
def early(tmp_path: Path) -> Path:
    """A baseline of that time; a signature has no fingerprint yet."""
    told = json.loads((FIRST / "finding.json").read_text())
    assert told["report"]["signature"] == told["signature"] == PLACE
    path = tmp_path / "known.jsonl"
    path.write_text(json.dumps(told["report"]))
    return path


def test_a_baseline_of_then_knows_the_bug_as_it_is_called_now(early: Path) -> None:
    now = ROOT / "corpus" / "torch-2.13.0-cpu" / "addmm-bias-not-broadcastable" / "finding.json"
    report = json.loads(now.read_text())["report"]
    assert report["signature"] == f"{PLACE}:size" and Baseline.read(early).knows(report)


@pytest.mark.slow
def test_case_files_and_reproducers_of_then_are_judged(early: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scripts = [FIRST / name for name in ("case.py", "repro.py", "neighbour.py")]
    assert call("triage", *scripts, "--baseline", early, "--json") == 0, "its bug is known"
    *bugs, neighbour = (fuzzcompile.Report.from_json(line) for line in capsys.readouterr().out.splitlines())
    assert not neighbour.is_bug
    # Newer versions of torch refuse it as eager does.
    assert all(report.json["known"] if report.is_bug else report.verdict == "invalid" for report in bugs)
