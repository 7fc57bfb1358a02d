"""How far is far stands in one table, each threshold with its reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import fuzzcompile
from fuzzcompile.model import thresholds

ROOT = Path(fuzzcompile.__file__).parent
# Times, and the parameters of the statistical test that its module's docstring derives.
ELSEWHERE = re.compile(r"SECONDS|PATIENCE|INTERVAL|POLL|DUMP|TIMING|SHARE|LONG|CONCLUDING|CONFIRMING|LEAST_SEARCH")
DERIVED = {"ERROR_RATE", "MARGIN", "SMALLEST", "STRAY"}


def list_constants(path: Path) -> list[tuple[str, ast.expr]]:
    """The names that a module gives to values, at its top level."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    return [
        (target.id, node.value)
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    ]


def test_every_threshold_has_its_reason_above_it():
    path = Path(thresholds.__file__)
    lines = path.read_text(encoding="utf-8").splitlines()
    public = [name for name, _ in list_constants(path) if not name.startswith("_")]
    assert len(public) > 25
    for name in public:
        above = next(number for number, line in enumerate(lines) if line.startswith(f"{name} =")) - 1
        while lines[above].startswith(tuple(public)):  # two that share a reason
            above -= 1
        assert lines[above].startswith("#"), name


def test_what_judges_spells_no_threshold_of_its_own():
    files = [*(ROOT / "diagnosis").rglob("*.py"), *(ROOT / "run").rglob("*.py")]
    spelt = [
        (str(path.relative_to(ROOT)), name)
        for path in files
        for name, value in list_constants(path)
        if isinstance(value, ast.Constant) and isinstance(value.value, float)
        if not ELSEWHERE.search(name) and name not in DERIVED
    ]
    assert files and spelt == []
