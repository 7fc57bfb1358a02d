"""``fuzzcompile minimize`` as a process: what Ctrl-C leaves, and what becomes of candidates that fail otherwise."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

BURIED = Path(__file__).parents[2].parent / "bench" / "buried"
CASE = BURIED / "issue_195320_two_layers.py"


def minimize(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fuzzcompile", "minimize", str(CASE), "--out", "small.py", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def cost_in(said: str) -> int:
    """Compiles and screens that a search says it took."""
    found = re.search(r"(\d+) compiles and screens", said)
    assert found is not None, said
    return int(found[1])


@pytest.mark.slow
def test_an_interrupt_writes_the_best_so_far_at_once_and_resuming_goes_on(tmp_path):
    process = minimize(tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if "head" in line or "tail" in line:
            break
    time.sleep(2)  # while a candidate is being compiled
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Interrupted after" in said and "--resume" in said
    kept = (tmp_path / "small.py").read_text()
    assert ast.parse(kept) and "VALUES" not in kept
    assert (tmp_path / "small.py.state").exists()

    again = minimize(tmp_path, "--resume")
    done, _ = again.communicate(timeout=300)
    assert again.returncode == 0 and "Confirmed" in done
    assert cost_in(done) > cost_in(said)
    assert not (tmp_path / "small.py.state").exists()
