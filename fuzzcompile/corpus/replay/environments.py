"""Environments with other versions of torch: made once with pip, and kept in the user's cache folder.

``FUZZCOMPILE_CACHE`` names another folder. An environment counts only once its marker is written, which is the last
thing that making it does; whatever stands there without one, or does not import its torch any more, is made anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE, CompletedProcess, TimeoutExpired

from filelock import FileLock, Timeout
from packaging.version import InvalidVersion, Version
from platformdirs import user_cache_path

from fuzzcompile.corpus.replay.replay_history import public
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.run.subprocesses import capture_output

# pip, run for another environment: what it installs, which releases it knows, what it says when it cannot.

_STDERR = 2


class NotFound(EnvironmentUnfit):
    """pip finds no such version."""


def _run_pip(*arguments: str | Path, stdout: int = PIPE, **variables: str) -> CompletedProcess[str]:
    environment = {"PIP_DISABLE_PIP_VERSION_CHECK": "1", **variables}
    return capture_output([sys.executable, "-m", "pip", *arguments], environment=environment, stdout=stdout)


def install(python: Path, requirements: Sequence[str], options: Sequence[str], folder: Path) -> None:
    """Install into the environment of ``python``; progress goes to stderr, temporary files to ``folder``.

    Raises:
        NotFound: there is no such version for this Python.
        EnvironmentUnfit: pip failed otherwise; one sentence says why.
    """
    # What is installed here is the cache: pip's own would hold the same gigabytes again.
    arguments: list[str | Path] = ["--python", python, "install", "--no-cache-dir", *options, *requirements]
    done = _run_pip(*arguments, stdout=_STDERR, TMPDIR=str(folder))
    if not done.returncode:
        return
    requirement, here = requirements[0], ".".join(map(str, sys.version_info[:2]))
    if "No matching distribution found" not in done.stderr:
        raise EnvironmentUnfit(f"pip cannot install {requirement}: {_reason(done.stderr)}.")
    known = _parse_versions(re.search(r"from versions: (.*)\)", done.stderr))
    if not known:
        raise NotFound(f"pip finds no torch for Python {here}: check the network and pip's index.")
    finals = [version.public for version in known if not version.is_prerelease] or [str(known[-1])]
    raise NotFound(f"pip finds no {requirement} for Python {here}, only versions from {finals[0]} to {finals[-1]}.")


def versions(options: Sequence[str] = ()) -> list[Version]:
    """The versions of torch that pip knows for this Python, the oldest first.

    Raises:
        EnvironmentUnfit: pip finds none, or is not there.
    """
    done = _run_pip("index", "versions", *options, "torch")
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
    if listed is None:
        raise EnvironmentUnfit(f"pip lists no versions of torch: {_reason(done.stderr)}.")
    return _parse_versions(listed)


def _parse_versions(listed: re.Match[str] | None) -> list[Version]:
    """Read the versions that pip lists; others are "none", and versions from before there was a standard."""
    texts = [] if listed is None else listed[1].split(",")
    return sorted(version for text in texts if (version := _version(text.strip())) is not None)


def _reason(said: str) -> str:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return (errors or lines or ["it says nothing"])[-1].rstrip(".")[:300]


# A Python that has a torch: which one, asked of it in a process of its own.

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
        """The name in tables: the public version."""
        return public(self.version)


def find_torch(python: Path) -> Torch:
    """The torch of an interpreter.

    Raises:
        EnvironmentUnfit: it does not run, or has no torch that can be imported; one sentence says why.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        try:
            done = capture_output([python, "-c", _ASK], folder=Path(folder), seconds=_SECONDS)
        except (OSError, TimeoutExpired) as error:
            why = type(error).__name__
            raise EnvironmentUnfit(f"{python} does not run as a Python interpreter ({why}).") from error
    try:
        version, git = json.loads(done.stdout.strip().rpartition("\n")[2])
    except ValueError as error:
        reason = done.stderr.strip().rpartition("\n")[2] or f"exit status {done.returncode}"
        raise EnvironmentUnfit(f"{python} has no torch that can be imported ({reason}).") from error
    return Torch(python, version, git)


VARIABLE, NIGHTLY_INDEX = "FUZZCOMPILE_CACHE", "FUZZCOMPILE_NIGHTLY_INDEX"
_NIGHTLY = "nightly"
_MARKER = "fuzzcompile.json"
_GB = 10**9
# Room for the environment and, while pip unpacks them, the wheels: a CPU build takes 1 GB and a wheel of 0.2, the
# CUDA builds of 2.11 and 2.15 take 5 and 3.
CPU_GB, DEFAULT_GB = 2, 8
_UNUSED = 24 * 3600.0  # seconds after which an earlier nightly is removed
Say = Callable[[str], None]


class NoDisk(EnvironmentUnfit):
    """There is not enough room for another environment."""


def check(asked: str) -> None:
    """Check the form of what ``--torch`` asks for."""
    is_path = os.sep in asked or asked.startswith(("~", ".")) or (asked != "" and Path(asked).exists())
    if asked != _NIGHTLY and _version(asked) is None and not is_path:
        raise UsageError(f"--torch {asked}: write a version such as 2.13.0, nightly, or the path of an environment.")


