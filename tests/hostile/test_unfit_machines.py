"""Machines that are unfit, for real: a disk that fills, rights that lack, a lock that stays, no compiler that works.

Each answers with one sentence and exit status 3, and what was stored stays stored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fuzzcompile.corpus.store import Store
from fuzzcompile.run.subprocesses import find_toolchain_fault

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
EXPORT = next((ROOT / "corpus").glob("torch-*/fmin-stride"))
# Needs a kernel of its own, so that the C++ compiler runs where no cache is warm.
CASE = "import torch\n\ndef make():\n    return (lambda x: torch.relu(x * 7.125) + 1), (torch.ones(3, 41),)\n"
LACKING_COMPILER = ("uname", "sh")
BROKEN = """#!/bin/sh
test "$1" = --version && echo 'g++ 1.0' && exit 0
echo 'g++: fatal error: cannot execute cc1plus' >&2
exit 1
"""
# A process without these obeys the rights of files, as every user but root does.
POWERLESS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
LOCK = (
    "import sqlite3, sys, time; held = sqlite3.connect(sys.argv[1], isolation_level=None);"
    "held.execute('begin immediate'); print('held', flush=True); time.sleep(float(sys.argv[2]))"
)
Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A real command in a folder that holds ``case.py``, with cold caches and no settings from outside."""
    (tmp_path / "case.py").write_text(CASE, encoding="utf-8")

    def command(*arguments: str, before: tuple[str, ...] = (), **variables: str) -> subprocess.CompletedProcess[str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FUZZCOMPILE_", "CXX"))}
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        return subprocess.run(
            [*before, sys.executable, "-m", "fuzzcompile", *arguments],
            cwd=tmp_path,
            env={**kept, "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "kernels"), "PYTHONPATH": path, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    return command


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.fixture
def powerless() -> tuple[str, ...]:
    """The beginning of a command that runs without the power to go past the rights of files."""
    if os.geteuid():
        return ()
    if shutil.which("setpriv") is None or subprocess.run([*POWERLESS, "true"], capture_output=True).returncode:
        pytest.skip("root cannot give up its power over files here: no setpriv")
    return POWERLESS


@pytest.fixture
def locked_folder(tmp_path: Path) -> Iterator[Path]:
    """A folder into which its owner may not write."""
    folder = tmp_path / "locked"
    folder.mkdir()
    folder.chmod(0o500)
    yield folder
    folder.chmod(0o700)


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What stands on stderr beside progress."""
    return [line for line in done.stderr.splitlines() if not line.endswith("...")]


def assert_unfit(done: subprocess.CompletedProcess[str], *says: str) -> None:
    """One sentence on stderr beside progress, exit status 3, no verdict."""
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Traceback" not in done.stderr and "Internal error" not in done.stderr, done.stderr
    assert "BUG" not in done.stdout
    sentences = [line for line in said(done) if line.startswith("fuzzcompile:")]
    assert len(sentences) == 1, done.stderr
    for part in says:
        assert part in sentences[0]


def path_with(folder: Path, compiler: str | None) -> str:
    """A PATH with little more than Python, and this C++ compiler if any."""
    folder.mkdir()
    for name in LACKING_COMPILER:
        (folder / name).symlink_to(str(shutil.which(name)))
    if compiler is not None:
        (folder / "g++").write_text(compiler, encoding="utf-8")
        (folder / "g++").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize("command", [("triage", "case.py"), ("run", "--budget", "5m", "--device", "cpu")])
@pytest.mark.parametrize(("compiler", "says"), [(None, "install g++"), (BROKEN, "cannot execute cc1plus")])
def test_without_a_compiler_that_works_nothing_is_called_a_bug(command, compiler, says, run: Run, tmp_path: Path):
    assert_unfit(run(*command, PATH=path_with(tmp_path / "bin", compiler)), says)


@pytest.mark.parametrize("variable", ["TMPDIR", "TORCHINDUCTOR_CACHE_DIR"])
def test_no_room_for_kernels_is_no_bug(variable: str, run: Run, small_disk: Path):
    with contextlib.suppress(OSError):
        (small_disk / "full").write_bytes(b" " * 1_900_000)
    assert_unfit(run("triage", "case.py", **{variable: str(small_disk)}), "make room")


def test_kernels_that_may_not_be_written(run: Run, powerless, locked_folder: Path):
    done = run("triage", "case.py", before=powerless, TORCHINDUCTOR_CACHE_DIR=str(locked_folder / "kernels"))
    assert_unfit(done, str(locked_folder), "TORCHINDUCTOR_CACHE_DIR")


@pytest.mark.parametrize("home", ["/nonexistent", "locked"])
def test_a_home_without_rights_costs_nothing(home: str, run: Run, powerless, locked_folder: Path):
    done = run("triage", "case.py", before=powerless, HOME=home if home[0] == "/" else str(locked_folder))
    assert (done.returncode, said(done)) == (0, [])


def test_a_missing_folder_for_temporary_files_costs_nothing(run: Run, tmp_path: Path):
    assert run("triage", "case.py", TMPDIR=str(tmp_path / "missing")).returncode == 0


def test_a_corpus_in_a_folder_without_rights(run: Run, powerless, locked_folder: Path):
    corpus = str(locked_folder / "deeper" / "c.db")
    assert_unfit(run("run", "--budget", "5m", "--corpus", corpus, before=powerless), corpus, "--corpus")


def test_a_corpus_without_rights_can_be_read_by_nobody_and_says_so(run: Run, powerless, tmp_path: Path):
    Store.open(tmp_path / "c.db").close()
    (tmp_path / "c.db").chmod(0)
    assert_unfit(run("corpus", "list", "--corpus", "c.db", before=powerless), "c.db", "--corpus")


def test_a_campaign_whose_disk_is_full_stops_at_once_and_loses_nothing(run: Run, small_disk: Path):
    corpus = small_disk / "c.db"
    assert run("corpus", "import", str(EXPORT), "--corpus", str(corpus)).returncode == 0
    with contextlib.suppress(OSError), (small_disk / "full").open("wb", buffering=0) as full:
        while full.write(b" " * 512):
            pass
    done = run("run", "--budget", "5m", "--corpus", str(corpus))
    assert_unfit(done, "make room", str(corpus))
    (small_disk / "full").unlink()
    with Store.open(corpus, create=False) as store:
        assert store.integrity() == "ok"
        assert [finding.public_id for finding in store.findings()] == ["F1"]


@pytest.mark.parametrize("option", ["--junit", "--sarif"])
def test_an_output_for_which_there_is_no_room_leaves_no_half_file(option: str, run: Run, small_disk: Path):
    with contextlib.suppress(OSError), (small_disk / "full").open("wb", buffering=0) as full:
        while full.write(b" " * 512):
            pass
    done = run("triage", "case.py", option, str(small_disk / "out"))
    assert_unfit(done, option, "make room")
    assert [path.name for path in small_disk.iterdir()] == ["full"]
    assert "equal" in done.stdout  # the answer is not lost with the file


@contextlib.contextmanager
def lock(corpus: Path, seconds: float) -> Iterator[None]:
    """Another process holds the corpus's write lock for so long."""
    with subprocess.Popen([sys.executable, "-c", LOCK, str(corpus), str(seconds)], stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        yield
        holder.kill()


def test_a_short_lock_is_waited_for_and_a_long_one_is_named(run: Run, tmp_path: Path):
    corpus = tmp_path / "c.db"
    assert run("corpus", "import", str(EXPORT), "--corpus", str(corpus)).returncode == 0
    with lock(corpus, 12):
        done = run("mark", "F1", "invalid", "--corpus", str(corpus))
    assert done.returncode == 0 and "waiting" in done.stderr
    with lock(corpus, 100):
        assert run("corpus", "list", "--corpus", str(corpus)).returncode == 0, "reading needs no lock"
        assert_unfit(run("mark", "F1", "open", "--corpus", str(corpus)), "locked by another process")
    with sqlite3.connect(corpus) as kept:
        assert kept.execute("select status from findings").fetchall() == [("invalid",)]


def test_this_machine_has_a_compiler_that_works():
    assert find_toolchain_fault() is None
