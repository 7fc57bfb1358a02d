"""An installed wheel works from any folder: templates, migrations and facts about torch travel in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import fuzzcompile, sys
from pathlib import Path
from fuzzcompile.corpus.store import Store
from fuzzcompile.model.facts import find_facts, list_known_versions
from fuzzcompile.fuzz.generation.cases import draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile
assert Path(fuzzcompile.__file__).is_relative_to(sys.argv[1]), fuzzcompile.__file__
versions = list_known_versions()
assert all(find_facts("%d.%d" % version).exact for version in versions) and len(versions) > 2
assert "def make():" in draw_case_at(0, 0, Profile()).source
with Store.open(Path("corpus.db")) as store:
    assert store.integrity() == "ok"
"""


@pytest.mark.slow
def test_an_installed_wheel_works_from_any_folder(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "fuzzcompile/templates/case.py.j2" in names and "fuzzcompile/py.typed" in names
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", str(site), str(wheel)]
    subprocess.run(pip, check=True, capture_output=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(site)],
        cwd=elsewhere,
        env={"PYTHONPATH": str(site), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
