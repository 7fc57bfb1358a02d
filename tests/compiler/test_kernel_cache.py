"""What a killed worker leaves in Inductor's kernel cache is deleted, however often the cache was looked through."""

from __future__ import annotations

import os
import time

import pytest

from fuzzcompile.compiler.torch_config import drop_broken_kernels


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    (tmp_path / "ab").mkdir()
    return tmp_path


def test_half_a_library_is_deleted_at_any_later_start(cache):
    assert drop_broken_kernels() == []
    (cache / "ab" / "cabc.main.so").write_bytes(b"\x7fELF")
    assert drop_broken_kernels() == ["cabc.main.so"]
    (cache / "ab" / "cabc.main.so").write_bytes(b"\x7fELF")
    assert drop_broken_kernels() == ["cabc.main.so"]


def test_a_library_that_is_being_written_is_left_until_it_is_given_up(cache):
    from torch.utils._filelock import FileLock

    library = cache / "ab" / "cabc.main.so"
    library.write_bytes(b"\x7fELF")
    (cache / "locks").mkdir()
    with FileLock(str(cache / "locks" / "cabc.lock")):
        assert drop_broken_kernels() == []
    assert drop_broken_kernels() == ["cabc.main.so"]


def test_what_was_old_when_the_cache_was_looked_through_is_not_opened_again(cache):
    library = cache / "ab" / "cabc.main.so"
    library.write_bytes(b"\x7fELF")
    drop_broken_kernels()
    library.write_bytes(b"\x7fELF")
    hours_ago = time.time() - 7200
    os.utime(library, (hours_ago, hours_ago))
    os.utime(library.parent, (hours_ago, hours_ago))
    assert drop_broken_kernels() == []
