"""Every command that a command prints works when it is pasted, in a folder whose name a shell must have quoted."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import click
import pytest
from calling import SUBTRACTS, call

from fuzzcompile.corpus.records import CaseRecord
from fuzzcompile.corpus.store import Store
from fuzzcompile.front.cli.main import cli

_HINTS = (re.compile(r"`(fuzzcompile [^`]+)`"), re.compile(r"(?:: |next: |undo: )(fuzzcompile [^`]+?)\)?:?$"))
_CULPRIT = {"stage": "post_grad", "source": "torch/p.py", "line": 1, "rewrite": "fold", "family": "fold", "pass": None}
_PROOF: dict[str, Any] = {"nodes": [], "site": None, "step": None, "necessary": True, "sufficient": None}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a corpus of an unusual name: a wrong value, and a layout that is counted."""
    place = tmp_path / "my models" / "it's"
    place.mkdir(parents=True)
    monkeypatch.chdir(place)
    monkeypatch.delenv("FUZZCOMPILE_CORPUS", raising=False)
    outputs = [{"name": "out0", "finding": "stride", "view_raises": False}]
    with Store.open(place / "a corpus.db") as store:
        for number, (verdict, evidence) in enumerate((("miscompile", []), ("metadata", outputs))):
            report = {
                "schema": 1, "case": "c", "torch": "2.13.0+cpu", "device": "cpu", "verdict": verdict, "is_bug": True,
                "confidence": "high", "detail": "it differs", "evidence": {"outputs": evidence},
                "culprit": _CULPRIT | _PROOF, "contributors": [], "changed_bits": [], "ablations": [],
                "workaround": None, "signature": f"post_grad:torch/p.py:fold{number}", "rewrites": [], "suspects": [],
                "target": None, "cost": {"compiles": 1, "replays": 0, "seconds": 1.0},
            }  # fmt: skip
            store.record(None, CaseRecord(f"{number:064}", SUBTRACTS, "generated"), {"torch": "2.13.0"}, report)
    return place


def hints_in(text: str) -> list[str]:
    """The command lines in what was printed."""
    return [hint for pattern in _HINTS for line in text.splitlines() for hint in pattern.findall(line)]


def arguments_of(hint: str) -> list[str]:
    """The arguments that a shell hands to the program when the line is pasted."""
    script = f"fuzzcompile() {{ printf '%s\\0' \"$@\"; }}\n{hint}\n"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.split("\0")[:-1]


def accepted(arguments: list[str]) -> click.Context:
    """The context of the command with these arguments; an unknown option or a missing argument is an error."""
    name, command, rest = cli.resolve_command(click.Context(cli), arguments)
    assert command is not None
    while isinstance(command, click.Group):
        name, command, rest = command.resolve_command(click.Context(command), rest)
        assert command is not None
    return command.make_context(name, rest)


COMMANDS = (
    (0, "corpus", "list", "--corpus", "a corpus.db"),
    (0, "corpus", "show", "F1", "--corpus", "a corpus.db"),
    (0, "corpus", "show", "F2", "--corpus", "a corpus.db"),
    (0, "issue", "F1", "--corpus", "a corpus.db"),
    (3, "corpus", "list", "--corpus", "no such.db"),
    (2, "mark", "F1", "known", "--corpus", "a corpus.db"),
)


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: "-".join(map(str, words[1:3])))
def test_every_hint_is_a_command_line_that_is_accepted(folder, monkeypatch, capsys, words):
    monkeypatch.setenv("HOME", str(folder))
    status, *typed = words
    assert call(*typed) == status
    hints = hints_in("".join(capsys.readouterr()))
    assert hints, "this command says what to type next"
    for hint in hints:
        values = accepted(arguments_of(hint)).params
        location = values.get("location")
        assert location in (None, "a corpus.db", "no such.db"), hint
        if (values.get("name") or values.get("finding")) in ("F1", "F2"):
            with Store.open(location, create=False) as store:
                store.finding(str(values.get("name") or values.get("finding")))
