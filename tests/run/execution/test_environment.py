"""What is said of the machine, and that nothing private is among it."""

from __future__ import annotations

import getpass
import json
import platform
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fuzzcompile.run import device
from fuzzcompile.run.device import describe_environment
from fuzzcompile.run.subprocesses import find_cxx_compiler

CPU = torch.device("cpu")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    device._describe_parts.cache_clear()
    yield
    device._describe_parts.cache_clear()


def test_the_facts_that_results_depend_on_are_there() -> None:
    facts = describe_environment(CPU)
    assert facts["torch"] == torch.__version__
    assert facts["torch_git"] == torch.version.git_version
    assert facts["device"] == "cpu"
    assert facts["python"] == platform.python_version()
    assert facts["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert facts["threads"] == torch.get_num_threads()
    assert {"cuda", "hip", "triton", "driver", "device_name", "device_capability", "cpu", "cxx"} <= set(facts)


def test_it_is_json() -> None:
    assert json.loads(json.dumps(describe_environment(CPU))) == describe_environment(CPU)


def test_it_names_no_user_host_or_folder() -> None:
    text = json.dumps(describe_environment(CPU))
    assert str(Path.home()) not in text
    assert "/" not in str(describe_environment(CPU)["cxx"])
    for private in (socket.gethostname(), getpass.getuser()):
        assert private not in [word for value in describe_environment(CPU).values() for word in str(value).split()]


def test_what_a_caller_does_to_it_stays_with_the_caller() -> None:
    describe_environment(CPU)["torch"] = "mine"
    assert describe_environment(CPU)["torch"] == torch.__version__


def test_it_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    first = describe_environment(CPU)
    monkeypatch.setattr(device, "capture_output", lambda *command, **options: pytest.fail("asked again"))
    assert describe_environment(CPU) == first


def test_a_machine_that_answers_nothing_is_described_with_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise OSError("no")

    monkeypatch.setattr(subprocess, "run", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", refuse)
    facts = describe_environment(CPU)
    assert facts["cxx"] is facts["cpu"] is facts["cpu_capability"] is None
    assert facts["torch"] == torch.__version__


def test_a_gpu_that_is_not_there_is_described_with_none() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    facts = describe_environment(torch.device("cuda", 0))
    assert facts["device"] == "cuda:0"
    assert facts["device_name"] is facts["device_capability"] is None


def test_the_compiler_is_the_one_that_cxx_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\necho 'my-c++ 42.0'\necho more\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    assert find_cxx_compiler() == compiler
    assert describe_environment(CPU)["cxx"] == "my-c++ 42.0"


def test_without_cxx_it_is_gxx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    if platform.system() != "Linux" or shutil.which("g++") is None:
        pytest.skip("no g++")
    assert find_cxx_compiler() == Path(str(shutil.which("g++")))


def test_no_compiler_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "missing"))
    assert find_cxx_compiler() is None
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_cxx_compiler() is None
    assert describe_environment(CPU)["cxx"] is None


@needs_cuda
@pytest.mark.cuda
def test_a_gpu_is_described() -> None:
    facts = describe_environment(torch.device("cuda", 0))
    assert facts["device_name"] == torch.cuda.get_device_name(0)
    assert facts["driver"] is not None or torch.version.hip
