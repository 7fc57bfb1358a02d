"""``fuzzcompile.extend`` is all that a package of one's own imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from contributing import block

from fuzzcompile import extend


def test_each_name_is_there():
    assert extend.__all__ and all(getattr(extend, name) is not None for name in extend.__all__)
    with pytest.raises(AttributeError, match="no_such_point"):
        _ = extend.no_such_point  # type: ignore[attr-defined]


def test_a_package_elsewhere_adds_an_idiom_that_is_drawn_and_imports_nothing_else_of_fuzzcompile(tmp_path: Path):
    code = block("tests/fuzz/generation/new_idiom.py").code
    assert set(re.findall(r"^from (fuzzcompile\S*) import", code, re.MULTILINE)) == {"fuzzcompile.extend"}
    package = tmp_path / "their_idioms"
    package.mkdir()
    (package / "__init__.py").write_text(code)
    program = (
        "import sys, their_idioms; early = 'torch' in sys.modules\n"
        "from fuzzcompile.fuzz.generation.cases import draw_case_at\n"
        "from fuzzcompile.fuzz.generation.profile import Profile\n"
        "profile = Profile().steer({'sigmoid_attention': 10_000})\n"
        "print(early, any('sigmoid_attention' in draw_case_at(1, i, profile).spec.idioms for i in range(20)))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "False True\n"
