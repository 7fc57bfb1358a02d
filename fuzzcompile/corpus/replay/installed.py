"""A Python that has a torch: which one, asked of it in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from fuzzcompile.corpus.replay.versions import public
from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.alone import clean

_ASK = """
import json, torch
version = getattr(torch, "version", None)
print(json.dumps([str(torch.__version__), getattr(version, "git_version", None)]))
"""
_SECONDS = 180.0  # the first import of a torch that was just installed may be slow


@dataclass(frozen=True)
class Torch:
    """A torch that can run scripts: its interpreter, version (with its build) and commit."""

    python: Path
    version: str
    git: str | None = None

    @property
    def name(self) -> str:
        """What tables call it: the public version."""
        return public(self.version)


def torch_at_hand() -> Torch:
    """The torch of this environment.

    Raises:
        EnvironmentUnfit: it cannot be imported.
    """
    return torch_of(Path(sys.executable))


def torch_of(python: Path) -> Torch:
    """The torch of an interpreter.

    Raises:
        EnvironmentUnfit: it does not run, or has no torch that can be imported; one sentence says why.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        try:
            done = subprocess.run(
                [python, "-c", _ASK],
                cwd=folder,
                env=clean({}),
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                stdin=subprocess.DEVNULL,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise EnvironmentUnfit(
                f"{python} does not run as a Python interpreter ({type(error).__name__})."
            ) from error
    try:
        version, git = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError as error:
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise EnvironmentUnfit(f"{python} has no torch that can be imported ({reason}).") from error
    return Torch(python, version, git)