def obtain(asked: str, say: Say) -> Torch:
    """The torch that ``--torch`` asks for: of a path, or of an environment that is made if need be.

    Raises:
        EnvironmentUnfit: it cannot be had; one sentence says why.
    """
    check(asked)
    if asked == _NIGHTLY:
        index = os.environ.get(NIGHTLY_INDEX)
        options = ("--pre", *(("--index-url", index) if index else ()))
        known = versions(options)
        if not known[-1].is_prerelease:
            raise EnvironmentUnfit(
                f"pip finds no nightly torch, only {known[-1]}: set {NIGHTLY_INDEX} to an index that has them."
            )
        builds = [each for each in known if each.public == known[-1].public]
        newest = next((each for each in builds if each.local == "cpu"), known[-1])
        return _obtain_release(newest, options, say)
    if (version := _version(asked)) is not None:
        return _obtain_release(version, (), say)
    path = Path(asked).expanduser()
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        raise EnvironmentUnfit(f"There is no Python at {path}: give the folder of an environment, or its executable.")
    return find_torch(python.absolute())


def is_made(version: Version) -> bool:
    """Return whether the environment of a release stands already."""
    return (_folder(version) / _MARKER).is_file()


def cache() -> Path:
    """The folder that holds the environments."""
    chosen = os.environ.get(VARIABLE)
    return (Path(chosen).absolute() if chosen else user_cache_path("fuzzcompile")) / "environments"


def free_bytes() -> int:
    """The room left where environments are kept."""
    folder = cache()
    return shutil.disk_usage(next(path for path in (folder, *folder.parents) if path.exists())).free


def _version(asked: str) -> Version | None:
    try:
        return Version(asked)
    except InvalidVersion:
        return None


def _folder(version: Version) -> Path:
    padded = ".".join(map(str, (*version.release, 0, 0)[: max(3, len(version.release))]))
    name = padded + str(version).removeprefix(version.base_version)
    return cache() / f"torch-{name}-py{sys.version_info.major}.{sys.version_info.minor}"


def _obtain_release(version: Version, options: Sequence[str], say: Say) -> Torch:
    """Return the torch of the kept environment, or make one; pip's ``options`` say where it may come from."""
    folder = _folder(version)
    with _locked(folder, say):
        try:
            if (folder / _MARKER).is_file():
                torch = find_torch(folder / "bin" / "python")
                (folder / _MARKER).touch()
                return torch
        except EnvironmentUnfit as error:
            say(f"The environment {folder.name} is broken and will be made anew: {error}")
        shutil.rmtree(folder, ignore_errors=True)
        if version.is_devrelease:
            for marker in cache().glob(f"torch-*.dev*/{_MARKER}"):
                if time.time() - marker.stat().st_mtime > _UNUSED:
                    say(f"Removing {marker.parent.name}, a nightly that was not used for a day.")
                    shutil.rmtree(marker.parent, ignore_errors=True)
        try:
            return _make(version, options, folder, say)
        except BaseException:  # half an environment is gigabytes that nothing will use, after Ctrl-C too
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _make(version: Version, options: Sequence[str], folder: Path, say: Say) -> Torch:
    temporary, python = folder / "tmp", folder / "bin" / "python"
    # The first that is there: the CPU build is small, and the default build also runs where there is no GPU.
    builds = [(f"torch=={version}+cpu", CPU_GB), (f"torch=={version}", DEFAULT_GB)]
    if version.local is not None:
        builds = [(f"torch=={version}", CPU_GB if version.local == "cpu" else DEFAULT_GB)]
    for number, (requirement, gigabytes) in enumerate(builds, 1):
        free = free_bytes()
        if free < gigabytes * _GB:
            raise NoDisk(
                f"{requirement} needs {gigabytes} GB in {cache()}, and {free / _GB:.1f} GB are free: "
                f"make room, or set {VARIABLE} to a folder on another disk."
            )
        if number == 1:
            say(f"Making an environment with torch {version} in {folder} ({free / _GB:.0f} GB free).")
            done = capture_output([sys.executable, "-m", "venv", "--without-pip", folder])
            if done.returncode:
                said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
                raise EnvironmentUnfit(f"`-m venv` failed: {said or 'it says nothing'}.")
            temporary.mkdir()
        try:
            install(python, [requirement], options, temporary)
            break
        except NotFound as error:
            if number == len(builds):
                raise
            say(f"{error} Next: the default build, which takes up to {DEFAULT_GB} GB.")
    # What some releases need and do not depend on; builds before 2.3 do not load NumPy 2.
    extras = ["numpy<2" if version < Version("2.3") else "numpy", "setuptools"]
    try:
        install(python, extras, (), temporary)
    except EnvironmentUnfit as error:
        say(f"torch {version} is there without {' and '.join(extras)}, which some scripts need: {error}")
    shutil.rmtree(temporary, ignore_errors=True)
    torch = find_torch(python)
    (folder / _MARKER).write_text(json.dumps({"torch": torch.version, "torch_git": torch.git}), encoding="utf-8")
    return torch


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """No other process makes or removes this environment meanwhile; an error of the disk is explained."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"Waiting for another process that makes {folder.name}.")
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise EnvironmentUnfit(
            f"{folder.parent} cannot be used ({error.strerror}): set {VARIABLE} to a folder that can be written."
        ) from error
