"""Shared by all tests: one thread, one warm kernel cache, triage results made once."""

from __future__ import annotations

import functools
import gc
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from filelock import FileLock

from fuzzcompile.compiler.kernel_cache import share_linker
from fuzzcompile.compiler.torch_config import compile_in_process, drop_broken_kernels
from fuzzcompile.diagnosis.engine import triage
from fuzzcompile.model.contract import ReportJson
from fuzzcompile.programs.casefiles.case_module import load_case
from fuzzcompile.run.device import Numerics

# Of the files at the end of the suite, those that take long.
LONG = ("test_known_issues.py", "test_public_issues.py")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that no process waits for another at the end; without a GPU, cuda tests are skipped."""
    items.sort(key=lambda item: item.path.name not in LONG)
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("cuda"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(scope="session", autouse=True)
def fast_linker(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Kernels are linked as in a worker, also in processes that tests start."""
    os.environ.update(share_linker(tmp_path_factory.mktemp("linker")))


@pytest.fixture(scope="session", autouse=True)
def process_settings() -> None:
    """The settings that a worker process has.

    Scripts that tests start on their own get no pool of compile workers either: each would import torch anew. The
    environment counts as activated, so that what is printed to be typed calls the program by its name.
    """
    torch.set_num_threads(1)
    Numerics().apply()
    compile_in_process()
    os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of them would compile this package anew
    drop_broken_kernels()
    # As in a worker: scanning torch's own objects after each compile, none of them garbage, was a fifth of it.
    gc.freeze()
    gc.set_threshold(100_000, 50, 10)
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))


@pytest.fixture(scope="session")
def triaged(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], dict[str, Any]]:
    """Triage a case file on the CPU, once per file for all processes of a session: the report in its JSON form.

    Its keys are those that its types have.
    """
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared

    @functools.cache
    def report(path: Path) -> dict[str, Any]:
        kept = shared / f"triaged_{hashlib.sha256(str(path).encode()).hexdigest()[:16]}.json"
        with FileLock(f"{kept}.lock"):
            if not kept.exists():
                text = json.dumps(triage(load_case(path), torch.device("cpu")).to_json(), allow_nan=False)
                kept.write_text(text, encoding="utf-8")
        report = json.loads(kept.read_text(encoding="utf-8"))
        assert msgspec.convert(report, ReportJson) == report, "a key that no type of the contract has"
        return report

    return report


@pytest.fixture(scope="module")
def no_workarounds() -> Iterator[None]:
    """Triage looks for no workaround: a quarter of its compiles, for tests that read the culprit alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fuzzcompile.diagnosis.attributor.find_workaround", lambda *arguments: None)
        yield


@pytest.fixture
def write_case(tmp_path: Path) -> Callable[..., Path]:
    """Write a case file from source and return its path."""

    def write(source: str, name: str = "case.py") -> Path:
        path = tmp_path / name
        path.write_text(source, encoding="utf-8")
        return path

    return write
