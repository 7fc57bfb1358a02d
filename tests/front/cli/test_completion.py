"""Completion: click's scripts for each shell, quick, and with the names of the corpus."""

import os
import subprocess
import sys

import pytest
from calling import call, sentence


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_for_the_shell_in_use_or_the_one_named(monkeypatch, capsys, shell):
    monkeypatch.setenv("SHELL", f"/usr/bin/{shell}")
    assert call("completion") == 0
    used = capsys.readouterr().out
    monkeypatch.setenv("SHELL", "/bin/sh")
    assert call("completion", shell) == 0 and capsys.readouterr().out == used
    assert "_FUZZCOMPILE_COMPLETE" in used and shell in used


def test_bash_completes_from_the_script(tmp_path, capsys):
    assert call("completion", "bash") == 0
    (tmp_path / "script").write_text(capsys.readouterr().out)
    said = subprocess.run(
        ["bash", "-c", f". {tmp_path}/script; complete -p fuzzcompile"], capture_output=True, text=True
    )
    assert "_fuzzcompile_completion" in said.stdout and said.returncode == 0


@pytest.mark.parametrize("former", ["install", "uninstall", "show"])
def test_a_former_spelling_answers_with_the_new_one(capsys, former):
    assert call("completion", former) == 2 and "`completion SHELL`" in sentence(capsys)


def test_a_shell_without_completion_is_one_sentence(monkeypatch, capsys):
    monkeypatch.setenv("SHELL", "/bin/dash")
    assert call("completion") == 2 and "bash, zsh, fish" in sentence(capsys)
    monkeypatch.delenv("SHELL")
    assert call("completion") == 2 and "$SHELL is empty" in sentence(capsys)


def test_it_starts_without_torch(tmp_path):
    words = {"_FUZZCOMPILE_COMPLETE": "bash_complete", "COMP_WORDS": "fuzzcompile corpus show F", "COMP_CWORD": "3"}
    program = (
        "from fuzzcompile.front.cli import main; import sys\ntry: main([])\nfinally: assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **words}, cwd=tmp_path, check=True)
