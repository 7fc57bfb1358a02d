"""``fuzzcompile generate``: files that say what they are made of and run alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzcompile.front.cli.main import main
from fuzzcompile.fuzz.generation.cases import draw_case_at
from fuzzcompile.fuzz.generation.profile import Profile


def generate(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ending:
        main(["generate", *arguments])
    return int(str(ending.value.code))


def test_files_are_cases_that_say_what_made_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert generate("--seed", "7", "--count", "5", "--out", str(tmp_path / "out"), "--json") == 0
    paths = [Path(path) for path in json.loads(capsys.readouterr().out)]
    assert paths == sorted((tmp_path / "out").iterdir())
    for index, path in enumerate(paths):
        case = draw_case_at(7, index, Profile())
        text = path.read_text(encoding="utf-8")
        docstring = text.split('"""')[1]
        assert text.endswith(case.source)
        assert all(name in " ".join(docstring.split()) for name in case.features)


def test_a_file_runs_alone(tmp_path: Path) -> None:
    assert generate("--seed", "7", "--count", "1", "--out", str(tmp_path)) == 0
    program = "import runpy; model, inputs = runpy.run_path('case_7_0.py')['make'](); print(len(inputs))"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) >= 1


def test_no_near_misses_and_later_cases(tmp_path: Path) -> None:
    assert generate("--count", "2", "--start", "40", "--no-near-misses", "--out", str(tmp_path)) == 0
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["case_0_40.py", "case_0_41.py"]
    assert all("Near misses: none." in path.read_text(encoding="utf-8") for path in tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    assert generate("--out", str(blocked / "cases")) == 2
    assert capsys.readouterr().err.startswith("fuzzcompile: Cannot write cases to ")
