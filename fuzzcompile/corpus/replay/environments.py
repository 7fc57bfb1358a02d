"""Environments with other versions of torch: made once with pip, and kept in the user's cache folder.

``FUZZCOMPILE_CACHE`` names another folder. An environment counts only once its marker is written, which is the last
thing that making it does; whatever stands there without one, or does not import its torch any more, is made anew.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout
from packaging.version import InvalidVersion, Version
from platformdirs import user_cache_path

from fuzzcompile.corpus.replay.replay_history import public
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError
from fuzzcompile.run.subprocesses import capture_output

# pip, run for another environment: what it installs, which releases it knows, what it says when it cannot.

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
    # What is installed here is the cache: pip's own would hold the same gigabytes again.
    command: list[str | Path] = [sys.executable, "-m", "pip"]
    command += ["--python", python, "install", "--no-cache-dir", *options, *requirements]
    done = capture_output(command, environment=_QUIET | {"TMPDIR": str(folder)}, stdout=_STDERR)
    if done.returncode:
        raise _explain_pip_error(requirements[0], done.stderr)


def versions(options: Sequence[str] = ()) -> list[Version]:
    """The versions of torch that pip knows for this Python, the oldest first.

    Raises:
        EnvironmentUnfit: pip finds none, or is not there.
    """
    done = capture_output([sys.executable, "-m", "pip", "index", "versions", *options, "torch"], environment=_QUIET)
    listed = re.search(r"^Available versions: (.*)$", done.stdout, re.M)
    if listed is None:
        raise EnvironmentUnfit(f"pip lists no versions of torch: {_reason(done.stderr)}.")
    return sorted(_parsed(listed[1]))


def _explain_pip_error(requirement: str, said: str) -> EnvironmentUnfit:
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


def torch_at_hand() -> Torch:
    """The torch of this environment.

    Raises:
        EnvironmentUnfit: it cannot be imported.
    """
    return find_torch(Path(sys.executable))


def find_torch(python: Path) -> Torch:
    """The torch of an interpreter.

    Raises:
        EnvironmentUnfit: it does not run, or has no torch that can be imported; one sentence says why.
    """
    with tempfile.TemporaryDirectory(prefix="fuzzcompile-") as folder:
        try:
            done = capture_output([python, "-c", _ASK], folder=Path(folder), seconds=_SECONDS)
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


@dataclass(frozen=True)
class Release:
    """A requirement for pip: a version, and options that say where it may come from."""

    version: Version
    options: tuple[str, ...] = ()

    @property
    def builds(self) -> list[tuple[str, int]]:
        """What to install, the first that is there, and the gigabytes that it takes.

        The CPU build comes first, as it is small; the default build also runs where there is no GPU.
        """
        if self.version.local is not None:
            return [(f"torch=={self.version}", CPU_GB if self.version.local == "cpu" else DEFAULT_GB)]
        return [(f"torch=={self.version}+cpu", CPU_GB), (f"torch=={self.version}", DEFAULT_GB)]


def check(asked: str) -> None:
    """Check the form of what ``--torch`` asks for.

    Raises:
        UsageError: it is neither a version nor ``nightly`` nor a path.
    """
    if asked != _NIGHTLY and _version(asked) is None and not _is_path(asked):
        raise UsageError(f"--torch {asked}: write a version such as 2.13.0, nightly, or the path of an environment.")


def obtain(asked: str, say: Say) -> Torch:
    """The torch that ``--torch`` asks for: of a path, or of an environment that is made if need be.

    Raises:
        EnvironmentUnfit: it cannot be had; one sentence says why.
    """
    check(asked)
    version = _version(asked)
    if asked == _NIGHTLY:
        return _made(_newest_nightly(), say)
    return _made(Release(version), say) if version is not None else _of_path(Path(asked).expanduser())


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


def _is_path(asked: str) -> bool:
    return os.sep in asked or asked.startswith(("~", ".")) or (asked != "" and Path(asked).exists())


def _of_path(path: Path) -> Torch:
    python = path / "bin" / "python" if path.is_dir() else path
    if not python.exists():
        raise EnvironmentUnfit(f"There is no Python at {path}: give the folder of an environment, or its executable.")
    return find_torch(python.absolute())


def _newest_nightly() -> Release:
    index = os.environ.get(NIGHTLY_INDEX)
    options = ("--pre", *(("--index-url", index) if index else ()))
    known = versions(options)
    if not known[-1].is_prerelease:
        raise EnvironmentUnfit(
            f"pip finds no nightly torch, only {known[-1]}: set {NIGHTLY_INDEX} to an index that has them."
        )
    builds = [version for version in known if version.public == known[-1].public]
    return Release(next((version for version in builds if version.local == "cpu"), known[-1]), options)


def _folder(version: Version) -> Path:
    padded = ".".join(map(str, (*version.release, 0, 0)[: max(3, len(version.release))]))
    name = padded + str(version).removeprefix(version.base_version)
    return cache() / f"torch-{name}-py{sys.version_info.major}.{sys.version_info.minor}"


def _made(release: Release, say: Say) -> Torch:
    """The environment of a release, made unless it stands."""
    folder = _folder(release.version)
    with _locked(folder, say), _explained(folder):
        torch = _standing(folder, say)
        if torch is not None:
            return torch
        if release.version.is_devrelease:
            _remove_unused_nightlies(say)
        try:
            return _make(release, folder, say)
        except BaseException:  # half an environment is gigabytes that nothing will use, after Ctrl-C too
            shutil.rmtree(folder, ignore_errors=True)
            raise


def _standing(folder: Path, say: Say) -> Torch | None:
    """The torch of a finished environment; None if there is none, and what is left of one has been removed."""
    marker = folder / _MARKER
    try:
        if marker.is_file():
            torch = find_torch(_python(folder))
            marker.touch()
            return torch
    except EnvironmentUnfit as error:
        say(f"The environment {folder.name} is broken and will be made anew: {error}")
    shutil.rmtree(folder, ignore_errors=True)
    return None


def _make(release: Release, folder: Path, say: Say) -> Torch:
    temporary = folder / "tmp"
    for number, (requirement, gigabytes) in enumerate(release.builds, 1):
        _check_disk(requirement, gigabytes)
        if number == 1:
            say(f"Making an environment with torch {release.version} in {folder} ({free_bytes() / _GB:.0f} GB free).")
            _run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
            temporary.mkdir()
        try:
            install(_python(folder), [requirement], release.options, temporary)
            break
        except NotFound as error:
            if number == len(release.builds):
                raise
            say(f"{error} Next: the default build, which takes up to {DEFAULT_GB} GB.")
    _add_extras(release, folder, temporary, say)
    shutil.rmtree(temporary, ignore_errors=True)
    torch = find_torch(_python(folder))
    (folder / _MARKER).write_text(json.dumps({"torch": torch.version, "torch_git": torch.git}), encoding="utf-8")
    return torch


def _add_extras(release: Release, folder: Path, temporary: Path, say: Say) -> None:
    """What some releases need and do not depend on; builds before 2.3 do not load NumPy 2."""
    extras = ["numpy<2" if release.version < Version("2.3") else "numpy", "setuptools"]
    try:
        install(_python(folder), extras, (), temporary)
    except EnvironmentUnfit as error:
        say(f"torch {release.version} is there without {' and '.join(extras)}, which some scripts need: {error}")


def _check_disk(requirement: str, gigabytes: int) -> None:
    free = free_bytes()
    if free < gigabytes * _GB:
        raise NoDisk(
            f"{requirement} needs {gigabytes} GB in {cache()}, and {free / _GB:.1f} GB are free: "
            f"make room, or set {VARIABLE} to a folder on another disk."
        )


def _run(command: Sequence[str]) -> None:
    done = capture_output(command)
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).rpartition("\n")[2]
        raise EnvironmentUnfit(f"`{' '.join(map(str, command[1:3]))}` failed: {said or 'it says nothing'}.")


@contextmanager
def _locked(folder: Path, say: Say) -> Iterator[None]:
    """No other process makes or removes this environment meanwhile."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f".{folder.name}.lock"))
        try:
            lock.acquire(timeout=0)
        except Timeout:
            say(f"Waiting for another process that makes {folder.name}.")
            lock.acquire()
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(folder, error) from error


def _unwritable(folder: Path, error: OSError) -> EnvironmentUnfit:
    return EnvironmentUnfit(
        f"{folder.parent} cannot be used ({error.strerror}): set {VARIABLE} to a folder that can be written."
    )


def _remove_unused_nightlies(say: Say) -> None:
    for marker in cache().glob(f"torch-*.dev*/{_MARKER}"):
        if time.time() - marker.stat().st_mtime > _UNUSED:
            say(f"Removing {marker.parent.name}, a nightly that was not used for a day.")
            shutil.rmtree(marker.parent, ignore_errors=True)


def _python(folder: Path) -> Path:
    return folder / "bin" / "python"
