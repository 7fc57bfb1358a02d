"""Workers keep their kernels where Inductor would keep them without a temporary folder of their own."""

from __future__ import annotations

import getpass

import pytest
from torch._inductor.runtime.cache_dir_utils import default_cache_dir

from fuzzcompile.compiler.kernel_cache import shared_kernel_cache

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"


@pytest.mark.parametrize("user", ["someone", "DOMAIN\\some:one", None])
def test_the_folder_is_torchs_own(monkeypatch, user: str | None):
    def name() -> str:
        if user is None:
            raise OSError("no such user")
        return user

    monkeypatch.setattr(getpass, "getuser", name)
    monkeypatch.delenv(VARIABLE, raising=False)
    assert shared_kernel_cache() == {VARIABLE: default_cache_dir()}


def test_a_folder_that_is_set_is_kept(monkeypatch):
    monkeypatch.setenv(VARIABLE, "/kept")
    assert shared_kernel_cache() == {VARIABLE: "/kept"}
