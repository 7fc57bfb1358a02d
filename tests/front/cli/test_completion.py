"""Completion: installed once, undone whole, quick, and with the names of the corpus."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from calling import call, sentence


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "ZDOTDIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "my home"))
    (tmp_path / "my home").mkdir()
    return tmp_path / "my home"


def files(folder: Path) -> dict[Path, str]:
    return {path: path.read_text() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_it_is_installed_once_and_undone_whole(home, monkeypatch, capsys, shell):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    (home / ".bashrc").write_text("alias a=b")
    before = files(home)
    assert call("completion", "install") == 0
    said, installed = capsys.readouterr().out, files(home)
    new = [path for path in installed if path not in before]
    assert all(str(path) in said for path in new) and "completion uninstall" in said
    assert "_FUZZCOMPILE_COMPLETE" in "".join(installed[path] for path in new)
    assert call("completion", "install") == 0 and files(home) == installed
    assert "up to date" in capsys.readouterr().out
    assert call("completion", "uninstall") == 0
    assert {path: text.strip() for path, text in files(home).items() if text} == before


def test_a_shell_reads_what_was_installed(home, capsys):
    (home / ".bashrc").write_text("alias a=b")
    assert call("completion", "install", "--shell", "bash") == 0
    said = subprocess.run(["bash", "-c", '. "$HOME/.bashrc"; complete -p fuzzcompile'], capture_output=True, text=True)
    assert "_fuzzcompile_completion" in said.stdout and said.returncode == 0


def test_what_cannot_be_installed_is_one_sentence(home, monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert call("completion", "install") == 2 and "--shell" in sentence(capsys)
    (home / ".local").write_text("in the way")
    assert call("completion", "install", "--shell", "bash") == 3 and "completion show" in sentence(capsys)


def test_it_starts_without_torch(tmp_path):
    words = {"_FUZZCOMPILE_COMPLETE": "bash_complete", "COMP_WORDS": "fuzzcompile corpus show F", "COMP_CWORD": "3"}
    program = (
        "from fuzzcompile.front.cli import main; import sys\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **words}, cwd=tmp_path, check=True)
