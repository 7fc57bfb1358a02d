"""pip, run for another environment: what it installs, which releases it knows, what it says when it cannot."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.version import InvalidVersion, Version

from fuzzcompile.model.errors import EnvironmentUnfit
from fuzzcompile.run.alone import clean

_QUIET = {"PIP_DISABLE_PIP_VERSION_CHECK": "1"}
_STDERR = 2
_KNOWN = re.compile(r"from versions: (.*)\)")


class NotFound(EnvironmentUnfit):
    """pip finds no such version."""


def install(python: Path, requirements: Sequence[str], options: Sequence[str], folder: Path) -> None:
    """Install into the environment of ``python``; progress goes to stderr, temporary files to ``folder``.

    Raises:
        NotFound: there is no such version for this Python.
        EnvironmentUnfit: pip failed otherwise; one sentence says why.
    """
    done = subprocess.run(
        # What is installed here is the cache: pip's own would hold the same gigabytes again.
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-cache-dir", *options, *requirements],
        env=clean(_QUIET | {"TMPDIR": str(folder)}),
        stdin=subprocess.DEVNULL,
        stdout=_STDERR,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if done.returncode:
        raise _explained(requirements[0], done.stderr)


def versions(options: Sequence[str] = ()) -> list[Version]:
    """The versions of torch that pip knows for this Python, the oldest first.

    Raises:
        EnvironmentUnfit: pip finds none, or is not there.
    """
    done = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", *options, "torch"],
        env=clean(_QUIET),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
    if listed is None:
        raise EnvironmentUnfit(f"pip lists no versions of torch: {_reason(done.stderr)}.")
    return sorted(_parsed(listed[1]))


def _explained(requirement: str, said: str) -> EnvironmentUnfit:
    python = ".".join(map(str, sys.version_info[:2]))
    if "No matching distribution found" not in said:
        return EnvironmentUnfit(f"pip cannot install {requirement}: {_reason(said)}.")
    listed = _KNOWN.search(said)
    known = sorted(_parsed(listed[1])) if listed is not None else []
    if not known:
        return NotFound(f"pip finds no torch for Python {python}: check the network and pip's index.")
    finals = [version.public for version in known if not version.is_prerelease] or [str(known[-1])]
    return NotFound(f"pip finds no {requirement} for Python {python}, only versions from {finals[0]} to {finals[-1]}.")


def _parsed(listed: str) -> list[Version]:
    parsed = []
    for text in listed.split(","):
        try:
            parsed.append(Version(text.strip()))
        except InvalidVersion:  # "none", and versions from before there was a standard
            continue
    return parsed


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it says nothing"])[-1].rstrip(".")[:300]
