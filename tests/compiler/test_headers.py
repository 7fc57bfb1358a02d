"""Workers share precompiled headers, and never a half-written one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch._inductor.codecache as codecache

from fuzzcompile.compiler.kernel_cache import share_headers, share_kernel_cache


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """Become the worker of that name, with a folder of its own for headers; all have one kernel cache."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))

    def become(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        monkeypatch.setattr(codecache, "_HEADER_DIR", str(folder))
        return folder

    return become


@pytest.mark.parametrize("header", ["a.h.gch", "a.h.pch"])
def test_a_header_is_precompiled_by_one_worker_and_used_by_the_next(worker, header):
    (worker("first") / header).write_text("precompiled")
    share_headers()
    second = worker("second")
    share_headers()
    assert (second / header).read_text() == "precompiled"
    assert (second / header).resolve().parent.name == "precompiled_headers"


@pytest.mark.parametrize("compiler, added", [("clang++", True), ("clang++-19", True), ("g++", False)])
def test_clang_keeps_templates_in_headers_beside_what_the_user_asks(compiler, added, tmp_path, monkeypatch):
    path = tmp_path / compiler
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    monkeypatch.setenv("CXX", str(path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "# +-w")
    variables = share_kernel_cache()
    options = variables.get("CCC_OVERRIDE_OPTIONS", "# +-w")
    assert options.startswith("# +-w") and ("-fpch-instantiate-templates" in options) == added
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", options)
    assert "CCC_OVERRIDE_OPTIONS" not in share_kernel_cache(), "a worker's own children do not add it again"


def test_half_a_header_stays_with_the_worker_that_wrote_it(worker):
    first = worker("first")
    (first / "a.h.gch").write_text("prec")
    (first / "a.h_CxxBuild").mkdir()
    share_headers()
    second = worker("second")
    share_headers()
    assert not list(second.iterdir())


def test_a_full_disk_costs_only_time(worker, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    (worker("first") / "a.h.gch").write_text("precompiled")
    monkeypatch.setattr("shutil.copyfile", refuse)
    share_headers()
    second = worker("second")
    share_headers()
    assert not list(second.iterdir())


def test_a_header_that_plain_torch_finished_is_used_with_an_empty_kernel_cache(worker, tmp_path, monkeypatch):
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "a.h.gch").write_text("precompiled")
    monkeypatch.setenv("FUZZCOMPILE_HEADERS", str(plain))
    first = worker("first")
    share_headers()
    assert (first / "a.h.gch").resolve() == (plain / "a.h.gch").resolve()


def test_a_link_to_a_header_of_a_deleted_cache_is_replaced(worker, tmp_path):
    (worker("first") / "a.h.gch").write_text("precompiled")
    share_headers()
    second = worker("second")
    (second / "a.h.gch").symlink_to(tmp_path / "deleted" / "a.h.gch")
    share_headers()
    assert (second / "a.h.gch").read_text() == "precompiled"


def test_a_link_to_a_header_of_a_deleted_cache_goes_where_nothing_replaces_it(worker, tmp_path):
    first = worker("first")
    (first / "a.h.gch").symlink_to(tmp_path / "deleted" / "a.h.gch")
    share_headers()
    assert not list(first.iterdir())
