"""Files that nobody should have to fear: each costs its own answer, in one sentence, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from torch._inductor.runtime.cache_dir_utils import cache_dir

from fuzzcompile.front.cli.main import main

CASE = """
import torch

def make():
    return (lambda x: x * 2 + 1), (torch.ones(3),)
"""
SCRIPT = """
import torch

@torch.compile
def double(x):
    return x * 2 + 1

double(torch.ones(3))
"""
# A process that outlives the one that started it, and one that has thrown away what marks it as a worker's.
BACKGROUND = "import subprocess\nsubprocess.Popen(['sleep', '{seconds}'])\n"
HIDDEN = "import subprocess\nsubprocess.Popen(['sleep', '{seconds}'], env={{}}, start_new_session=True)\n"

# What stands before the case or the script: the exit status, and a part of the sentence.
ENDING = {
    "exits": ("import os\nos._exit(0)", 3, "exit status 0"),
    "kills_itself": ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", 3, "SIGKILL"),
    "aborts": ("import os\nos.abort()", 3, "SIGABRT"),
    "spins": ("while True: pass", 3, "raise --timeout"),
    "hangs_deaf": (
        "import signal, time\nfor n in (signal.SIGTERM, signal.SIGINT): signal.signal(n, signal.SIG_IGN)\n"
        "time.sleep(600)", 3, "raise --timeout",
    ),
    "allocates": ("kept = []\nwhile True: kept.append(bytearray(b'x' * 2**24))", 3, "--max-memory"),
    "closes_everything": ("import os\nos.closerange(0, 256)", 3, "closes files of its process"),
}  # fmt: skip
RAISING = {
    "raises": ("raise ValueError('broken\\nin two lines')", 2, "ValueError"),
    "sys_exits": ("import sys\nsys.exit(0)", 2, "exit"),
    "interrupts": ("raise KeyboardInterrupt", (2, 3), "KeyboardInterrupt"),
    "prompts": ("name = input('Name? ')", 2, "EOFError"),
    "needs_a_module": ("import no_such_module_anywhere", 2, "no_such_module_anywhere"),
    "recurses": ("def f(): f()\nf()", 2, "RecursionError"),
    "no_python": ("def make(:", 2, "Python"),
    "no_text": (b"\x7fELF\x02\x01\x01\x00\xff\xfe\x00", 2, "name a Python file"),
    "nulls": (b"x = 1\x00", 2, "Python"),
    "empty": (b"", 2, "make()"),
    "no_case": (b"import torch\nx = torch.ones(3)\n", 2, "make()"),
}  # fmt: skip
# What does no harm to the answer.
HARMLESS = {
    "deletes_itself": "import os\nos.unlink(__file__)",
    "prints": "import sys\nfor _ in range(100): sys.stdout.write('x' * 2**20)",
    "prints_below_python": "import os\nfor _ in range(100): os.write(1, b'x' * 2**20)",
    "closes_stdout": "import sys\nsys.stdout.close()",
    "closes_descriptor": "import os\nos.close(1)",
    "leaves_a_process": BACKGROUND,
    "leaves_a_hidden_process": HIDDEN,
    "forks": "import os, time\nif os.fork() == 0:\n    time.sleep({seconds})\n    os._exit(0)",
    "forks_and_goes_on": "import os\nos.fork()",
    "changes_folder": "import os, tempfile\nos.chdir('/')",
    "starts_a_thread": "import threading, time\nthreading.Thread(target=time.sleep, args=({seconds},)).start()",
    "handles_signals": "import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "changes_numbers": "import torch\ntorch.set_default_dtype(torch.float64); torch.set_num_threads(1)",
    "changes_the_path": "import sys\nsys.path.clear(); sys.argv.clear()",
}  # fmt: skip
# What costs a worker (seconds to start another) in a way that is shown already, or says what `test_commands.py` shows.
SLOW = ("spins", "no_case", "kills_itself", "aborts", "hangs_deaf", "allocates")
# Unusual seconds, by which a process of ours is told from any other.
SECONDS = 98765


@dataclass
class Outcome:
    """What one command over many files did."""

    status: int
    lines: dict[str, dict[str, Any]]
    order: list[str]
    stderr: str
    left: list[str] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)

    def sentence(self, name: str) -> str:
        """What was said of a file: exactly one line."""
        (line,) = [line for line in self.stderr.splitlines() if f"{name}.py" in line]
        return line


def sleepers() -> list[int]:
    """Processes that a hostile file has started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"sleep\0%d" % SECONDS in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


