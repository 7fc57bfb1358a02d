"""Command lines to paste: quoted, complete, and without what holds anyway."""

import shlex
import sys
from pathlib import Path

import pytest

from fuzzcompile.model import hints


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / "my models" / "it's"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    return place


def words(line: str) -> list[str]:
    """The arguments that a shell passes on."""
    return shlex.split(line)[len(hints.find_program()) :]


def test_names_are_quoted_and_paths_made_relative(folder):
    line = hints.format_command("minimize", folder / "a b.py", plant=(Path("it's.py"), "$x"))
    assert words(line) == ["minimize", "a b.py", "--plant", "it's.py", "--plant", "$x"]
    assert words(hints.format_command("triage", "-x.py", math_only=True, call=None)) == [
        "triage",
        "./-x.py",
        "--math-only",
    ]


def test_what_holds_anyway_is_left_out(folder, monkeypatch):
    line = hints.format_command(
        "issue", "F1", corpus=folder / "corpus" / "fuzzcompile.db", device="auto", timeout=180.0
    )
    assert words(line) == ["issue", "F1"]
    assert words(hints.format_command("issue", "F1", corpus="x.db", device="cpu"))[2:] == [
        "--corpus",
        "x.db",
        "--device",
        "cpu",
    ]
    monkeypatch.setenv("FUZZCOMPILE_CORPUS", "x.db")
    (folder / "pyproject.toml").write_text('[tool.fuzzcompile]\ndevice = "cpu"\n')
    assert words(hints.format_command("issue", "F1", corpus="x.db", device="cpu")) == ["issue", "F1"]
    assert words(hints.format_command("issue", "F1", corpus="corpus/fuzzcompile.db", device="auto"))[2::2] == [
        "--corpus",
        "--device",
    ]


def test_what_is_read_elsewhere_depends_on_no_setting_of_this_machine(monkeypatch):
    monkeypatch.setenv("FUZZCOMPILE_DEVICE", "cpu")
    line = hints.format_command("issue", "F1", device="cpu", published=True)
    assert line == "fuzzcompile issue F1 --device cpu"


def test_a_subject_keeps_the_options_that_the_command_takes():
    subject = hints.CommandSubject("m.py", {"module": "h.1", "device": "cpu", "plant": ("p.py",)})
    assert words(subject.format_command("triage")) == [
        "triage",
        "m.py",
        "--module",
        "h.1",
        "--device",
        "cpu",
        "--plant",
        "p.py",
    ]
    assert words(subject.format_command("issue")) == ["issue", "m.py", "--device", "cpu", "--plant", "p.py"]
    assert subject.is_taken_whole_by("triage") and not subject.is_taken_whole_by("minimize")
    subject = hints.CommandSubject("train.py", {"device": "cpu", "arguments": ("--steps", "3")})
    for command in ("triage", "minimize", "issue", "profile"):
        assert words(subject.format_command(command)) == [command, "train.py", "--device", "cpu", "--", "--steps", "3"]
    assert subject.is_taken_whole_by("minimize")


def test_where_no_script_of_ours_is_on_the_path_the_interpreter_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    assert hints.find_program() == [sys.executable, "-m", "fuzzcompile"]
