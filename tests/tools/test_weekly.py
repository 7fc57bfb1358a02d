"""The weekly workflow runs every slow test, tries the oldest torch and the newest; its bounds are pyproject.toml's."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parents[2]


def jobs() -> dict[str, Any]:
    yaml = pytest.importorskip("yaml")
    loaded: dict[str, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "weekly.yml").read_text())
    return dict(loaded["jobs"])


def shards() -> dict[str, list[Path]]:
    """The files and folders of each shard, as the shell expands their names."""
    rows = jobs()["slow"]["strategy"]["matrix"]["include"]
    named = {row["shard"]: [(pattern, sorted(ROOT.glob(pattern))) for pattern in row["tests"].split()] for row in rows}
    assert len(named) == len(rows)
    assert all(found for patterns in named.values() for _, found in patterns), "a name that is gone"
    return {shard: [path for _, found in patterns for path in found] for shard, patterns in named.items()}


def test_every_test_file_is_in_exactly_one_shard() -> None:
    covered = {path: [] for path in sorted((ROOT / "tests").rglob("test_*.py"))}
    for shard, places in shards().items():
        for path, among in covered.items():
            among += [shard for place in places if path == place or place in path.parents]
    assert {path.relative_to(ROOT): among for path, among in covered.items() if len(among) != 1} == {}


def test_every_shard_has_a_limit_and_runs_to_its_end() -> None:
    slow = jobs()["slow"]
    assert slow["timeout-minutes"] <= 360 and slow["strategy"]["fail-fast"] is False
    commands = [step.get("run", "") for step in slow["steps"]]
    [running] = [command for command in commands if "make slow" in command]
    assert 'TESTS="$TESTS"' in running


def test_all_extras_are_installed_for_the_slow_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    [given] = re.findall(r"EXTRAS=(\S+)", "\n".join(step.get("run", "") for step in jobs()["slow"]["steps"]))
    chosen = set(given.split(","))
    for extra in given.split(","):
        chosen |= {own for each in map(Requirement, extras[extra]) if each.name == "fuzzcompile" for own in each.extras}
    assert chosen == set(extras)


def test_lower_bounds_are_those_of_the_project_and_compilers_those_that_are_tested() -> None:
    printed = subprocess.run([sys.executable, "tools/lower_bounds.py"], cwd=ROOT, capture_output=True, text=True)
    assert printed.returncode == 0, printed.stderr
    lower = {each.name: str(each.specifier) for each in map(Requirement, printed.stdout.split())}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = itertools.chain(*project["optional-dependencies"].values())
    for required in map(Requirement, (*project["dependencies"], *extras)):
        if required.name not in ("torch", "triton", "fuzzcompile"):
            assert f">={lower[required.name].removeprefix('==')}" in str(required.specifier)
    assert f"torch{lower['torch']}" in (ROOT / "constraints.txt").read_text().splitlines()


def test_the_oldest_torch_and_the_newest_are_tried() -> None:
    compat = jobs()["compat"]
    dependencies = map(Requirement, tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"])
    [torch] = [each for each in dependencies if each.name == "torch"]
    [oldest] = [Version(bound.version) for bound in torch.specifier if bound.operator == ">="]
    first, last = compat["strategy"]["matrix"]["torch"]
    assert Version(first) == oldest and last == "newest" and compat["strategy"]["fail-fast"] is False
    [running] = [step for step in compat["steps"] if "make compat" in step.get("run", "")]
    assert 'TORCH="$VERSION"' in running["run"] and "matrix.torch" in running["env"]["VERSION"]


def test_the_tests_of_the_lower_bounds_exist() -> None:
    [listed] = re.findall(r"^USING := ((?:.*\\\n)*.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    places = listed.replace("\\\n", " ").split()
    assert places and all((ROOT / place).exists() for place in places)
