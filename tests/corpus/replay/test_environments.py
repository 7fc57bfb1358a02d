"""Environments for other versions of torch: an index of stand-ins for it, and pip as it is, which takes its time."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from packaging.version import Version
from torch_stubs import interpreter, wheel

from fuzzcompile.corpus.replay import environments
from fuzzcompile.corpus.replay.environments import NoDisk, check, is_made, obtain
from fuzzcompile.model.errors import EnvironmentUnfit, UsageError

Say = Callable[[str], None]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    for version in ("1.0.0", "1.1.0", "1.1.0+cpu", "1.2.0.dev20260101+cpu", "1.2.0.dev20260101+gpu"):
        wheel(folder, version)
    wheel(folder, "0.9.0", "raise ImportError('libcudart.so: no such file')\n")
    return folder


@pytest.fixture(scope="module", autouse=True)
def only_that_index(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """pip sees no other index, and all environments of these tests are kept in one folder."""
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setenv("PIP_CONFIG_FILE", "/dev/null")
        patch.setenv("PIP_NO_INDEX", "1")
        patch.setenv("PIP_FIND_LINKS", str(index))
        patch.delenv("PIP_EXTRA_INDEX_URL", raising=False)
        patch.setenv("FUZZCOMPILE_CACHE", str(cache))
        yield cache


@pytest.fixture
def said() -> list[str]:
    return []


def test_an_environment_is_made_once(said: list[str]):
    torch = obtain("1.1", said.append)
    assert torch.version == "1.1.0+cpu" and torch.name == "1.1.0", "the CPU build, if there is one"
    assert is_made(Version("1.1.0")) and "GB free" in said[0]
    assert "numpy" in said[1], "what the index does not have is said"
    assert not (torch.python.parents[1] / "tmp").exists()
    said.clear()
    assert obtain("1.1.0", said.append) == torch and not said


@pytest.mark.slow
def test_the_default_build_stands_in_and_a_broken_environment_is_made_anew(said: list[str]):
    torch = obtain("1.0.0", said.append)
    assert torch.version == "1.0.0" and "1.0.0+cpu" in said[1] and "default build" in said[1]
    shutil.rmtree(next(torch.python.parents[1].glob("lib/*/site-packages/torch")))
    said.clear()
    assert obtain("1.0.0", said.append).version == "1.0.0"
    assert "broken" in said[0] and "anew" in said[0]


@pytest.mark.slow
def test_half_an_environment_does_not_count(only_that_index: Path, said: list[str]):
    folder = obtain("1.1.0", said.append).python.parents[1]
    (folder / "fuzzcompile.json").unlink()
    assert not is_made(Version("1.1.0"))
    obtain("1.1.0", said.append)
    assert is_made(Version("1.1.0"))


@pytest.mark.slow
def test_a_torch_that_cannot_be_imported_leaves_nothing_behind(only_that_index: Path, said: list[str]):
    with pytest.raises(EnvironmentUnfit, match=r"no torch that can be imported.*libcudart"):
        obtain("0.9.0", said.append)
    assert not list(only_that_index.glob("environments/torch-0.9*"))


@pytest.mark.slow
def test_a_version_that_is_not_there_is_one_sentence(said: list[str], monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(EnvironmentUnfit, match=r"pip finds no torch==9\.9\.9 .*from 0\.9\.0 to 1\.1\.0\."):
        obtain("9.9.9", said.append)
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")
    with pytest.raises(EnvironmentUnfit, match="check the network"):
        obtain("9.9.9", said.append)
    with pytest.raises(EnvironmentUnfit, match="lists no versions of torch"):
        obtain("nightly", said.append)


@pytest.mark.slow
def test_the_newest_nightly_is_taken_in_its_cpu_build(said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path):
    assert obtain("nightly", said.append).version == "1.2.0.dev20260101+cpu"
    wheel(tmp_path, "1.1.0")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(EnvironmentUnfit, match=r"no nightly torch, only 1\.1\.0: set FUZZCOMPILE_NIGHTLY_INDEX"):
        obtain("nightly", said.append)


def test_the_disk_is_checked_first(said: list[str], monkeypatch: pytest.MonkeyPatch, only_that_index: Path):
    monkeypatch.setattr(environments, "free_bytes", lambda: 10**9)
    with pytest.raises(NoDisk, match=r"needs 2 GB .* and 1\.0 GB are free.*FUZZCOMPILE_CACHE"):
        obtain("1.3.0", said.append)
    assert not said and not list(only_that_index.glob("environments/torch-1.3*"))


@pytest.mark.slow
def test_the_default_build_needs_more_room(said: list[str], monkeypatch: pytest.MonkeyPatch, only_that_index: Path):
    monkeypatch.setattr(environments, "free_bytes", lambda: 5 * 10**9)
    with pytest.raises(NoDisk, match=r"needs 8 GB .* and 5\.0 GB are free"):
        obtain("1.3.0", said.append)
    assert not list(only_that_index.glob("environments/torch-1.3*"))


def test_a_folder_that_cannot_be_written_is_one_sentence(said: list[str], monkeypatch, tmp_path: Path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FUZZCOMPILE_CACHE", str(tmp_path / "file"))
    with pytest.raises(EnvironmentUnfit, match="set FUZZCOMPILE_CACHE"):
        obtain("1.1.0", said.append)


def test_two_processes_do_not_make_one_environment_at_once(said: list[str], only_that_index: Path):
    folder = obtain("1.1.0", said.append).python.parents[1]
    waits, held = threading.Event(), threading.Event()

    def hold() -> None:
        with FileLock(folder.with_name(f".{folder.name}.lock")):
            held.set()
            waits.wait(20)

    def say(text: str) -> None:
        said.append(text)
        waits.set()

    said.clear()
    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(20) and obtain("1.1.0", say).name == "1.1.0"
    holder.join()
    assert len(said) == 1 and "Waiting" in said[0]


def test_paths_name_environments_or_interpreters(said: list[str], tmp_path: Path):
    folder = interpreter(tmp_path / "environment", "1.5")
    assert obtain(str(folder), said.append).version == "1.5"
    assert obtain(str(folder / "bin" / "python"), said.append).version == "1.5"
    with pytest.raises(EnvironmentUnfit, match="There is no Python at"):
        obtain(str(tmp_path / "nowhere"), said.append)
    broken = interpreter(tmp_path / "broken", "1.5", "raise ImportError('no libtorch')\n")
    with pytest.raises(EnvironmentUnfit, match=r"no torch that can be imported \(ImportError: no libtorch\)"):
        obtain(str(broken), said.append)
    (folder / "bin" / "python").write_text("no program")
    with pytest.raises(EnvironmentUnfit, match="does not run"):
        obtain(str(folder), said.append)


@pytest.mark.parametrize("asked", ["newest", "", "2.x"])
def test_what_is_neither_a_version_nor_a_path_is_refused(asked: str):
    with pytest.raises(UsageError, match="--torch"):
        check(asked)
