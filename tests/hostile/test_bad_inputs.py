"""Bad inputs, each given to a real command: what it says, its exit status, and how long it takes to say so."""

from __future__ import annotations

import os
import shlex
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXPORT = next((ROOT / "corpus").glob("torch-*/fmin-stride"))
SECONDS = 60.0
# Python runs this first: it tells at the end whether torch was imported, which takes longer than all else.
TELLING = """
import atexit, pathlib, sys

atexit.register(lambda: pathlib.Path(__file__).with_name("imported").write_text(str("torch" in sys.modules)))
"""
CASE = "import torch\n\ndef make():\n    return torch.relu, (torch.ones(3),)\n"


@dataclass(frozen=True)
class Bad:
    """A command line, and what must come of it."""

    arguments: str
    status: int
    says: str
    torch: bool = False


FILES = [
    Bad("triage missing.py", 2, "missing.py"),
    Bad("triage empty_folder", 2, "empty_folder"),
    Bad("triage 'nothing*.py'", 2, "nothing*.py"),
    Bad("triage", 2, "name a case"),
    Bad("triage binary.py", 2, "binary.py"),
    Bad("triage empty.py", 2, "empty.py"),
    Bad("triage latin1.py", 2, "latin1.py"),
    Bad("triage nulls.py", 2, "nulls.py"),
    Bad("triage syntax.py", 2, "line 3"),
    Bad("triage plain.py", 2, "torch.compile"),
    Bad("triage fifo.py", 2, "fifo.py"),
    Bad("triage loop.py", 2, "loop.py"),
    Bad("triage dangling.py", 2, "dangling.py"),
    Bad("triage huge.py", 2, "huge.py"),
    Bad("triage notes.txt", 2, "notes.txt"),
    Bad("triage empty.ipynb", 2, "empty.ipynb"),
    Bad("triage test_model.py", 2, "assert_compiles_alike"),
    Bad("bisect missing.py", 2, "missing.py"),
    Bad("bisect syntax.py", 2, "line 3"),
    Bad("profile missing.py", 2, "missing.py"),
    Bad("minimize missing.py --corpus good.db", 2, "missing.py"),
    Bad("minimize missing.py", 2, "missing.py"),
    Bad("watch missing.py", 2, "missing.py"),
    Bad("issue missing.py", 2, "missing.py"),
    Bad("run --from missing.py", 2, "missing.py"),
    Bad("run --from empty_folder", 2, "empty_folder"),
]  # fmt: skip
VALUES = [
    Bad("run --budget -3", 2, "-3"),
    Bad("run --budget 1x", 2, "1x"),
    Bad("run --budget nan", 2, "nan"),
    Bad("run --budget 0s", 2, "0s"),
    Bad("run --budget ''", 2, "budget"),
    Bad("run --workers 0", 2, "workers"),
    Bad("run --workers many", 2, "workers"),
    Bad("run --seed text", 2, "seed"),
    Bad("run --seed -1", 2, "seed"),
    Bad("run --max-findings 0", 2, "max-findings"),
    Bad("run --fail-on awful", 2, "awful"),
    Bad("triage case.py --device cdua", 2, "cdua"),
    Bad("triage case.py --device cuda:x", 2, "cuda:x"),
    Bad("triage case.py --target cuda:sm_1", 2, "cuda:sm_1"),
    Bad("triage case.py --timeout 0", 2, "timeout"),
    Bad("triage case.py --timeout nan", 2, "timeout"),
    Bad("triage case.py --max-memory 0.1", 2, "memory"),
    Bad("triage case.py --workers 1000", 2, "workers"),
    Bad("triage case.py --call 0", 2, "call"),
    Bad("triage case.py --against nothing", 2, "nothing"),
    Bad("triage case.py --contract exact", 2, "exact"),
    Bad("triage case.py --plant missing.py", 2, "missing.py"),
    Bad("triage case.py --plant syntax.py", 2, "syntax.py"),
    Bad("triage case.py --veto no_such_pass", 2, "no_such_pass", torch=True),
    Bad("triage case.py --veto ''", 2, "veto"),
    Bad("triage case.py --tolerances missing.toml", 2, "missing.toml"),
    Bad("triage case.py --tolerances notes.txt", 2, "notes.txt"),
    Bad("triage case.py --baseline missing.json", 2, "missing.json"),
    Bad("triage case.py --baseline binary.py", 2, "binary.py"),
    Bad("triage --hf-config no/such-model", 2, "no/such-model", torch=True),
    Bad("triage case.py --no-such-option", 2, "--no-such-option"),
    Bad("coverage --stage nowhere --corpus good.db", 2, "nowhere"),
    Bad("passes --stage nowhere", 2, "nowhere"),
    Bad("coverage --within tomorrow --corpus good.db", 2, "tomorrow"),
    Bad("generate --count 0", 2, "count"),
    Bad("generate --out case.py", 2, "case.py"),
    Bad("minimize case.py --budget soon", 2, "soon"),
    Bad("minimize case.py --compiles 0", 2, "compiles"),
    Bad("minimize case.py --keep all", 2, "all"),
    Bad("watch script.py --every 0", 2, "every"),
    Bad("replay --runs 0 --corpus good.db", 2, "runs"),
    Bad("replay --select F99 --corpus good.db", 2, "F99"),
    Bad("profile case.py --against nothing", 2, "nothing", torch=True),
    Bad("frobnicate", 2, "frobnicate"),
    Bad("config --set x", 2, "--set"),
]
FINDINGS = [
    Bad("corpus show F99 --corpus good.db", 2, "F99"),
    Bad("corpus show nonsense --corpus good.db", 2, "nonsense"),
    Bad("corpus export F99 out --corpus good.db", 2, "F99"),
    Bad("corpus refresh F99 --corpus good.db", 2, "F99"),
    Bad("minimize F99 --corpus good.db", 2, "F99"),
    Bad("issue F99 --corpus good.db", 2, "F99"),
    Bad("mark F99 invalid --corpus good.db", 2, "F99"),
    Bad("mark F1 splendid --corpus good.db", 2, "splendid"),
    Bad("mark F1 known --corpus good.db", 2, "ISSUE"),
    Bad("mark F1 dup F1 --corpus good.db", 2, "F1"),
    Bad("mark F1 known 'no issue' --corpus good.db", 2, "no issue"),
    Bad("corpus import missing --corpus good.db", 2, "missing"),
    Bad("corpus import empty_folder --corpus good.db", 2, "empty_folder"),
    Bad("corpus gc --older-than -1 --corpus good.db", 2, "older-than"),
    Bad("corpus vacuum", 2, "vacuum"),
]
CORPORA = [
    Bad("corpus list --corpus missing.db", 3, "missing.db"),
    Bad("corpus stats --corpus notes.txt", 3, "is not an SQLite database"),
    Bad("corpus list --corpus theirs.db", 3, "another program's database"),
    Bad("corpus list --corpus newer.db", 3, "a newer fuzzcompile"),
    Bad("corpus list --corpus half.db", 3, "is damaged"),
    Bad("corpus list --corpus nosuch://user:secret@host/db", 3, "driver"),
    Bad("corpus list --corpus case.py/deeper.db", 3, "case.py"),
    Bad("run --corpus /proc/fuzzcompile.db --budget 1c", 3, "/proc/fuzzcompile.db"),
    Bad("run --corpus notes.txt --budget 1c", 3, "is not an SQLite database"),
    Bad("replay --corpus missing.db", 3, "missing.db"),
]
TOGETHER = [
    Bad("run --screen-only --full-only", 2, "not both"),
    Bad("run --from case.py --no-near-misses", 2, "--no-near-misses"),
    Bad("triage case.py --hf-config gpt2", 2, "not both"),
    Bad("triage case.py --device cuda --target cuda:sm_90", 2, "--target"),
    Bad("issue case.py --search", 2, "--search"),
    Bad("issue F1", 2, "F1"),
]  # fmt: skip
OUTPUTS = [
    Bad("triage case.py --junit /proc/x.xml", 2, "--junit"),
    Bad("triage case.py --sarif empty_folder", 2, "--sarif"),
    Bad("triage case.py --log no_folder/log.jsonl", 2, "--log"),
    Bad("bisect case.py --html no_folder/page.html", 2, "--html"),
    Bad("bisect case.py --dump-ledger case.py", 2, "--dump-ledger"),
    Bad("run --summary no_folder/s.json --budget 1c", 2, "--summary"),
    Bad("run --sarif no_folder/s.sarif --budget 1c", 2, "--sarif"),
    Bad("run --log no_folder/log.jsonl --budget 1c", 2, "--log"),
    Bad("run --drafts case.py --budget 1c", 2, "--drafts"),
    Bad("minimize case.py --out no_rights/repro.py", 2, "--out"),
    Bad("minimize case.py --others case.py", 2, "--others"),
    Bad("watch script.py --out case.py", 2, "--out"),
    Bad("replay --junit no_folder/x.xml --corpus good.db", 2, "--junit"),
    Bad("corpus export F1 case.py --corpus good.db", 2, "case.py"),
]
TABLE = [*FILES, *VALUES, *FINDINGS, *CORPORA, *TOGETHER, *OUTPUTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds all that the table names."""
    path = tmp_path_factory.mktemp("bad")
    texts = {
        "case.py": CASE,
        "script.py": "import torch\ntorch.compile(torch.relu)(torch.ones(3))\n",
        "syntax.py": "import torch\n\ndef make(:\n    return 1\n",
        "plain.py": "import torch\nprint(torch.ones(3))\n",
        "empty.py": "",
        "notes.txt": "What I did on my holidays. " * 300,
        "test_model.py": "import torch\n\ndef test_model():\n    assert torch.ones(3).sum() == 3\n",
    }
    for name, text in texts.items():
        (path / name).write_text(text, encoding="utf-8")
    (path / "binary.py").write_bytes(b"\x7fELF\x02\x01\x01\x00\xff\xfe\x00")
    (path / "nulls.py").write_bytes(b"x = 1\x00")
    (path / "latin1.py").write_bytes("# caf\xe9\nimport torch\n".encode("latin-1"))
    (path / "huge.py").write_bytes(b"# a comment\n" * 6_000_000)
    (path / "empty.ipynb").write_bytes(b"")
    os.mkfifo(path / "fifo.py")
    (path / "loop.py").symlink_to("loop.py")
    (path / "dangling.py").symlink_to("nowhere.py")
    (path / "empty_folder").mkdir()
    (path / "no_rights").symlink_to("/proc")
    _corpora(path)
    return path


def _corpora(path: Path) -> None:
    """One that is good, and what must not be taken for one."""
    assert run(f"corpus import {shlex.quote(str(EXPORT))} --corpus good.db", path).returncode == 0
    content = (path / "good.db").read_bytes()
    (path / "half.db").write_bytes(content[: len(content) // 2])
    (path / "newer.db").write_bytes(content)
    with sqlite3.connect(path / "newer.db") as newer:
        newer.execute("update fuzzcompile_schema set version_num = '9999'")
    with sqlite3.connect(path / "theirs.db") as theirs:
        theirs.execute("create table runs (id integer)")


def run(arguments: str, folder: Path, *first: Path) -> subprocess.CompletedProcess[str]:
    """The command as a user types it, in that folder; modules are found in the folders ``first``."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FUZZCOMPILE_")}
    path = os.pathsep.join(filter(None, (*map(str, first), str(ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, "-m", "fuzzcompile", *shlex.split(arguments)],
        cwd=folder,
        env={**kept, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


def message(stderr: str) -> list[str]:
    """The lines of the message, without click's two on how the command is used, and what was waited for."""
    lines = [line for line in stderr.splitlines() if line.strip()]
    if lines and lines[0].startswith("Usage:"):
        lines = lines[next(place for place, line in enumerate(lines) if line.startswith("Error:")) :]
    return [line for line in lines if not line.rstrip().endswith("...")]


@pytest.mark.parametrize("bad", TABLE, ids=[bad.arguments for bad in TABLE])
def test_a_bad_input_costs_one_message(bad: Bad, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELLING)
    done = run(bad.arguments, folder, tmp_path)
    said = message(done.stderr)
    assert done.returncode == bad.status, done.stderr
    assert bad.says in " ".join(said)
    assert len(said) <= 2 and "Traceback" not in done.stderr and "Internal error" not in done.stderr, done.stderr
    assert done.stdout == ""
    assert bad.torch or (tmp_path / "imported").read_text() == "False"


def test_nothing_of_it_is_left(folder: Path) -> None:
    """The commands above wrote nothing where nothing could come of them."""
    assert not [path for path in folder.rglob("*") if path.name.endswith(".part")]
    assert not list((folder / "empty_folder").iterdir())
