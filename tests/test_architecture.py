"""The rules of ARCHITECTURE.md that a machine can hold."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "fuzzcompile"
FILES = sorted(ROOT.rglob("*.py"))
INTERNALS = ("torch._inductor", "torch._dynamo", "torch._functorch", "torch._subclasses", "torch._prims")
# What each package may import of the others; a package is the folder (or module) below fuzzcompile/.
ALLOWED = {
    "errors": set(),
    "case": {"errors"},
    "templating": set(),
    "stages": set(),
    "plants": {"errors"},
    "corpus": {"errors", "__init__"},
    "generation": {"errors", "templating"},
    "reference": set(),
    "execution": {"case", "errors", "reference"},
    "inductor": {"case", "errors", "execution", "reference", "stages"},
    "capture": {"case", "errors", "execution", "inductor"},
    "submodules": {"capture", "case", "errors", "execution"},
    "loading": {"capture", "case", "errors", "submodules"},
    "oracle": {"execution"},
    "variations": {"case", "errors", "execution", "generation", "inductor", "loading", "templating"},
    "experiments": {"case", "errors", "execution", "inductor", "oracle"},
    "deciding": {"attribution", "experiments", "oracle"},
    "attribution": {"execution", "experiments", "inductor", "oracle"},
    "report": {"attribution", "execution", "oracle"},
    "probing": {"attribution", "case", "deciding", "execution", "experiments", "inductor", "oracle",
                "report"},
    "triage": {"attribution", "case", "deciding", "errors", "execution", "experiments", "inductor", "oracle", "report"},
    "reduction": {"case", "errors", "execution", "generation", "oracle", "templating"},
    "reporting": {"errors", "oracle", "templating", "execution", "__init__"},
    "isolation": {"capture", "execution", "inductor"},
    "shrinking": {"case", "errors", "execution", "generation", "inductor", "isolation", "loading", "oracle", "probing",
                  "reduction", "triage"},
    "work": {"capture", "case", "errors", "execution", "generation", "inductor", "loading", "oracle", "plants",
             "probing", "reduction", "report", "triage",
             "isolation", "shrinking"},
    "campaign": {"case", "corpus", "errors", "execution", "experiments", "generation", "inductor", "loading", "oracle",
                 "plants", "report", "reporting", "variations", "work", "__init__",
                 "probing", "reduction", "shrinking", "stages"},
    "cli": {"campaign", "case", "corpus", "errors", "execution", "generation", "loading", "plants", "reporting",
            "__init__", "reduction", "shrinking", "stages"},
    "__main__": {"cli"},
    "__init__": set(),
}  # fmt: skip


def package_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
    return modules


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_only_inductor_touches_the_compilers_internals(path):
    if package_of(path) != "inductor":
        assert not [m for m in imported(path) if m.startswith(INTERNALS)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_arrows_point_one_way(path):
    own = package_of(path)
    used = {m.split(".")[1] for m in imported(path) if m.startswith("fuzzcompile.")}
    known = set(ALLOWED)
    foreign = {name for name in used if name in known} - {own}
    assert foreign <= ALLOWED[own], f"{own} may not import {foreign - ALLOWED[own]}"


def test_there_is_no_drawer():
    assert not [p for p in FILES if p.stem.removeprefix("_") in ("utils", "util", "helpers", "misc", "common")]


def test_rooms_stay_small():
    assert not [p for p in FILES if len(p.read_text().splitlines()) > 600]
