"""Run a script by itself: in a clean process and folder, with a time limit.

``python -m fuzzcompile.programs.scripts.clean_process PLANT... SCRIPT`` runs one in this process, behind plants;
``--bisect SCRIPT`` lets torch's own bisector run it.
"""

from __future__ import annotations

import contextlib
import functools
import getpass
import re
import runpy
import socket
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from fuzzcompile.model.privacy import scrub
from fuzzcompile.model.versions import PACKAGE
from fuzzcompile.run.seats import run_in_seats
from fuzzcompile.run.subprocesses import CommandStopped, run_command

SCRIPT = "repro.py"


@dataclass(frozen=True)
class FinishedProcess:
    """A process that ended.

    ``status`` is its exit status (-1 if it was ended after its time), ``output`` what it printed, ``confirmed`` whether
    it is a reproducer that showed its bug, and ``files`` the text of the files asked for, as far as it wrote them.
    """

    status: int
    output: str
    confirmed: bool = False
    files: Mapping[str, str] = field(default_factory=dict)


# For a script that needs this fuzzcompile itself, wherever it was imported from.
OWN_PACKAGE: Final = {"PYTHONPATH": str(PACKAGE.parent)}


def run_alone(
    source: str,
    *,
    command: Sequence[str] = (),
    arguments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    timeout: float = 180,
    wanted: Sequence[str] = (),
    stop: threading.Event | None = None,
) -> FinishedProcess:
    """Run ``python COMMAND repro.py ARGUMENTS`` with ``source`` as repro.py, and end what it leaves behind.

    The ``environment`` is added to this process's own, of which the variables that steer Python are left out. After
    ``timeout`` seconds it is ended, or once ``stop`` is set. Files of its folder that are ``wanted`` come back as text.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        Path(folder, SCRIPT).write_text(source, encoding="utf-8")
        # A file, not a pipe: the compiler's own workers may outlive the script and hold a pipe open.
        with Path(folder, "output.txt").open("w+b") as out:
            typed, status = [sys.executable, *command, SCRIPT, *arguments], None
            with contextlib.suppress(CommandStopped):
                status = run_command(typed, folder, environment or {}, out, timeout, stop=stop)
            out.seek(0)
            output = out.read().decode(errors="replace")
        written = {name: Path(folder, name) for name in wanted if Path(folder, name).is_file()}
        kept = {name: path.read_text(encoding="utf-8", errors="replace") for name, path in written.items()}
    if status is None:
        why = (
            f"still running after {timeout:g} s" if stop is None or not stop.is_set() else "ended with another process"
        )
        return FinishedProcess(-1, f"{output}{why}\n", files=kept)
    return FinishedProcess(status, output, files=kept)


# Seconds in which the other processes end by themselves once one has failed.
_ENDING_SECONDS = 15.0


def run_together(
    source: str, count: int, *, command: Sequence[str] = (), environment: Mapping[str, str], timeout: float
) -> list[FinishedProcess]:
    """Run a script in so many processes, as ``torchrun`` does: one that fails ends the others."""
    stop = threading.Event()

    def run(seat: Mapping[str, str]) -> FinishedProcess:
        ended = run_alone(source, command=command, environment={**environment, **seat}, timeout=timeout, stop=stop)
        if ended.status:
            timer = threading.Timer(_ENDING_SECONDS, stop.set)
            timer.daemon = True
            timer.start()
        return ended

    return run_in_seats(count, run)


@functools.cache
def collect_environment() -> str:
    """The output of ``python -m torch.utils.collect_env``, without paths, hosts and users; empty if it fails.

    It takes seconds, so that it runs once in a process.
    """
    ran = run_alone("", command=("-W", "ignore", "-m", "torch.utils.collect_env"), timeout=60)
    if ran.status != 0:
        return ""
    text, user = scrub(ran.output), ""
    with contextlib.suppress(KeyError, OSError):  # a user without an entry, as in containers
        user = getpass.getuser()
    for name, stands in ((socket.gethostname(), "HOST"), (user, "USER")):
        text = re.sub(rf"\b{re.escape(name)}\b", stands, text) if len(name) > 3 else text
    return "\n".join(line.rstrip() for line in text.splitlines()).strip() + "\n"


def bisect_compiler(source: str, timeout: float) -> str | None:
    """The answer of ``torch._inductor.compiler_bisector`` on a reproducer; None where it gives none in time.

    It compiles the script some ten to fifty times, without torch's caches.
    """
    without_caches = {**OWN_PACKAGE, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    command = ("-W", "ignore", "-m", __name__, "--bisect")
    ran = run_alone(source, command=command, environment=without_caches, timeout=timeout)
    answer = re.search(r"^ANSWER (BisectionResult\(.*\))$", ran.output, re.MULTILINE)
    return None if answer is None or ran.status else answer[1]


def run_bisected(script: str) -> None:
    """Let torch's bisector run a script, whose exit status says whether a compile is right, and print its answer."""
    from fuzzcompile.compiler.torch_api import bisect, reset_compiler

    def works() -> bool:
        reset_compiler()
        try:
            _run_script(script)
        except SystemExit as end:
            return not end.code
        except Exception:  # of the script's own, as a status that is not 0
            return False
        return True

    print(f"\nANSWER {bisect(works)}")  # noqa: T201 - for `bisect_compiler`


def run_planted(*paths: str) -> None:
    """Execute plants as a worker does, once the compiler has registered its patterns; run the last as a script."""
    import torch

    from fuzzcompile.compiler.rule_catalogue import initialise_patterns
    from fuzzcompile.run.plants import run_plants

    *plants, script = paths
    initialise_patterns(torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu"))
    run_plants([Path(plant) for plant in plants])
    _run_script(script)


def _run_script(script: str) -> None:
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bisect"]:
        run_bisected(*sys.argv[2:])
    else:
        run_planted(*sys.argv[1:])