def triage(files: list[Path], folder: Path, *arguments: str) -> Outcome:
    temporary = folder / "tmp"
    temporary.mkdir()
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", cache_dir())  # a warm one
        patch.setenv("TMPDIR", str(temporary))
        patch.setattr(tempfile, "tempdir", None)
        patch.chdir(folder)
        with pytest.raises(SystemExit) as ending:
            main(["triage", *map(str, files), "--json", *arguments])
        left = sorted(path.name for path in temporary.iterdir())
    reports = [json.loads(line) for line in out.getvalue().splitlines()]
    return Outcome(
        int(ending.value.code or 0),
        {report["case"]: report for report in reports},
        [report["case"] for report in reports],
        err.getvalue(),
        left,
        sleepers(),
    )


def hostile(before: str | bytes, program: str) -> bytes:
    if isinstance(before, bytes):
        return before
    return (before.format(seconds=SECONDS) if "{seconds}" in before else before).encode() + program.encode()


def written(folder: Path, sources: dict[str, str | bytes], program: str) -> list[Path]:
    """The hostile files, with a good one after each third of them and at the end."""
    files = []
    for number, (name, before) in enumerate(sources.items()):
        files.append(folder / f"{name}.py")
        files[-1].write_bytes(hostile(before, program))
        if number % 3 == 2 or number == len(sources) - 1:
            files.append(folder / f"good{number}.py")
            files[-1].write_text(program)
    return files


def names(sources: Iterable[str]) -> list[Any]:
    """The parameters of a test over all of them."""
    return [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in sources]


def asked(request: pytest.FixtureRequest, sources: Iterable[str]) -> list[str]:
    """Those of the sources that a selected test looks at."""
    calls = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    named = {call.params.get("name") for call in calls}
    return [name for name in sources if name in named] or list(sources)


SHARED = [pytest.param(CASE, id="case"), pytest.param(SCRIPT, id="script", marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=SHARED)
def raising(request, tmp_path_factory) -> Outcome:
    folder = tmp_path_factory.mktemp("raising")
    sources = {name: RAISING[name][0] for name in asked(request, RAISING)}
    return triage(written(folder, sources, request.param), folder)


@pytest.fixture(scope="module", params=SHARED)
def ending(request, tmp_path_factory) -> Outcome:
    folder = tmp_path_factory.mktemp("ending")
    sources = {name: ENDING[name][0] for name in asked(request, ENDING)}
    limits = ("--timeout", "30", "--max-memory", "1.2", "--workers", "2")
    return triage(written(folder, sources, request.param), folder, *limits)


@pytest.fixture(scope="module", params=SHARED)
def harmless(request, tmp_path_factory) -> Outcome:
    folder = tmp_path_factory.mktemp("harmless")
    return triage(written(folder, dict(HARMLESS), request.param), folder)


def assert_nothing_is_left(outcome: Outcome) -> None:
    assert outcome.left == []
    assert outcome.processes == []
    assert "Traceback" not in outcome.stderr


def assert_the_good_are_judged(outcome: Outcome) -> None:
    good = [line for name, line in outcome.lines.items() if name.startswith("good")]
    assert good and {line["verdict"] for line in good} == {"equal"}


@pytest.mark.parametrize("name", names(RAISING))
def test_a_file_that_raises_costs_one_sentence(name, raising):
    _, _, says = RAISING[name]
    assert raising.lines[name]["verdict"] is None
    assert says in raising.sentence(name) and raising.sentence(name).rstrip().endswith(".")


@pytest.mark.parametrize("name", names(ENDING))
def test_a_file_that_ends_its_worker_costs_one_sentence(name, ending):
    _, _, says = ENDING[name]
    assert ending.lines[name]["verdict"] is None
    assert says in ending.sentence(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_a_file_that_only_misbehaves_is_judged(name, harmless):
    assert harmless.lines[name].get("verdict") == "equal", harmless.lines[name]


def test_what_follows_files_that_raise_is_judged(raising):
    assert raising.status in (2, 3)
    assert_nothing_is_left(raising)
    assert_the_good_are_judged(raising)


def test_what_follows_files_that_end_their_worker_is_judged(ending):
    assert ending.status == 3
    assert_nothing_is_left(ending)
    assert_the_good_are_judged(ending)


def test_what_follows_files_that_misbehave_is_judged(harmless):
    assert harmless.status == 0 and harmless.stderr == ""
    assert_nothing_is_left(harmless)
    assert_the_good_are_judged(harmless)
